from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernel_cases
import pytest
import torch
from kernel_cases import answers, expected, inputs
from torch.utils._python_dispatch import TorchDispatchMode

from drumline.distributed.kind import standing_for_gpu
from drumline.tasks.sae import kernels
from drumline.tasks.sae.largest import largest

WIDTHS = [5, 256, 1300]  # less than a block, one, and several with a part of one
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def check(found: kernel_cases.Answers, given: dict[str, torch.Tensor]) -> None:
    dtype = given["table"].dtype
    for name, exact in expected(given).items():
        assert found[name].dtype is (given["long"].dtype if "largest" in name else dtype), name
        size = exact.abs().max()
        off = (found[name].cpu().double() - exact).abs().max() / size
        assert off < ROUNDING[dtype], f"{name}: {off}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_on_the_cpu_they_are_the_plain_sums(width: int, dtype: torch.dtype) -> None:
    given = inputs(width, dtype)
    check(answers(kernels, given), given)


HAS_TRITON = (sys.platform, platform.machine()) == ("linux", "x86_64")
"""Where `make test` installs it."""


def with_triton(*arguments: Path, **environment: str) -> str:
    """What `kernel_cases.py` prints in a process that finds Triton."""
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(Path(sys.prefix) / "triton")])
    environment = {**os.environ, "PYTHONPATH": path.lstrip(os.pathsep), **environment}
    command = [sys.executable, kernel_cases.__file__, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not HAS_TRITON, reason="not installed there")
def test_tritons_kernels_are_the_plain_sums_in_its_interpreter(tmp_path: Path) -> None:
    cases = [inputs(width, dtype) for width in WIDTHS for dtype in DTYPES]
    torch.save(cases, tmp_path / "in.pt")
    with_triton(tmp_path / "in.pt", tmp_path / "out.pt", TRITON_INTERPRET="1")
    for given, found in zip(cases, torch.load(tmp_path / "out.pt"), strict=True):
        check(found, given)


@pytest.mark.skipif(not HAS_TRITON, reason="not installed there")
def test_tritons_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """What the interpreter takes, the compiler may refuse; that needs no GPU."""
    made = with_triton(TRITON_CACHE_DIR=str(tmp_path)).splitlines()
    assert len(made) == 3 * len(kernel_cases.KERNELS) - 2  # the largest are not float64's


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("width", [*WIDTHS, 2304])
def test_on_a_gpu_they_are_the_plain_sums(width: int, dtype: torch.dtype) -> None:
    given = inputs(width, dtype)
    device = torch.device("cuda", torch.cuda.current_device())
    assert kernels.built_kernels(device) is not None
    found = answers(kernels, {name: tensor.to(device) for name, tensor in given.items()})
    ROUNDING[torch.float16] = 2e-3
    check(found, given)
    again = answers(kernels, {name: tensor.to(device) for name, tensor in given.items()})
    assert all(torch.equal(found[name], again[name]) for name in found)


@pytest.mark.gpu
def test_on_a_gpu_a_number_that_is_none_is_among_the_largest() -> None:
    rows = torch.randn(2, 4096, device="cuda")
    rows[0, 1234], rows[1, 9], rows[1, 10] = math.nan, math.inf, -math.nan
    found = kernels.largest_of_rows(rows, 4, 16).tolist()
    assert 1234 in found[0]
    assert {9, 10} <= set(found[1])


def test_kernels_that_cannot_be_built_are_done_without_and_said_so() -> None:
    kernels.built_kernels.cache_clear()
    with pytest.warns(UserWarning, match=r"left to torch's operators.*cannot be used on cpu"):
        assert kernels.built_kernels(torch.device("cpu")) is None  # Triton has no such device


class Called(TorchDispatchMode):
    """Names of Drumline's operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "drumline":
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("shape", "dtype", "called"),
    [
        ((3, 4096), torch.float32, ["largest_of_rows"]),
        ((3, 4096), torch.float64, []),  # which the kernel cannot
        ((1, 2**24), torch.float32, []),  # too many for one program
        ((3, 100), torch.float32, []),  # too few to pay
    ],
)
def test_a_gpu_takes_the_kernel_where_it_can(
    shape: tuple[int, int], dtype: torch.dtype, called: list[str]
) -> None:
    rows, count = torch.randn(shape).to(dtype), 8
    expected = rows.topk(count).indices.sort().values
    with standing_for_gpu(), Called() as operators:
        found = largest(rows, count)
    assert operators.names == called
    assert torch.equal(rows.gather(1, found), rows.gather(1, expected))
    with Called() as operators:
        largest(rows, count)
    assert operators.names == []  # a CPU never does


def operator_arguments(given: dict[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    g = given
    return {
        "bag_sum": (g["index"], g["table"], g["starts"], g["weights"]),
        "bag_products": (g["sums"], g["bags"], g["index"], g["table"], g["starts"]),
        "largest_of_rows": (g["long"], kernel_cases.COUNT, kernel_cases.SIZE),
        "normalise_rows": (g["table"],),
        "drop_parallel": (g["change"], g["table"]),
    }


@pytest.mark.parametrize("name", operator_arguments(inputs(8, torch.float32)))
def test_traces_and_compilers_see_the_operator_that_runs(name: str) -> None:
    arguments = operator_arguments(inputs(8, torch.float32))[name]
    operator = getattr(torch.ops.drumline, name).default
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(operator, arguments, test_utils=tests)

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

from drumline.tasks.sae import kernels

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


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="not installed there"
)
def test_tritons_kernels_are_the_plain_sums_in_its_interpreter(tmp_path: Path) -> None:
    cases = [inputs(width, dtype) for width in WIDTHS for dtype in DTYPES]
    torch.save(cases, tmp_path / "in.pt")
    command = [sys.executable, kernel_cases.__file__, tmp_path / "in.pt", tmp_path / "out.pt"]
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(Path(sys.prefix) / "triton")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path.lstrip(os.pathsep)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for given, found in zip(cases, torch.load(tmp_path / "out.pt"), strict=True):
        check(found, given)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("width", [*WIDTHS, 2304])
def test_on_a_gpu_they_are_the_plain_sums(width: int, dtype: torch.dtype) -> None:
    given = inputs(width, dtype)
    device = torch.device("cuda", torch.cuda.current_device())
    assert kernels.triton_kernels(device) is not None
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


def test_kernels_that_cannot_be_built_are_done_without_and_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels.triton_kernels.cache_clear()
    with pytest.warns(UserWarning, match=r"left to torch's operators.*cannot be used on cpu"):
        assert kernels.triton_kernels(torch.device("cpu")) is None  # Triton has no such device


def operator_arguments(given: dict[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    g = given
    return {
        "bag_sum": (g["index"], g["table"], g["starts"], g["weights"]),
        "bag_products": (g["sums"], g["bags"], g["index"], g["table"], g["starts"]),
        "largest_of_rows": (g["long"], kernel_cases.COUNT, kernel_cases.HEAP),
        "normalise_rows": (g["table"],),
        "drop_parallel": (g["change"], g["table"]),
    }


@pytest.mark.parametrize("name", operator_arguments(inputs(8, torch.float32)))
def test_traces_and_compilers_see_the_operator_that_runs(name: str) -> None:
    arguments = operator_arguments(inputs(8, torch.float32))[name]
    operator = getattr(torch.ops.drumline, name).default
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(operator, arguments, test_utils=tests)

"""One optimizer step in one process: exact gradients, agreed skips, memory."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from single_process import RecordingTask, batch_of, step_of
from torch import Tensor, nn

from drumline.config import Precision
from drumline.events import read_events
from drumline.training.precision import LossScaler
from drumline.training.step import CAREFUL_STEPS, StandardStep, is_out_of_memory

DATA = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).to(dtype)


def reconstruction(model: nn.Module, batch: Tensor) -> Tensor:
    """The squared error of each sample."""
    return ((model(batch) - batch) ** 2).sum(1)


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    return copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())


def assert_bit_identical(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("micro_batch", [1, 3, 5, 12])
def test_accumulated_gradients_are_those_of_the_whole_batch(
    tmp_path: Path, micro_batch: int
) -> None:
    model, reference = network(), network()
    reconstruction(reference, DATA).mean().backward()
    optimizer = sgd(model, lr=0.25)
    task = RecordingTask(model, DATA, reconstruction)
    step = step_of(task, optimizer, tmp_path, micro_batch=micro_batch)
    outcome = step.take(batch_of(DATA, 12), 0)
    assert sum(task.sizes) == 12
    assert max(task.sizes) == micro_batch
    assert outcome.taken
    gradients = [p.grad for p in reference.parameters() if p.grad is not None]
    for ours, theirs, start in zip(
        model.parameters(), gradients, network().parameters(), strict=True
    ):
        torch.testing.assert_close(ours.grad, theirs, rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(ours.detach(), start.detach() - 0.25 * theirs)
    norm = torch.sqrt(sum((g**2).sum() for g in gradients))  # type: ignore[arg-type]
    assert outcome.gradient_norm is not None
    assert outcome.gradient_norm.item() == pytest.approx(norm.item(), rel=1e-12)


def test_sums_are_over_all_samples_whatever_the_micro_batches(tmp_path: Path) -> None:
    losses = reconstruction(network(), DATA).detach()
    for micro_batch in (5, 12):
        model = network()
        task = RecordingTask(model, DATA, reconstruction)
        step = step_of(task, sgd(model), tmp_path, micro_batch=micro_batch)
        outcome = step.take(batch_of(DATA, 12), 0)
        assert outcome.sums["loss"].item() == pytest.approx(losses.sum().item())
        assert outcome.sums["squares"].item() == pytest.approx((losses**2).sum().item())
        ((sums, count),) = task.steps
        assert count == 12
        assert sums["seen"].tolist() == [12, len(task.sizes)]


def test_every_step_starts_from_no_gradient(tmp_path: Path) -> None:
    """More steps than are careful, so that both ways through a step are taken."""
    model, reference = network(), network()
    step = step_of(RecordingTask(model, DATA, reconstruction), sgd(model), tmp_path, micro_batch=5)
    optimizer = sgd(reference)
    for index in range(CAREFUL_STEPS + 2):
        step.take(batch_of(DATA, 12), index)
        optimizer.zero_grad()
        reconstruction(reference, DATA).mean().backward()
        optimizer.step()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("clip_norm", [1e-3, 0.5, 1e6])
def test_clipping_is_torchs(tmp_path: Path, clip_norm: float) -> None:
    model, reference = network(), network()
    task = RecordingTask(model, DATA, reconstruction)
    step = step_of(task, sgd(model), tmp_path, micro_batch=5, clip_norm=clip_norm)
    outcome = step.take(batch_of(DATA, 12), 0)
    reconstruction(reference, DATA).mean().backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), clip_norm)
    assert outcome.gradient_norm is not None
    assert outcome.gradient_norm.item() == pytest.approx(norm.item())
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)
    clipped = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert clipped.item() <= max(clip_norm, 0) * (1 + 1e-9) or clip_norm > norm


def test_the_task_changes_gradients_before_they_are_clipped(tmp_path: Path) -> None:
    model = network()
    task = RecordingTask(model, DATA, reconstruction)

    def only_one(changed: nn.Module) -> None:
        for place, parameter in enumerate(changed.parameters()):
            parameter.grad = torch.full_like(parameter, 3.0 if place == 3 else 0.0)

    task.before_clip = only_one
    step = step_of(task, sgd(model), tmp_path, clip_norm=1.0)
    outcome = step.take(batch_of(DATA, 12), 0)
    assert outcome.gradient_norm is not None
    assert outcome.gradient_norm.item() == pytest.approx(3 * 6**0.5)
    last = list(model.parameters())[3].grad
    assert last is not None
    assert last.tolist() == pytest.approx([1 / 6**0.5] * 6, rel=1e-5)  # torch adds 1e-6 to norms


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_step_that_is_not_finite_changes_nothing_and_names_the_parameter(
    tmp_path: Path, bad: float
) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    task = RecordingTask(model, DATA, reconstruction)
    step = step_of(task, optimizer, tmp_path, micro_batch=5)
    assert step.take(batch_of(DATA, 12), 0).taken
    before = snapshot(model, optimizer)

    def spoil(changed: nn.Module) -> None:
        gradient = changed[2].weight.grad  # type: ignore[index]
        gradient[1, 2] = bad

    task.before_clip = spoil
    outcome = step.take(batch_of(DATA, 12), 1)
    assert not outcome.taken
    assert outcome.reason == "the gradient of 2.weight is not finite"
    assert not outcome.sums
    assert_bit_identical(snapshot(model, optimizer), before)
    assert len(task.steps) == 1  # after_step is for steps that were taken
    task.before_clip = None
    assert step.take(batch_of(DATA, 12), 2).taken


def test_a_norm_that_overflows_is_not_blamed_on_a_parameter(tmp_path: Path) -> None:
    model = network(torch.float32)
    task = RecordingTask(model, DATA.float(), reconstruction)
    before = copy.deepcopy(model.state_dict())
    task.before_clip = lambda changed: [p.grad.fill_(1e30) for p in changed.parameters()]  # type: ignore[union-attr]
    step = step_of(task, sgd(model), tmp_path, precision=Precision.FP32)
    outcome = step.take(batch_of(DATA.float(), 12), 0)
    assert not outcome.taken
    assert "norm" in outcome.reason
    assert_bit_identical(model.state_dict(), before)


def test_fp16_overflow_skips_halves_and_recovers(tmp_path: Path) -> None:
    """Outputs near 200, errors near 200, so scaled gradients near 200 * 2 * 65536 / 12 overflow
    fp16 (65504) at first and fit after some halvings.
    """
    data = DATA.float() * 100
    model = network(torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = LossScaler(enabled=True)
    task = RecordingTask(model, data, lambda m, b: ((m(b).float() - b) ** 2).sum(1))
    step = step_of(
        task, optimizer, tmp_path, precision=Precision.FP16, micro_batch=5, scaler=scaler
    )
    start = snapshot(model, optimizer)
    skipped = 0
    while not step.take(batch_of(data, 12), skipped).taken:
        skipped += 1
        assert scaler.scale == 65536.0 / 2**skipped
        assert_bit_identical(snapshot(model, optimizer), start)
        assert skipped < 30
    assert skipped >= 1
    scale = scaler.scale
    assert scale == 65536.0 / 2**skipped
    reference = network(torch.float32)  # gradients are unscaled: those of float32, to fp16's digits
    ((reference(data) - data) ** 2).sum(1).mean().backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        error = (ours.grad - theirs.grad).norm() / theirs.grad.norm()
        assert error < 2e-2
    assert step.take(batch_of(data, 12), skipped + 1).taken


def test_bf16_needs_no_scale_and_keeps_float32_weights(tmp_path: Path) -> None:
    model = network(torch.float32)
    data = DATA.float()
    seen: list[torch.dtype] = []

    def loss(m: nn.Module, batch: Tensor) -> Tensor:
        out = m(batch)
        seen.append(out.dtype)
        return ((out.float() - batch) ** 2).sum(1)

    step = step_of(RecordingTask(model, data, loss), sgd(model), tmp_path, precision=Precision.BF16)
    assert step.take(batch_of(data, 12), 0).taken
    assert seen == [torch.bfloat16]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert step.scaler.scale == 1.0


def test_dropout_is_drawn_from_seed_step_and_position(tmp_path: Path) -> None:
    masks: list[Tensor] = []

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        masks.append(nn.functional.dropout(torch.ones_like(batch), 0.5))
        return reconstruction(model, batch)

    for _ in range(2):
        model = network()
        step = step_of(RecordingTask(model, DATA, loss), sgd(model), tmp_path, micro_batch=6)
        torch.manual_seed(len(masks))  # what was drawn before must not matter
        step.take(batch_of(DATA, 12), 7)
    step.take(batch_of(DATA, 12), 8)
    first, second, again_first, again_second, next_first, _ = masks
    assert torch.equal(first, again_first)
    assert torch.equal(second, again_second)
    assert not torch.equal(first, second)
    assert not torch.equal(first, next_first)


class RunsOut:
    """A loss that has no memory for more than some samples at once."""

    def __init__(self, fits: int, error: BaseException) -> None:
        self.fits, self.error = fits, error

    def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
        losses = reconstruction(model, batch)
        if len(batch) > self.fits:
            raise self.error
        return losses


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory_halves_and_takes_the_same_step(tmp_path: Path, error: Exception) -> None:
    model, reference = network(), network()
    step = step_of(
        RecordingTask(model, DATA, RunsOut(3, error)), sgd(model), tmp_path, micro_batch=12
    )
    outcome = step.take(batch_of(DATA, 12), 4)
    assert outcome.taken
    assert step.micro_batch == 3
    reconstruction(reference, DATA).mean().backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-14)
    warnings = [e for e in read_events(tmp_path / "events.jsonl") if e["kind"] == "warning"]
    assert [event["micro_batch"] for event in warnings] == [6, 3]
    assert all("step 4" in event["message"] for event in warnings)


def test_one_sample_that_does_not_fit_is_out_of_memory(tmp_path: Path) -> None:
    model = network()
    loss = RunsOut(0, torch.OutOfMemoryError("no"))
    step = step_of(RecordingTask(model, DATA, loss), sgd(model), tmp_path, micro_batch=2)
    with pytest.raises(torch.OutOfMemoryError, match="micro-batch of 1 does not fit"):
        step.take(batch_of(DATA, 12), 0)


def test_other_errors_pass(tmp_path: Path) -> None:
    model = network()
    loss = RunsOut(0, RuntimeError("shapes do not fit"))
    step = step_of(RecordingTask(model, DATA, loss), sgd(model), tmp_path)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        step.take(batch_of(DATA, 12), 0)


def test_what_is_not_out_of_memory() -> None:
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2"))
    assert not is_out_of_memory(ValueError("can't allocate memory"))


REALLY_OUT_OF_MEMORY = """
import resource, sys
from pathlib import Path
import torch
from torch import nn
sys.path.insert(0, sys.argv[1])
from single_process import RecordingTask, batch_of, step_of

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).double()

WIDE = 3 * 2**17  # a sample's activations: 3 MiB; 16 of them are more than malloc keeps

def loss(model, batch):
    hidden = model(batch).sum(1, keepdim=True)
    return (hidden * torch.ones(WIDE, dtype=torch.float64)).mean(1) ** 2

torch.set_num_threads(1)
data = torch.randn(64, 4, dtype=torch.float64)
used = {}
warm = build()  # so that threads and late imports are there before memory is short
assert step_of(RecordingTask(warm, data, loss), torch.optim.SGD(warm.parameters(), lr=0.1),
               Path(sys.argv[2]), micro_batch=4).take(batch_of(data, 64), 0).taken
unlimited = resource.getrlimit(resource.RLIMIT_AS)
for name in ("halved", "small from the start"):
    micro_batch = 64 if name == "halved" else used["halved"][0]
    model = build()
    task = RecordingTask(model, data, loss)
    step = step_of(task, torch.optim.SGD(model.parameters(), lr=0.1), Path(sys.argv[2]),
                   micro_batch=micro_batch)
    if name == "halved":
        now = 1024 * int(next(line.split()[1] for line in open("/proc/self/status")
                              if line.startswith("VmSize")))
        limit = now + 48 * 3 * 2**20  # a backward holds twice its samples: 32 do not fit
        resource.setrlimit(resource.RLIMIT_AS, (limit, unlimited[1]))
    for index in range(2):
        assert step.take(batch_of(data, 64), index).taken
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
    used[name] = (step.micro_batch, [p.detach().clone() for p in model.parameters()], task.sizes)
small, halved = used["small from the start"], used["halved"]
assert halved[0] in (16, 8, 4), halved[0]  # how much malloc keeps decides where it ends
assert halved[2][-2:] == [halved[0]] * 2, halved[2]
# Memory may run short again in the second step; then the first was summed in other pieces.
for a, b in zip(small[1], halved[1], strict=True):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
print("equal")
"""


def test_memory_that_really_runs_out_halves_and_changes_no_result(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REALLY_OUT_OF_MEMORY, str(Path(__file__).parents[1]), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "equal\n", done.stderr
    events = read_events(tmp_path / "events.jsonl")
    halvings = [event["micro_batch"] for event in events if event["kind"] == "warning"]
    assert halvings == [32, 16, 8, 4][: len(halvings)]
    assert len(halvings) >= 2


def test_a_step_is_built_from_its_parts(tmp_path: Path) -> None:
    model = network()
    step = step_of(RecordingTask(model, DATA, reconstruction), sgd(model), tmp_path, micro_batch=4)
    assert isinstance(step, StandardStep)
    assert step.micro_batch == 4

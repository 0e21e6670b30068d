"""An LSTM over sequences with episode cuts: all ways against one step after the other."""

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.graphs import Recorder, gpu_recorder
from drumline.tasks.clstm_ppo.masked_loop import Begun, Layer, masked_loop
from drumline.tasks.clstm_ppo.pieces import (
    BUCKET_ROWS,
    Bucket,
    Cuts,
    find_buckets,
    find_cuts,
    find_pieces,
    places_in,
)
from drumline.tasks.clstm_ppo.recorded_loop import RecordedLoop
from drumline.tasks.clstm_ppo.sequences import Loop, Recurrent, Way, loop_together, through_each

STEPS, COUNT, INPUTS, HIDDEN, LAYERS = 17, 6, 3, 5, 2
Run = Callable[[Recurrent, Tensor, Tensor, Tensor], Tensor]


def made(
    dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> tuple[Recurrent, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    lstm = Recurrent(INPUTS, HIDDEN, LAYERS).to(dtype)
    for parameter in lstm.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    inputs = torch.randn(STEPS, COUNT, INPUTS, dtype=dtype)
    starts = torch.rand(STEPS, COUNT) < 0.2
    starts[:, 2] = False
    starts[0, 1], starts[-1, 3] = True, True
    state = torch.randn(COUNT, LAYERS, 2, HIDDEN, dtype=dtype)
    return lstm.to(device), inputs.to(device), starts.to(device), state.to(device)


def step_by_step(lstm: Recurrent, inputs: Tensor, starts: Tensor, state: Tensor) -> Tensor:
    found = []
    for step in range(STEPS):
        state = state * (~starts[step]).view(-1, 1, 1, 1)
        outputs, state = lstm.step(inputs[step], state)
        found.append(outputs)
    return torch.stack(found)


def way(name: Way, cuts: Callable[[Tensor], Cuts] = find_cuts) -> Run:
    return lambda lstm, inputs, starts, state: lstm(inputs, starts, state, cuts(starts), name)


def packed(starts: Tensor) -> Cuts:
    """As on a GPU."""
    return Cuts(find_cuts(starts).steps, find_pieces(starts))


def padded(starts: Tensor) -> Cuts:
    """As on a CPU with many cuts, and in more than one bucket."""
    pieces = find_pieces(starts)
    middle = len(pieces.sizes) // 2
    buckets = (
        Bucket(0, middle, int(pieces.sizes[0])),
        Bucket(middle, len(pieces.sizes), int(pieces.sizes[middle])),
    )
    return Cuts(find_cuts(starts).steps, pieces, buckets)


WAYS = {
    "stretches": way("fused", lambda starts: Cuts(find_cuts(starts).steps)),
    "packed": way("fused", packed),
    "padded": way("fused", padded),
    "loop": way("loop"),
    "auto": way("auto"),
}


def with_gradients(run: Run, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Outputs, and gradients of a weighted sum of them, on the CPU."""
    lstm, inputs, starts, state = made(dtype, device)
    inputs.requires_grad_()
    outputs = run(lstm, inputs, starts, state)
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=dtype).view_as(outputs).to(device)
    torch.autograd.backward((outputs * weights).sum())
    gradients = [p.grad for p in (inputs, *lstm.parameters())]
    return [outputs.detach().cpu(), *(g.cpu() for g in gradients if g is not None)]


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_every_way_is_one_step_after_the_other(name: str, dtype: torch.dtype, bound: float) -> None:
    wanted = with_gradients(step_by_step, dtype)
    found = with_gradients(WAYS[name], dtype)
    assert len(found) == len(wanted) == 2 + 4 * LAYERS
    for ours, theirs in zip(found, wanted, strict=True):
        size = max(1.0, float(theirs.abs().max()))
        assert float((ours - theirs).abs().max()) < bound * size


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["packed", "loop", "auto"])
def test_every_way_on_a_gpu_is_one_step_after_the_other_on_the_cpu(name: str) -> None:
    wanted = with_gradients(step_by_step, torch.float64)
    found = with_gradients(WAYS[name], torch.float64, "cuda")
    for ours, theirs in zip(found, wanted, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-12 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("name", WAYS)
def test_nothing_passes_a_cut_and_all_else_goes_on(name: str) -> None:
    """Changing what is before a sequence's last start changes nothing from that start on, and
    changes everything after it in a sequence without a start.
    """
    lstm, inputs, starts, state = made()
    before = WAYS[name](lstm, inputs, starts, state)
    cut = 9
    starts[cut:] = False
    starts[cut] = torch.tensor([True, True, False, True, True, True])
    before = WAYS[name](lstm, inputs, starts, state)
    changed = inputs.clone()
    changed[:cut] += 1.0
    after = WAYS[name](lstm, changed, starts, state + 1.0)
    same = (after[cut:] == before[cut:]).all(dim=2).all(dim=0)
    assert same.tolist() == [True, True, False, True, True, True]


@pytest.mark.parametrize("readers", [1, 2])
def test_the_loops_gradient_is_the_difference_quotient(readers: int) -> None:
    """Of two LSTMs that read the same, or each its own."""
    torch.manual_seed(2)
    sizes = {"inputs": (4, readers, 3, 2), "weight": (2, 8, 2), "recurrent": (2, 8, 2)}
    sizes["bias"] = (2, 8)
    parts = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes.values()]
    hidden, cell = torch.randn(2, 2, 3, 2, dtype=torch.float64)
    keep = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 1, 1]]).bool()

    def run(inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor) -> Tensor:
        layer = Layer(weight, recurrent, bias)
        return masked_loop(inputs, layer, Begun(hidden, cell, keep), frozenset([0, 2]))

    assert torch.autograd.gradcheck(run, parts)


def again(body: Callable[[], None]) -> Callable[[], None]:
    """In place of a CUDA graph: the same, kernel by kernel."""
    body()
    return body


ON_GPU = pytest.mark.gpu
LOOPS = [
    pytest.param("cpu", lambda: masked_loop, id="loop"),
    pytest.param("cpu", lambda: RecordedLoop(lambda: again), id="again"),
    pytest.param("cuda", lambda: masked_loop, marks=ON_GPU, id="loop on a GPU"),
    pytest.param("cuda", lambda: RecordedLoop(gpu_recorder), marks=ON_GPU, id="graph"),
]


@pytest.mark.parametrize(("device", "loop"), LOOPS)
def test_a_loop_over_two_lstms_is_each_for_itself(device: str, loop: Callable[[], Loop]) -> None:
    """Outputs and all gradients, in float64, over several sets of sequences of two sizes: what was
    recorded before must not show. On a GPU the loop's cell is another kernel.
    """
    lstm, inputs, starts, state = made(device=device)
    other = Recurrent(INPUTS, HIDDEN, LAYERS).to(inputs)
    loops = [loop() for _ in range(LAYERS)]
    for turn, rows in enumerate([6, 6, 6, 4, 6, 4, 4, 4, 6]):
        chosen = torch.arange(6, device=device).roll(turn)[:rows]
        read = (inputs[:, chosen] + turn).requires_grad_()
        begins, states = starts[:, chosen], [state[chosen], state[chosen].flip(0)]
        both = loop_together([lstm, other], read, begins, states, loops)
        apart = through_each([lstm, other], read, begins, states, "fused")
        variables = [read, *lstm.parameters(), *other.parameters()]
        found, wanted = (
            torch.autograd.grad(outputs[0].sin().sum() + outputs[1].cos().sum(), variables)
            for outputs in (both, apart)
        )
        for ours, theirs in zip((*both, *found), (*apart, *wanted), strict=True):
            away, size = (ours - theirs).detach().abs().max(), theirs.detach().abs().max()
            assert float(away) < 1e-12 * max(1.0, float(size))
        with torch.no_grad():
            lstm.lstm.weight_hh_l0.mul_(0.9)


@pytest.mark.parametrize(("device", "loop"), LOOPS)
def test_no_two_gradients_of_a_loop_share_memory(device: str, loop: Callable[[], Loop]) -> None:
    """Sums over ranks are made in place."""
    lstm, inputs, starts, state = made(device=device)
    other = Recurrent(INPUTS, HIDDEN, LAYERS).to(inputs)
    loops = [loop() for _ in range(LAYERS)]
    parameters = [*lstm.parameters(), *other.parameters()]
    for _ in range(3):
        lstm.zero_grad()
        other.zero_grad()
        outputs = loop_together([lstm, other], inputs, starts, [state, state], loops)
        torch.autograd.backward(sum(each.sin().sum() for each in outputs))
        gradients = [p.grad for p in parameters if p.grad is not None]
        before = [gradient.clone() for gradient in gradients]
        for gradient in gradients:
            gradient.add_(1.0)
        assert len(gradients) == len(parameters)
        for found, was in zip(gradients, before, strict=True):
            assert torch.equal(found, was + 1.0)


def test_a_recorded_loop_records_what_comes_twice_and_refuses_to_go_back_too_late() -> None:
    recorded: list[int] = []

    def recorder() -> Recorder:
        recorded.append(1)
        return again

    lstm, inputs, starts, state = made()
    loops = [RecordedLoop(recorder) for _ in range(LAYERS)]

    def outputs(rows: int) -> Tensor:
        arguments = (inputs[:, :rows], starts[:, :rows], [state[:rows]])
        return loop_together([lstm], *arguments, loops)[0].sum()

    outputs(6)
    assert not recorded
    first = outputs(6)
    assert len(recorded) == LAYERS
    for rows in (6, 5, 6, 5):
        outputs(rows)
    assert len(recorded) == LAYERS
    outputs(5)  # the second one after another; the first has let go of the larger record
    assert len(recorded) == 2 * LAYERS
    with pytest.raises(RuntimeError, match="went forward again"):
        torch.autograd.backward(first)
    torch.autograd.backward(outputs(5))
    assert pickle.loads(pickle.dumps(RecordedLoop(gpu_recorder))).recorder is gpu_recorder


def test_without_a_cut_there_is_one_stretch() -> None:
    starts = torch.zeros(5, 3, dtype=torch.bool)
    assert find_cuts(starts) == Cuts(())
    starts[0, 1] = starts[3, 0] = True
    assert find_cuts(starts).steps == (0, 3)


def test_every_step_is_in_one_piece_of_one_bucket() -> None:
    """Many episodes: each place once, no bucket too wide, and little filled up."""
    torch.manual_seed(3)
    starts = torch.rand(64, 200) < 0.05
    pieces = find_pieces(starts)
    buckets = find_buckets(pieces.sizes.tolist())
    places = torch.cat([places_in(bucket, pieces, 64, 200).flatten() for bucket in buckets])
    assert torch.equal(places[places < 64 * 200].sort().values, torch.arange(64 * 200))
    assert len(places) < 1.25 * 64 * 200
    assert max(b.end - b.begin for b in buckets) == BUCKET_ROWS


def test_few_cuts_are_made_through_all_sequences_and_many_through_each() -> None:
    few = torch.zeros(128, 8, dtype=torch.bool)
    few[9, 3] = True
    assert find_cuts(few) == Cuts((9,))
    many = few.clone()
    many[torch.arange(128), torch.arange(128) % 8] = True
    found = find_cuts(many)
    assert found.pieces is not None
    assert sum((b.end - b.begin) * b.length for b in found.buckets) >= 128 * 8


def test_buckets_close_where_filling_up_costs_more_than_another_call() -> None:
    """Two long pieces beside two short ones; pieces of one length stay together."""
    assert find_buckets([100, 100, 1, 1]) == (Bucket(0, 2, 100), Bucket(2, 4, 1))
    assert find_buckets([7] * 5) == (Bucket(0, 5, 7),)

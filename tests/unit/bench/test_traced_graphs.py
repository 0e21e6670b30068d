"""CUDA graphs in a trace: what they hold lies in pools of their own, by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from drumline.bench.allocation_recorder import AllocationRecorder
from drumline.bench.cuda_graphs import cuda_graphs
from drumline.bench.memory_trace import trace_task
from drumline.config import RunConfig
from drumline.distributed.kind import is_gpu, standing_for_gpu
from drumline.planning.memory_trace import MemoryTrace, Replay, replay
from drumline.tasks.clstm_ppo.pieces import find_cuts
from drumline.tasks.clstm_ppo.task import CLSTMPPOTask

KIB, MIB = 2**10, 2**20
WORKSPACE = 32 * MIB


@contextmanager
def recording(*, kernels: bool = False) -> Iterator[AllocationRecorder]:
    recorder = AllocationRecorder(kernels=kernels)
    with FakeTensorMode(), cuda_graphs(recorder), recorder:
        yield recorder


def played(recorder: AllocationRecorder) -> Replay:
    trace = MemoryTrace(
        *(1, 1, 1, 1, tuple(recorder.sizes), tuple(recorder.categories)),
        *(recorder.workspaces, tuple(recorder.events)),
        streams=recorder.streams,
        held=tuple(recorder.held),
    )
    return replay(trace, lambda _: WORKSPACE)


def taken(mebibytes: int) -> Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8)


def test_a_recorded_body_shares_memory_with_its_pool_only() -> None:
    with recording() as recorder:
        pool = torch.cuda.graph_pool_handle()
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        taken(50)  # given back to the driver before anything is recorded
        with torch.cuda.graph(first, pool=pool):
            kept = taken(12)
            taken(40)
        outside = taken(40)
        first.replay()
        with torch.cuda.graph(second, pool=pool):
            again = taken(40)  # where the first one's was
            assert torch.cuda.is_current_stream_capturing()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            taken(40)  # a pool of its own
        assert not torch.cuda.is_current_stream_capturing()
        recorder.stop()
    found = played(recorder)
    assert found.segments == (12 * MIB, 40 * MIB, 40 * MIB, 40 * MIB)
    assert (found.allocated_peak, found.reserved_peak) == (132 * MIB, 132 * MIB)
    assert len({id(each) for each in (kept, outside, again)}) == 3  # alive up to here


def test_a_pool_gives_back_what_is_free_once_its_graphs_are_gone() -> None:
    with recording() as recorder:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = taken(12)
            taken(40)
        torch.cuda.empty_cache()
        held = played(recorder).segments
        graph.reset()
        torch.cuda.empty_cache()
        still_in_use = played(recorder).segments
        del kept
        torch.cuda.empty_cache()
        assert recorder.held == [(), (1,), (), ()]
    assert held == (12 * MIB, 40 * MIB)
    assert still_in_use == (12 * MIB,)
    assert played(recorder).segments == ()


def test_graphs_share_a_workspace_of_their_own_until_one_of_them_is_gone() -> None:
    with recording(kernels=True) as recorder:
        matrix, graphs = torch.empty(8, 8), [torch.cuda.CUDAGraph() for _ in range(3)]
        matrix @ matrix
        for graph in graphs[:2]:
            with torch.cuda.graph(graph):
                matrix @ matrix
        assert list(recorder.workspaces.values()) == ["cublas:main", "cublas:main recording"]
        assert [recorder.streams.get(number) for number in recorder.workspaces] == [None, 1]
        graphs[1].reset()
        with torch.cuda.graph(graphs[2]):
            matrix @ matrix
        assert len(recorder.workspaces) == 3
        recorder.stop()
    assert played(recorder).allocated_peak == 2 * WORKSPACE + 2 * 512


def test_outside_a_trace_torch_is_as_it_was() -> None:
    before = torch.cuda.CUDAGraph, torch.cuda.graph, torch.cuda.empty_cache
    with recording():
        assert torch.cuda.CUDAGraph is not before[0]
    assert (torch.cuda.CUDAGraph, torch.cuda.graph, torch.cuda.empty_cache) == before


def test_a_device_stands_for_a_gpu_only_within() -> None:
    device = torch.device("cpu")
    assert is_gpu(torch.device("cuda")) and not is_gpu(device)
    with standing_for_gpu():
        assert is_gpu(device)
    assert not is_gpu(device)


STEPS, HIDDEN, ENVIRONMENTS = 16, 8, 64
SEQUENCES = ENVIRONMENTS // 2  # of a minibatch


def ppo(precision: str = "fp32", *, on_gpu: bool = True, graphs: bool = True) -> MemoryTrace:
    task = {
        "name": "clstm_ppo",
        "environment": {"name": "cartpole_memory"},
        "environments": ENVIRONMENTS,
        "rollout_steps": STEPS,
        "total_steps": 100 * ENVIRONMENTS * STEPS,
        "policy": {"hidden": HIDDEN, "heads": [4]},
        "graphs": graphs,
    }
    keys = {"task": task, "global_batch": SEQUENCES * STEPS, "precision": precision}
    return trace_task(CLSTMPPOTask(), RunConfig.model_validate(keys), on_gpu=on_gpu)


def left_in(trace: MemoryTrace, pool: int) -> int:
    """Bytes in use in a pool at the end."""
    ends = {-event - 1 for event in trace.events if event < 0}
    return sum(
        size
        for number, size in enumerate(trace.sizes)
        if trace.streams.get(number) == pool and number not in ends
    )


def test_on_a_gpu_acting_and_the_loop_are_recorded() -> None:
    trace = ppo()
    assert trace.held == ((), (1,), (1, 2))  # a step of acting; the loop forward; and backward
    assert set(trace.streams.values()) == {1, 2}
    lstms, floats = 2, 4
    state = STEPS * lstms * SEQUENCES * HIDDEN * floats
    outputs, hidden, before, after, gates = state, state, state, state, 4 * state
    width = 8  # two features and the bias' one, filled up
    read = STEPS * SEQUENCES * width * floats
    keep = STEPS * SEQUENCES * floats
    gradients = lstms * 4 * HIDDEN * (width + HIDDEN) * floats
    assert left_in(trace, 2) == outputs + hidden + before + after + gates + read + keep + gradients
    assert left_in(trace, 1) < left_in(trace, 2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_a_cpu_nothing_is_recorded_and_nothing_packed(precision: str) -> None:
    trace = ppo(precision, on_gpu=False)
    assert (trace.held, trace.streams, trace.selections) == ((), {}, ())


def test_without_graphs_nothing_is_recorded() -> None:
    trace = ppo(graphs=False)
    assert (trace.held, trace.streams) == ((), {})


def test_in_bf16_acting_is_recorded_and_pieces_are_packed() -> None:
    trace = ppo("bf16")
    assert trace.held == ((),)
    assert trace.selections == ("nonzero",)  # where episodes begin


def test_pieces_without_values_are_one_of_each_sequence_and_those_selected() -> None:
    with FakeTensorMode(), standing_for_gpu(), AllocationRecorder(selected=0.25):
        pieces = find_cuts(torch.zeros(6, 4, dtype=torch.bool)).pieces
    assert pieces is not None
    for each in (pieces.sizes, pieces.rows, pieces.firsts, pieces.carried):
        assert each.shape == (4 + 6,)
    assert (pieces.order.shape, pieces.batch_sizes.shape) == ((24,), (6,))

"""CUDA graphs in a trace: recorded once, and what they hold held, without a GPU.

What torch allocates while it records a graph comes from segments of the graph's pool, is used again
only there, and stays reserved as long as a graph of the pool lives. A replay allocates nothing.
Before it records, torch empties its cache (torch/cuda/graphs.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from drumline.bench.allocation_recorder import AllocationRecorder


@contextmanager
def cuda_graphs(recorder: AllocationRecorder) -> Iterator[None]:
    """Within it, torch.cuda's graphs tell a recorder what they hold, and replay nothing."""
    pools = _Pools(recorder)
    stand_ins = {
        "CUDAGraph": type("CUDAGraph", (_Graph,), {"_pools": pools}),
        "graph": _Capture,
        "graph_pool_handle": _Pool,
        "is_current_stream_capturing": lambda: pools.is_recording,
        "empty_cache": pools.empty_cache,
    }
    with ExitStack() as replaced:
        for name, stand_in in stand_ins.items():
            replaced.enter_context(patch.object(torch.cuda, name, stand_in))
        yield


class _Pool:
    """The handle of a pool."""


class _Pools:
    """Which pools have graphs that are alive, and how many."""

    def __init__(self, recorder: AllocationRecorder) -> None:
        self.graphs: Counter[_Pool] = Counter()
        self.is_recording = False
        self._recorder = recorder

    def empty_cache(self) -> None:
        self._recorder.emptied(pool for pool, count in self.graphs.items() if count)

    @contextmanager
    def recording(self, pool: _Pool) -> Iterator[None]:
        self.graphs[pool] += 1
        self.is_recording = True
        try:
            with self._recorder.recording(pool):
                yield
        finally:
            self.is_recording = False

    def let_go(self, pool: _Pool) -> None:
        """One graph less. What graphs have multiplied with lies on their common stream, and goes
        with any of them (aten/src/ATen/cuda/CUDAGraph.cpp).
        """
        self.graphs[pool] -= 1
        self._recorder.free_workspaces_of_recording()


class _Graph:
    """torch.cuda.CUDAGraph."""

    _pools: _Pools

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph
        self._pool: _Pool | None = None
        self._recording: AbstractContextManager[None] | None = None

    def capture_begin(self, pool: _Pool | None = None, **_: Any) -> None:
        self._pool = pool or _Pool()
        self._recording = self._pools.recording(self._pool)
        self._recording.__enter__()

    def capture_end(self) -> None:
        if self._recording is not None:
            self._recording.__exit__(None, None, None)
            self._recording = None

    def instantiate(self) -> None:
        """Nothing to be done."""

    def replay(self) -> None:
        """Nothing is allocated."""

    def reset(self) -> None:
        if self._pool is not None:
            self._pools.let_go(self._pool)
            self._pool = None

    def pool(self) -> _Pool | None:
        return self._pool

    def __del__(self) -> None:
        self.reset()


class _Capture:
    """torch.cuda.graph."""

    def __init__(self, cuda_graph: _Graph, pool: _Pool | None = None, **_: Any) -> None:
        self.cuda_graph, self.pool = cuda_graph, pool

    def __enter__(self) -> None:
        torch.cuda.empty_cache()
        self.cuda_graph.capture_begin(pool=self.pool)

    def __exit__(self, *_: object) -> None:
        self.cuda_graph.capture_end()

"""Where traces come from: those made before by whoever asked the same, then a process that traces.

Without a process only what is kept is answered. So a training can follow the plan that
`drumline plan` showed, and starts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drumline.bench.memory import TracingProcess, memory_trace_in
from drumline.bench.trace_store import TraceStore, question
from drumline.bench.workload import ask_workload, workload_in
from drumline.config import RunConfig
from drumline.planning.memory_fit import NotKnown
from drumline.planning.memory_trace import MemoryTrace
from drumline.planning.workload import Workload


class Traces:
    """Traces of configs, each made once and kept.

    That a task cannot be traced is kept, too, but believed only where nothing can be traced: what
    was missing may have been installed since.

    Args:
        store: Where they are kept.
        process: Makes the memory traces that are not; None: nothing is traced, neither memory
            nor work.
    """

    def __init__(self, store: TraceStore, process: TracingProcess | None) -> None:
        self._store, self._process = store, process

    def memory(
        self,
        config: RunConfig,
        world_size: int = 1,
        micro_batch: int | None = None,
        selected: float = 0.0,
        on_gpu: bool = True,
    ) -> MemoryTrace:
        """What a step asks of the allocator; see `bench.memory_trace.trace_task`.

        Raises:
            BadInput: If the config names no task, or its step needs values.
            LaunchError: If the process died.
            NotKnown: If it is not kept and nothing is traced.
        """
        size = micro_batch or config.micro_batch
        options = {"world_size": world_size, "micro_batch": size, "selected": selected}
        options["on_gpu"] = on_gpu
        answer = self._answer(
            config, "memory", options, lambda process: process.ask(config, options)
        )
        return memory_trace_in(answer)

    def workload(self, config: RunConfig) -> Workload:
        """What a step costs; see `bench.workload_trace`.

        Raises:
            BadInput: If the config names no task.
            LaunchError: If the task cannot be traced, with its own words.
            NotKnown: If it is not kept and nothing is traced.
        """
        return workload_in(self._answer(config, "work", {}, lambda _: ask_workload(config)))

    def _answer(
        self,
        config: RunConfig,
        kind: str,
        options: dict[str, Any],
        make: Callable[[TracingProcess], dict[str, Any]],
    ) -> dict[str, Any]:
        asked = question(config, kind, options)
        kept = self._store.get(asked)
        if kept is not None and ("trace" in kept or self._process is None):
            return kept
        if self._process is None:
            raise NotKnown
        made = make(self._process)
        sources = made.pop("sources", None)
        self._store.put(asked, made, sources)
        return made

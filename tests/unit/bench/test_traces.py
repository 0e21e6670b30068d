"""Traces from the store, made where they are not there, or not made at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumline.bench.memory import TracingProcess
from drumline.bench.trace_store import TraceStore
from drumline.bench.traces import Traces
from drumline.config import RunConfig
from drumline.config.load import override
from drumline.errors import BadInput, LaunchError
from drumline.planning.memory_fit import NotKnown
from drumline.planning.memory_trace import MemoryTrace


class Counting(TracingProcess):
    """Answers at once, and counts how often."""

    def __init__(self, **answer: Any) -> None:
        super().__init__()
        self.answer, self.asked = answer, 0

    def ask(self, config: RunConfig, options: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        return dict(self.answer)


TRACE = MemoryTrace(4, 8, 1, 1, (5,), ("parameters",), {}, (1,))
CONFIG = RunConfig(steps=1, global_batch=8)


@pytest.fixture
def store(tmp_path: Path) -> TraceStore:
    return TraceStore(tmp_path / "traces")


def test_a_trace_is_made_once(store: TraceStore) -> None:
    with Counting(trace=TRACE.as_dict(), sources={}) as process:
        traces = Traces(store, process)
        assert traces.memory(CONFIG, 1, 4) == traces.memory(CONFIG, 1, 4) == TRACE
        assert process.asked == 1
        traces.memory(CONFIG, 2, 4)
        assert process.asked == 2
    assert Traces(store, None).memory(CONFIG, 1, 4) == TRACE


def test_the_micro_batch_counts_wherever_it_was_given(store: TraceStore) -> None:
    with Counting(trace=TRACE.as_dict(), sources={}) as process:
        Traces(store, process).memory(override(CONFIG, ["micro_batch=4"]))
    assert Traces(store, None).memory(CONFIG, micro_batch=4) == TRACE
    with pytest.raises(NotKnown):
        Traces(store, None).memory(override(CONFIG, ["micro_batch=2"]))


def test_without_a_process_nothing_is_traced(
    store: TraceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(NotKnown):
        Traces(store, None).memory(CONFIG)
    with pytest.raises(NotKnown):
        Traces(store, None).workload(CONFIG)


def test_that_a_task_cannot_be_traced_is_asked_again_by_who_can_trace(store: TraceStore) -> None:
    error = {"message": "A package is missing.", "remedy": "Install it."}
    with Counting(error=error, bad_input=True, sources={}) as process:
        for _ in range(2):
            with pytest.raises(BadInput, match="A package is missing"):
                Traces(store, process).memory(CONFIG)
        assert process.asked == 2
    with pytest.raises(BadInput, match="A package is missing"):
        Traces(store, None).memory(CONFIG)
    with Counting(trace=TRACE.as_dict(), sources={}) as process:
        assert Traces(store, process).memory(CONFIG) == TRACE
    assert Traces(store, None).memory(CONFIG) == TRACE


OWN = """
from drumline.config import TaskConfig
from {other} import WIDTH
class Config(TaskConfig):
    implementation = "{name}:Task"
class Task:
    def __init__(self):
        raise RuntimeError(f"width is {{WIDTH}}")
"""


def test_a_users_own_module_and_what_it_imports_are_watched(
    store: TraceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    (tmp_path / "own_watched.py").write_text(OWN.format(name="own_watched", other="own_width"))
    (tmp_path / "own_width.py").write_text("WIDTH = 3\n")
    config = RunConfig.model_validate({"steps": 1, "task": {"name": "own_watched:Config"}})
    with TracingProcess() as process, pytest.raises(LaunchError, match="width is 3"):
        Traces(store, process).workload(config)
    with pytest.raises(LaunchError, match="width is 3"):
        Traces(store, None).workload(config)
    (tmp_path / "own_width.py").write_text("WIDTH = 3000\n")
    with pytest.raises(NotKnown):
        Traces(store, None).workload(config)


def test_what_a_real_process_has_traced_is_kept(store: TraceStore, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((500, 16), np.float32))
    task = {"name": "sae", "activations": str(tmp_path / "rows.npy"), "latents": 64, "k": 4}
    config = RunConfig.model_validate({"steps": 5, "global_batch": 64, "task": task})
    with TracingProcess() as process:
        made = Traces(store, process)
        memory, work = made.memory(config), made.workload(config)
    again = Traces(store, None)
    assert (again.memory(config), again.workload(config)) == (memory, work)
    assert work.parameters == 2 * 16 * 64 + 64 + 16
    np.save(tmp_path / "rows.npy", np.ones((500, 32), np.float32))
    with pytest.raises(NotKnown):
        again.memory(config)

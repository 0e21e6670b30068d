"""What is kept of traces: found again by the same question, and only by that."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumline.bench import trace_store
from drumline.bench.sources import loaded_sources, stamp, unchanged
from drumline.bench.trace_store import TraceStore, question, users_store
from drumline.config import RunConfig
from drumline.config.environment import CACHE_FOLDER
from drumline.config.load import override

OPTIONS = {"world_size": 2, "micro_batch": 8, "selected": 0.0}
ANSWER = {"trace": {"sizes": [1, 2, 3]}}


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    np.save(tmp_path / "rows.npy", np.zeros((64, 4), np.float32))
    task = {"name": "sae", "activations": str(tmp_path / "rows.npy"), "latents": 8, "k": 2}
    return RunConfig.model_validate({"steps": 3, "global_batch": 8, "task": task})


@pytest.fixture
def store(tmp_path: Path) -> TraceStore:
    return TraceStore(tmp_path / "cache" / "traces")


def asked(config: RunConfig, *overrides: str, kind: str = "memory", **options: Any) -> str:
    return question(override(config, list(overrides)), kind, {**OPTIONS, **options})


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "traces").iterdir())


@pytest.mark.parametrize(
    "changed",
    [
        "task.latents=16",
        "task.k=3",
        "optimizer.name=sgd",
        "precision=bf16",
        "global_batch=16",
        "distributed.mode=sharded",
        "clip_norm=1.0",
        "steps=4",
    ],
)
def test_a_key_that_a_step_may_depend_on_makes_another_question(
    config: RunConfig, changed: str
) -> None:
    assert asked(config, changed) != asked(config)


@pytest.mark.parametrize(
    "changed",
    ["name=other", "seed=7", "devices=cpu:4", "run_dir=r", "runs_dir=s", "logging.every_steps=1"],
)
def test_a_key_that_no_step_depends_on_does_not(config: RunConfig, changed: str) -> None:
    assert asked(config, changed) == asked(config)


def test_what_is_traced_and_how_makes_another_question(config: RunConfig) -> None:
    others = {
        asked(config, kind="work"),
        asked(config, world_size=4),
        asked(config, micro_batch=4),
        asked(config, selected=0.1),
    }
    assert len(others | {asked(config)}) == 5


def test_another_installation_asks_another_question(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = asked(config)
    installation = trace_store._installation()
    for place in range(len(installation)):
        other = [*installation[:place], "another", *installation[place + 1 :]]
        monkeypatch.setattr(trace_store, "_installation", lambda other=other: other)
        assert asked(config) != before


def test_data_that_is_another_under_the_same_name_makes_another_question(
    config: RunConfig, tmp_path: Path
) -> None:
    before = asked(config)
    np.save(tmp_path / "rows.npy", np.zeros((64, 6), np.float32))
    assert asked(config) != before
    folder = override(config, [f"task.activations={tmp_path / 'shards'}"])
    absent = asked(folder)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "0.npy").write_bytes(b"a")
    one = asked(folder)
    (tmp_path / "shards" / "1.npy").write_bytes(b"b")
    assert len({absent, one, asked(folder)}) == 3


def test_an_answer_is_found_again_and_can_be_replaced(store: TraceStore, tmp_path: Path) -> None:
    assert store.get("a") is None
    store.put("a", ANSWER, {})
    assert store.get("a") == ANSWER
    store.put("a", {"trace": {}}, {})
    assert store.get("a") == {"trace": {}}
    assert [path.name for path in kept(tmp_path)] == ["a.json"]
    assert (tmp_path / "cache" / "traces").stat().st_mode & 0o777 == 0o700


def test_an_answer_of_code_that_has_changed_counts_no_more(
    store: TraceStore, tmp_path: Path
) -> None:
    code = tmp_path / "model.py"
    code.write_text("layers = 2\n")
    state = stamp(code)
    assert state is not None
    store.put("a", ANSWER, {str(code): state})
    assert store.get("a") == ANSWER
    code.write_text("layers = 12\n")
    assert store.get("a") is None
    code.unlink()
    assert store.get("a") is None


def test_an_answer_whose_code_is_not_known_is_not_kept(store: TraceStore, tmp_path: Path) -> None:
    store.put("a", ANSWER, None)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_a_file_cut_short_is_as_one_that_is_not_there(
    store: TraceStore, tmp_path: Path, cut: int
) -> None:
    store.put("a", ANSWER, {})
    (path,) = kept(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    assert store.get("a") is None
    store.put("a", ANSWER, {})
    assert store.get("a") == ANSWER


@pytest.mark.parametrize("text", ["[]", "{}", "null", '{"answer": 3, "sources": {}}', "\xff"])
def test_a_file_that_somebody_else_wrote_is_ignored(
    store: TraceStore, tmp_path: Path, text: str
) -> None:
    store.put("a", ANSWER, {})
    (path,) = kept(tmp_path)
    path.write_text(text, encoding="latin-1")
    assert store.get("a") is None


def test_a_changed_number_is_seen(store: TraceStore, tmp_path: Path) -> None:
    store.put("a", ANSWER, {})
    (path,) = kept(tmp_path)
    data = json.loads(path.read_text())
    data["answer"]["trace"]["sizes"][0] = 4
    path.write_text(json.dumps(data))
    assert store.get("a") is None


@pytest.mark.parametrize("folder", ["/dev/null/traces", "/proc/nothing", None])
def test_a_folder_that_cannot_be_used_keeps_nothing(folder: str | None) -> None:
    store = TraceStore(None if folder is None else Path(folder))
    store.put("a", ANSWER, {})
    assert store.get("a") is None


def test_beyond_the_bound_goes_what_was_not_asked_for_the_longest(
    store: TraceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_store, "MOST_FILES", 3)
    for age, name in enumerate("abc"):
        store.put(name, ANSWER, {})
        os.utime(tmp_path / "cache" / "traces" / f"{name}.json", (age, age))
    assert store.get("a") == ANSWER  # now it is the youngest
    store.put("d", ANSWER, {})
    assert [path.stem for path in kept(tmp_path)] == ["a", "c", "d"]
    size = kept(tmp_path)[0].stat().st_size
    monkeypatch.setattr(trace_store, "MOST_BYTES", 2 * size)
    store.put("e", ANSWER, {})
    assert len(kept(tmp_path)) == 2 and store.get("e") == ANSWER


def _write_often(folder: Path, number: int) -> None:
    store = TraceStore(folder)
    for _ in range(50):
        store.put("same", {"trace": {"from": number, "sizes": list(range(2000))}}, {})


def test_two_who_write_the_same_at_once_leave_one_whole_answer(
    store: TraceStore, tmp_path: Path
) -> None:
    folder = tmp_path / "cache" / "traces"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_often, args=(folder, n)) for n in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        found = store.get("same")
        assert found is None or found["trace"]["sizes"][-1] == 1999
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = store.get("same")
    assert found is not None and found["trace"]["from"] in (0, 1)
    assert [path.name for path in kept(tmp_path)] == ["same.json"]


def test_the_users_store_is_in_the_folder_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "cache"))
    users_store().put("a", ANSWER, {})
    assert [path.name for path in kept(tmp_path)] == ["a.json"]


def test_sources_are_files_of_ones_own_and_one_for_each_package() -> None:
    sources = loaded_sources()
    assert sources is not None and unchanged(sources)
    assert trace_store.__file__ in sources and __file__ in sources
    assert np.__file__ in sources
    assert np.linalg.__file__ not in sources and json.__file__ not in sources

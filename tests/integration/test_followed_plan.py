"""What `drumline plan` has chosen is what `drumline train` does, without tracing anything again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import PROGRAMS, Finished, run_to_end, write_config

from drumline.bench.whole_plan import ALL_THE_SAME, PREDICTED_BEFORE
from drumline.launch.preflight import NOT_PREDICTED

Plan = dict[str, Any]
TOO_LARGE = 2**24
"""Samples that no L4 holds at once."""
CHOSEN = ("mode", "world_size", "shares", "micro_batch", "candidates", "memory")


class User:
    """Somebody with a config, cards, and a cache of their own."""

    def __init__(self, folder: Path, cards: str, **keys: Any) -> None:
        self.folder, self.cards = folder, cards
        np.save(folder / "rows.npy", np.zeros((4096, 64), np.float32))
        task = {"name": "sae", "activations": str(folder / "rows.npy"), "latents": 512, "k": 8}
        config = {"steps": 10, "global_batch": 512, "task": task, **keys}
        self.config = write_config(folder / "config.yaml", config)

    def _run(self, *words: str | Path) -> Finished:
        cache = {"DRUMLINE_CACHE_DIR": str(self.folder / "cache")}
        locks = {"DRUMLINE_LOCK_FOLDER": str(self.folder / "locks")}
        paths = [str(self.folder), str(PROGRAMS), os.environ.get("PYTHONPATH", "")]
        code = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return run_to_end(words, self.folder, **cache, **locks, **code)

    def plan(self, *overrides: str) -> Finished:
        command = ("-m", "drumline", "plan", self.config, "--simulate", self.cards, "--json")
        return self._run(*command, *overrides)

    def dry_run(self, *overrides: str) -> Finished:
        command = ("train", str(self.config), "--dry-run", "--json")
        return self._run(PROGRAMS / "on_cards.py", self.cards, *command, *overrides)


def planned(done: Finished) -> Plan:
    read: Plan = json.loads(done.succeeded().out)
    return read.get("plan", read)


def chosen(plan: Plan) -> Plan:
    """What a plan says but for words; and names, which of simulated cards say so."""
    return {key: plan[key] for key in CHOSEN} | {"on": [d["uuid"] for d in plan["devices"]]}


def test_a_training_follows_the_plan_that_was_made_before(tmp_path: Path) -> None:
    user = User(tmp_path, "8xH100")
    blind = planned(user.dry_run())
    assert blind["reasons"][-1] == NOT_PREDICTED
    assert (blind["world_size"], blind["memory"]) == (8, [])
    seen = planned(user.plan())
    assert seen["mode"] == "none"  # so small a model is not faster on several
    follows = planned(user.dry_run("name=another", "seed=3"))
    assert chosen(follows) == chosen(seen)
    assert follows["reasons"] == [*seen["reasons"], PREDICTED_BEFORE]
    assert planned(user.dry_run("task.latents=1024"))["reasons"][-1] == NOT_PREDICTED
    again = planned(user.dry_run("devices=2"))
    assert (again["world_size"], again["reasons"][-1]) == (2, PREDICTED_BEFORE)


def test_one_that_does_not_fit_is_refused_as_by_the_plan_with_a_way_on(tmp_path: Path) -> None:
    user = User(tmp_path, "1xL4", global_batch=TOO_LARGE)
    assert planned(user.dry_run())["world_size"] == 1
    refused = json.loads(user.plan().ended_with(2).out)["error"]
    also = json.loads(user.dry_run().ended_with(2).out)["error"]
    assert also["message"] == refused["message"] and "short by" in also["message"]
    assert also["remedy"].startswith(refused["remedy"])
    assert "DRUMLINE_CACHE_DIR=/dev/null" in also["remedy"]
    fitting = refused["values"]["micro_batch"]
    smaller = planned(user.plan(f"micro_batch={fitting}"))
    assert chosen(planned(user.dry_run(f"micro_batch={fitting}"))) == chosen(smaller)
    assert smaller["micro_batch"] == fitting


def test_replicas_that_fit_nowhere_are_cut_among_ranks_as_in_the_plan(tmp_path: Path) -> None:
    # 16 x 8192 x 8192 weights are 4 GiB, with gradients and Adam's moments four times that.
    task = {"name": "stacked_config:StackedConfig", "layers": 16, "width": 8192}
    user = User(tmp_path, "4xT4", global_batch=16, task=task)
    assert planned(user.dry_run())["mode"] == "distributed"
    seen = planned(user.plan())
    assert (seen["mode"], seen["world_size"]) == ("sharded", 4)
    assert chosen(planned(user.dry_run())) == chosen(seen)
    named = "distributed.mode=distributed"  # a mode that is named is never changed
    refused = json.loads(user.plan(named).ended_with(2).out)["error"]["message"]
    assert json.loads(user.dry_run(named).ended_with(2).out)["error"]["message"] == refused


def test_a_users_own_code_that_was_edited_is_not_taken_for_what_was_traced(tmp_path: Path) -> None:
    for name in ("stacked_config.py", "stacked_task.py"):
        shutil.copy(PROGRAMS / name, tmp_path / name)
    task = {"name": "stacked_config:StackedConfig", "layers": 2, "width": 64}
    user = User(tmp_path, "2xL4", global_batch=16, task=task)
    user.plan().succeeded()
    assert planned(user.dry_run())["reasons"][-2] == PREDICTED_BEFORE
    with (tmp_path / "stacked_task.py").open("a") as file:
        file.write("# edited\n")
    assert planned(user.dry_run())["reasons"][-1] == NOT_PREDICTED


def test_a_run_that_has_begun_is_not_refused(tmp_path: Path) -> None:
    user = User(tmp_path, "1xL4", global_batch=TOO_LARGE)
    user.plan().ended_with(2)
    (tmp_path / "run").mkdir()
    write_config(tmp_path / "run" / "config.yaml", {})
    goes_on = planned(user.dry_run("run_dir=run"))
    assert goes_on["reasons"][-1].startswith(ALL_THE_SAME) and "short by" in goes_on["reasons"][-1]
    assert (goes_on["world_size"], goes_on["memory"]) == (1, [])


@pytest.mark.parametrize("devices", ["cpu:2", "cpu"])
def test_processes_on_the_cpu_are_planned_as_ever(tmp_path: Path, devices: str) -> None:
    user = User(tmp_path, "1xL4", devices=devices)
    before = planned(user.dry_run())
    user.plan().succeeded()
    assert planned(user.dry_run()) == before

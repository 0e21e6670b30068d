"""Switches of a run: chosen before its first step without a trace, and kept when it is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from counted_work import Cheating, Clock, Failing, Repeating, Rounds, rules
from safetensors.torch import load_file
from torch import Tensor, nn

from drumline.config import RunConfig, parse_config
from drumline.errors import ConfigError
from drumline.run_directory import RunDirectory
from drumline.training import Result, Trainer
from drumline.training.own_model import OwnModelTask
from drumline.training.performance import in_trainer
from drumline.training.step import StandardStep, Step, StepParts

DRAW = torch.Generator().manual_seed(0)
INPUTS = torch.randn(40, 3, generator=DRAW)
DATA = [(row, row.sum().unsqueeze(0)) for row in INPUTS]


def squared(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return (model(inputs) - targets).square().sum(1)


class Bench:
    """Runs of one model whose steps cost counted work, with switches of the test's own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.clock = folder, Clock()
        self.switches: list[Any] = []
        self.models: list[Repeating] = []
        monkeypatch.setattr(in_trainer, "Rules", lambda: rules(self.clock))
        monkeypatch.setattr(in_trainer, "_switches", lambda session: self.switches)

    def config(self, name: str, **keys: Any) -> RunConfig:
        return parse_config(
            {
                "steps": 8,
                "global_batch": 8,
                "micro_batch": 3,
                "clip_norm": 1.0,
                "run_dir": str(self.folder / name),
                "optimizer": {"lr": 0.05},
                "logging": {"every_steps": 1},
                "checkpoint": {"every_steps": 4, "keep_last": 9},
                **keys,
            }
        )

    def fit(self, name: str, switches: list[Any] | None = None, **keys: Any) -> Result:
        self.switches = [Rounds("compile", 2)] if switches is None else switches

        def build() -> nn.Module:
            self.models.append(Repeating(self.clock))
            return self.models[-1]

        config = self.config(name, **keys)
        return Trainer(config, model=build, data=DATA, loss=squared).fit()

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        return [e for e in RunDirectory(self.folder / name).events() if e["kind"] == kind]

    def weights(self, name: str) -> dict[str, Tensor]:
        return load_file(self.folder / name / "checkpoints/step-0000000008/model.safetensors")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


MEASURED = {"measure": True}


def test_by_default_nothing_is_tried(bench: Bench) -> None:
    bench.fit("plain")
    assert bench.events("plain", "performance_report") == []
    assert bench.models[0].rounds == 4


def test_what_is_tried_leaves_no_trace_in_the_run(bench: Bench) -> None:
    bench.fit("plain")
    named = [Cheating(1.5), Failing("broken", "forward")]
    for switch, name in zip(named, ("channels_last", "cuda_graphs"), strict=True):
        switch.name = name
    bench.fit("tried", [*named, Rounds("compile", 2)], performance=MEASURED)
    (report,) = bench.events("tried", "performance_report")
    found = {row["switch"]: row["outcome"] for row in report["rows"]}
    assert found == {
        "channels_last": "undone", "cuda_graphs": "undone", "compile": "applied",
        "loader": "not applicable",
    }  # fmt: skip
    assert report["step"] == 0
    assert bench.models[1].rounds == 2
    assert same(bench.weights("plain"), bench.weights("tried"))
    assert bench.events("tried", "step")[-1]["loss"] == bench.events("plain", "step")[-1]["loss"]
    assert bench.events("tried", "step")[0]["samples"] == 8


def test_a_resumed_run_uses_what_it_began_with(bench: Bench) -> None:
    """Where it goes on, the switch would cost time and another would bring some."""
    bench.fit("unbroken", performance=MEASURED)
    bench.fit("resumed", performance=MEASURED, steps=4)
    again = [Rounds("channels_last", 1), Rounds("compile", 100)]
    bench.fit("resumed", again, performance=MEASURED)
    first, second = bench.events("resumed", "performance_report")
    assert [row["switch"] for row in first["rows"] if row["outcome"] == "applied"] == ["compile"]
    assert [(row["switch"], row["reason"]) for row in second["rows"]] == [
        ("compile", "as at the start of the run")
    ]
    assert second["step"] == 4
    assert bench.models[-1].rounds == 100
    assert same(bench.weights("unbroken"), bench.weights("resumed"))


def test_what_the_config_names_is_used_without_asking(bench: Bench) -> None:
    bench.fit("named", [Rounds("compile", 100)], performance={"compile": True})
    (report,) = bench.events("named", "performance_report")
    assert [(row["switch"], row["outcome"], row["reason"]) for row in report["rows"]] == [
        ("compile", "applied", "as the config says")
    ]
    assert report["gain"] is None
    assert bench.models[-1].rounds == 100


def test_what_the_config_forbids_is_not_tried(bench: Bench) -> None:
    bench.fit("without", performance={"measure": True, "compile": False, "loader": False})
    (report,) = bench.events("without", "performance_report")
    assert report["rows"] == []
    assert bench.models[-1].rounds == 4


def test_what_was_named_and_does_not_work_is_reported_and_left_out(bench: Bench) -> None:
    broken = Failing("compile", "forward")
    bench.fit("plain")
    bench.fit("broken", [broken], performance={"compile": True})
    (report,) = bench.events("broken", "performance_report")
    (row,) = report["rows"]
    assert row["outcome"] == "undone"
    assert row["reason"].startswith("RuntimeError: ")
    assert same(bench.weights("plain"), bench.weights("broken"))


def test_a_task_with_a_step_of_its_own_is_not_tried(bench: Bench) -> None:
    class OwnStep(StandardStep):
        pass

    class OwnTask(OwnModelTask):
        def build_step(self, parts: StepParts) -> Step:
            return OwnStep(parts)

    task = OwnTask(lambda: Repeating(bench.clock), DATA, squared)
    Trainer(bench.config("own", performance=MEASURED), task).fit()
    (report,) = bench.events("own", "performance_report")
    (row,) = report["rows"]
    assert (row["outcome"], row["reason"]) == (
        "not applicable", "the task takes steps of its own (OwnStep)",
    )  # fmt: skip


def test_graphs_of_code_that_is_not_compiled_are_refused() -> None:
    with pytest.raises(ConfigError, match="cuda_graphs=true needs compile=true"):
        parse_config({"steps": 1, "performance": {"cuda_graphs": True}})

"""`drumline plan` and `drumline estimate`, on a machine without GPUs."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from drumline.bench import traces, whole_plan, workload_trace
from drumline.bench.memory_trace import answer
from drumline.cli.estimate import parse_counts
from drumline.cli.main import run
from drumline.config import RunConfig
from drumline.errors import BadInput
from drumline.hardware import Host, Machine
from drumline.hardware.device_locks import DeviceLocks, lock_folder
from drumline.launch import preflight

PRICES = """
currency: EUR
prices:
  - {devices: [H100], per_hour: 2.0, vendor: ours, source: a contract, date: "2026-01-31"}
"""


class TracingHere(AbstractContextManager["TracingHere"]):
    """A TracingProcess without the process; nobody knows its sources, so nothing is kept."""

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, config: RunConfig, options: dict[str, Any]) -> dict[str, Any]:
        return answer({"config": config.model_dump(mode="json"), "options": options})


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    # In this process: another one each time would load torch again.
    monkeypatch.setattr(
        traces, "ask_workload", lambda config: {"trace": workload_trace.trace(config).as_dict()}
    )
    monkeypatch.setattr(whole_plan, "TracingProcess", TracingHere)
    monkeypatch.setattr(preflight, "visible_machine", lambda: Machine(Host("h", cpu_usable=2)))


@pytest.fixture
def config() -> str:
    rows = np.random.default_rng(0).standard_normal((1000, 16)).astype(np.float32)
    np.save("rows.npy", rows)
    task = {"name": "sae", "activations": "rows.npy", "latents": 64, "k": 4}
    task |= {"architecture": "standard", "evaluation": {"samples": 100}}
    given = {"steps": 3600, "global_batch": 64, "precision": "bf16", "task": task}
    Path("sae.yaml").write_text(yaml.safe_dump(given))
    return "sae.yaml"


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(list(arguments)) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_laptop_plans_for_eight_cards_and_writes_nothing(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(Path().iterdir())
    shown = output(capsys, "plan", config, "--simulate", "8xH100", "--gpus", "all", "--explain")
    assert sorted(Path().iterdir()) == before
    assert "distributed over nccl · 8 ranks" in shown
    assert "(simulated)" in shown
    assert "global batch 64 / 8 devices = 8 samples each" in shown
    # 6 products of 2 x 16 x 64 = 12.3 kFLOP a sample.
    assert "8 samples × 12.3 kFLOP = 98.3 kFLOP" in shown
    assert "taken by auto where a replica fits no device" in shown


def test_what_a_run_holds_here_is_neither_planned_with_nor_timed(
    config: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = Machine.probe(simulate="2xL4")
    monkeypatch.setattr(preflight, "visible_machine", lambda: here)
    monkeypatch.setenv("DRUMLINE_LOCK_FOLDER", str(tmp_path / "locks"))
    first, second = (device.uuid for device in here.devices)
    with DeviceLocks(lock_folder(), [first]) as locks:
        locks.tell(tmp_path / "theirs")
        read = json.loads(output(capsys, "plan", config, "--json"))
        assert [device["uuid"] for device in read["devices"]] == [second]
        assert any(f"held by process {os.getpid()} of" in reason for reason in read["reasons"])
        # In the place of devices that are not here nobody is asked.
        read = json.loads(output(capsys, "plan", config, "--simulate", "2xL4", "--json"))
        assert [device["uuid"] for device in read["devices"]] == [first, second]
        read = json.loads(output(capsys, "plan", config, "--per-device", "8", "--json"))
        assert (read["global_batch"], len(read["devices"])) == (8, 1)
        assert run(["estimate", config, "devices=0,", "--gpus", "1", "--calibrate"]) == 2
        assert f"is held by process {os.getpid()} of" in " ".join(capsys.readouterr().err.split())


def test_the_plan_for_programs(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("plan", config, "--simulate", "2xH100", "--gpus", "2", "--json")
    read = json.loads(output(capsys, *asked))
    assert read["shares"] == [32, 32]
    assert read["batch"]["micro_batches"] == [[32], [32]]
    assert read["learning_rates"] == {"none": 1e-3, "linear": 1e-3, "sqrt": 1e-3}
    assert [c["mode"] for c in read["candidates"]][:2] == ["none", "distributed"]
    assert read["missing"] == []


def test_the_plan_says_what_memory_each_rank_needs(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    read = json.loads(output(capsys, "plan", config, "--simulate", "2xH100+1xL4", "--json"))
    assert [(kind["chosen"], kind["device"][:11]) for kind in read["memory"]] == [
        (2, "NVIDIA H100"),
        (0, "NVIDIA L4 ("),
    ]
    for kind in read["memory"]:
        needed = kind["needed"]
        assert kind["fits"] and kind["left"] == kind["capacity"] - needed["total"]
        assert needed["total"] == needed["reserved_peak"] + needed["context"]
        assert needed["low"] <= needed["reserved_peak"] <= needed["high"]
        assert kind["largest_micro_batch"] == 32  # all of a rank's share
        weights = 4 * (2 * 64 * 16 + 64 + 16)
        assert weights <= needed["parameters"] <= weights + 2048
    shown = output(capsys, "plan", config, "--simulate", "2xH100+1xL4", "--explain")
    assert "memory on needed range free largest micro-batch" in shown
    assert "on the device = reserved + context" in shown
    assert "a guess, not measured on such a card" not in shown.split("memory of NVIDIA L4")[0]


def test_a_run_that_fits_nowhere_is_told_the_numbers_and_what_fits(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    large = ["global_batch=4194304", "--simulate", "2xL4", "task.latents=2048", "--gpus", "2"]
    assert run(["plan", config, *large]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "on each of 2 devices with micro-batches of 2097152" in said
    assert "short by" in said
    fitting = said.split("micro_batch=")[1].split()[0]
    read = json.loads(output(capsys, "plan", config, *large, f"micro_batch={fitting}", "--json"))
    assert read["memory"][0]["fits"]


@pytest.mark.parametrize("axis", ["shard", "pipeline"])
def test_a_mesh_has_a_plan_and_a_pipeline_no_memory_estimate(
    config: str, capsys: pytest.CaptureFixture[str], axis: str
) -> None:
    keys = ["distributed.mode=hybrid", f"distributed.mesh.{axis}=2"]
    read = json.loads(output(capsys, "plan", config, "--simulate", "2xH100", *keys, "--json"))
    if axis == "shard":
        assert read["memory"][0]["fits"]
    else:
        assert read["memory"] == []
        assert any("mesh.pipeline" in line for line in read["missing"])
    assert ("so with equal stages a rank waits" in read["reasons"][-1]) == (axis == "pipeline")


def test_a_config_without_a_task_says_why_there_is_no_memory_estimate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("plain.yaml").write_text("steps: 3\nglobal_batch: 8\n")
    read = json.loads(output(capsys, "plan", "plain.yaml", "--json"))
    assert read["memory"] == []
    assert any("names no task" in line for line in read["missing"])


def test_out_is_the_only_file_a_plan_writes(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output(capsys, "plan", config, "--out", "plan.json", "micro_batch=10")
    read = json.loads(Path("plan.json").read_text())
    assert read["batch"]["micro_batches"] == [[10, 10, 10, 2], [10, 10, 10, 2]]


def test_without_a_profile_the_plan_says_what_it_lacks(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = output(capsys, "plan", config)
    assert "2 × CPU process" in shown
    assert "no step times: no profile is stored for these devices" in shown


def test_samples_a_device_set_the_global_batch_with_advice_that_is_not_applied(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("plan", config, "--simulate", "8xH100", "--per-device", "32")
    read = json.loads(output(capsys, *arguments, "--json"))
    assert read["global_batch"] == 256
    assert read["learning_rates"] == pytest.approx({"none": 1e-3, "linear": 4e-3, "sqrt": 2e-3})
    assert "linear: 0.001 × 256 / 64 = 0.004" in output(capsys, *arguments)


def test_an_estimate_from_a_stored_profile_with_ones_own_prices(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.yaml").write_text(PRICES)
    arguments = ("estimate", config, "--gpus", "1,8", "--profile", "h100-sxm")
    read = json.loads(output(capsys, *arguments, "--prices", "mine.yaml", "--json"))
    assert [row["devices"] for row in read["rows"]] == [1, 8]
    for row in read["rows"]:
        hours = row["devices"] * 3600 * row["step_s"] / 3600  # 3600 steps
        assert row["cost"] == pytest.approx(2.0 * hours)
    assert read["currency"] == "EUR"
    shown = output(capsys, *arguments, "--explain")
    assert "3,600 steps of 64 samples" in shown
    assert "measured figures" in shown
    assert "the latency on 8 ranks taken as on 2" in shown


def test_a_missing_price_is_said_to_be_missing(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("none.yaml").write_text("prices: []\n")
    arguments = ("estimate", config, "--profile", "h100-sxm", "--prices", "none.yaml")
    shown = output(capsys, *arguments)
    assert "missing" in shown
    assert "the price of H100 SXM is missing from the price list: no cost" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "sae.yaml", "--gpus", "2"], "2 GPUs were asked for, and this machine has none"),
        (["plan", "sae.yaml", "--simulate", "8xH1"], "H1"),
        (["plan", "sae.yaml", "--gpus", "cpu:65"], "global_batch 64 cannot be shared by 65"),
        (["plan", "missing.yaml"], "There is no file missing.yaml"),
        (["plan", "sae.yaml", "--out", "no/plan.json"], "no/plan.json cannot be written"),
        (["estimate", "sae.yaml"], "No profile is stored for the devices of this machine"),
        (["estimate", "sae.yaml", "--gpus", "1,65"], "global_batch 64 cannot be shared by 65"),
        (["estimate", "sae.yaml", "--gpus", "1,two"], "does not list numbers of devices"),
        (["estimate", "sae.yaml", "--profile", "h900"], "no profile 'h900'"),
        (["estimate", "sae.yaml", "--prices", "no.yaml"], "There is no file no.yaml"),
    ],
)
def test_bad_input_is_one_clear_line(
    config: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert said in " ".join(shown.err.split())


@pytest.mark.parametrize(
    ("text", "counts", "on_cpu"),
    [("4,1,2,2", [1, 2, 4], False), ("cpu:2, cpu:1", [1, 2], True)],
)
def test_counts(text: str, counts: list[int], on_cpu: bool) -> None:
    assert parse_counts(text) == (counts, on_cpu)


@pytest.mark.parametrize("text", ["", "0", "1,cpu:2", "-1", "1.5"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(BadInput, match="does not list numbers"):
        parse_counts(text)

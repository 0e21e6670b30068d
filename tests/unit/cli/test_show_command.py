import json
from pathlib import Path
from typing import Any

import pytest

from drumline.cli.main import run


def shown(capsys: pytest.CaptureFixture[str], name: str) -> str:
    assert run(["show", name]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], name: str) -> dict[str, Any]:
    assert run(["show", name, "--json"]) == 0
    page: dict[str, Any] = json.loads(capsys.readouterr().out)
    return page


def test_the_page_tells_plan_curves_restarts_and_verdict(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run("mine-1").train().end("done")
    text = shown(capsys, "mine")
    assert "distributed over gloo · 2 ranks · 2 × H100 · micro-batch 4" in text
    assert "the second device is three times slower [measured]" in text
    assert "step 10 to 40" in text
    # 100 / step over steps 10, 20, 30, 40 is 10, 5, 3.33, 2.5: 5 is 2.7 eighths up.
    assert "█▃▁▁" in text
    assert "Rank 1 failed: killed" in text
    assert "Attempt 1 on 2 ranks goes on from step 10" in text
    assert "Done: step 40, 480 samples in 1 min 15 s" in text
    assert "1.5 kB" in text


def test_json_holds_what_led_to_the_final_weights(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run("mine-1").train().end("done")
    page = as_json(capsys, "mine-1")
    assert page["curves"]["loss"] == [[10, 10.0], [20, 5.0], [30, 100 / 30], [40, 2.5]]
    assert [event["step"] for event in page["evaluations"]] == [10, 20, 30, 40]
    assert page["plan"]["shares"] == [9, 3]
    assert page["result"]["status"] == "done"
    assert len(page["attempts"]) == 2


def test_a_run_may_be_named_by_path(made_run: type, capsys: pytest.CaptureFixture[str]) -> None:
    made_run("mine-1")
    assert as_json(capsys, "runs/mine-1")["name"] == "mine-1"
    assert as_json(capsys, str(Path("runs/mine-1").resolve()))["name"] == "mine-1"


def test_an_exact_name_wins_over_longer_ones(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run("mine")
    made_run("mine-1")
    assert as_json(capsys, "mine")["name"] == "mine"


def test_an_ambiguous_name_names_all_it_may_be(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run("mine-1")
    made_run("mine-2")
    assert run(["show", "mine"]) == 2
    error = capsys.readouterr().err
    assert "mine-1" in error
    assert "mine-2" in error


@pytest.mark.parametrize("name", ["other", "runs", "/nowhere/at/all"])
def test_an_unknown_run_is_bad_input(
    name: str, made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run("mine-1")
    assert run(["show", name]) == 2
    assert "drumline runs" in capsys.readouterr().err


def test_a_run_that_has_only_begun_has_a_page(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run("mine-1")
    text = shown(capsys, "mine")
    assert "mine-1  new" in text
    assert "Verdict" not in text


def test_torn_and_foreign_lines_are_passed_over(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_run("mine-1").train()
    with made.run.events_path.open("ab") as file:
        file.write(b'{"v": 1, "kind": "step", "st\n\xff\xfe\n[1]\n{"v": 99, "kind": "step"}\n')
        file.write(b'{"v": 1, "t": "x", "kind": "step", "step": "nine", "metrics": 4}\n')
        file.write(b'{"v": 1, "kind": "evaluation", "metrics": []}\n{"v": 1, "kind": "warning"}\n')
    assert as_json(capsys, "mine")["step"] == 40
    shown(capsys, "mine")


def test_numbers_that_are_not_finite_stay_json(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_run("mine-1")
    for step, loss in ((1, 1.0), (2, float("nan")), (3, float("inf"))):
        made.log.emit("step", step=step, loss=loss)
    assert as_json(capsys, "mine")["curves"]["loss"] == [[1, 1.0], [2, "nan"], [3, "inf"]]
    shown(capsys, "mine")


def test_a_stopped_run_says_how_to_go_on(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run("mine-1").train(last=30).end("stopped", step=30)
    assert "drumline train --resume runs/mine-1" in shown(capsys, "mine")


def test_performance_switches_are_a_table_with_graph_breaks(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_run("fast")
    breaks = [{"reason": "Tensor.item()", "where": "model.py:12", "times": 1}]
    rows = [
        {
            "switch": "compile", "outcome": "applied", "reason": "it saves a lot",
            "before_s": 0.2, "after_s": 0.15, "gain": 0.25, "deviation": 2e-6,
            "details": {"graphs": 2, "graph_breaks": breaks},
        },
        {"switch": "cuda_graphs", "outcome": "not applicable", "reason": "only for CUDA devices"},
    ]  # fmt: skip
    made.log.emit(
        "performance_report", rows=rows, before_s=0.2, after_s=0.15, gain=0.25, seconds=9.0
    )
    made.train().end("done")
    text = shown(capsys, "fast")
    (line,) = [line for line in text.splitlines() if line.strip().startswith("compile")]
    assert line.split()[:2] == ["compile", "applied"]
    for part in ("200 ms", "150 ms", "+25.0%", "2e-06", "it saves a lot"):
        assert part in line
    assert "graph break at model.py:12: Tensor.item()" in text
    assert "Performance switches on: compile; a step takes 150 ms, before 200 ms" in text
    assert as_json(capsys, "fast")["performance"]["rows"] == rows
    made_run("plain").train().end("done")
    assert "Performance" not in shown(capsys, "plain")
    assert as_json(capsys, "plain")["performance"] is None

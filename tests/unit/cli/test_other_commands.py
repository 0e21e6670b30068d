from pathlib import Path
from typing import Any

import pytest

from drumline.cli import launching
from drumline.cli.main import run


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the launcher was asked for; it does nothing."""
    asked: list[Any] = []

    def take(request: Any, *others: object) -> launching.Outcome:
        asked.append(request)
        return launching.Outcome("done")

    for name in ("run_script", "extract", "export", "demo"):
        monkeypatch.setattr(launching, name, take)
    return asked


def test_a_script_gets_its_own_arguments_in_order(requests: list[Any]) -> None:
    Path("s.py").touch()
    assert run(["run", "s.py", "--lr", "3e-4", "--gpus", "0,2", "-v", "name"]) == 0
    assert requests[0].arguments == ["--lr", "3e-4", "-v", "name"]
    assert requests[0].gpus == "0,2"


def test_what_follows_two_dashes_is_the_scripts(requests: list[Any]) -> None:
    Path("s.py").touch()
    assert run(["run", "--gpus", "2", "s.py", "--", "--gpus", "7", "--json"]) == 0
    assert requests[0].arguments == ["--gpus", "7", "--json"]
    assert requests[0].gpus == "2"


def test_a_missing_script_is_bad_input(requests: list[Any]) -> None:
    assert run(["run", "no.py"]) == 2
    assert not requests


def test_extraction_takes_text_as_the_shell_expands_it(requests: list[Any]) -> None:
    for name in "abc":
        Path(f"{name}.txt").touch()
    options = ["--model", "m.gguf", "--layer", "15", "--out", "acts", "--dtype", "float32"]
    assert run(["activations", "extract", "--text", "a.txt", "b.txt", "c.txt", *options]) == 0
    request = requests[0]
    assert request.text == ("a.txt", "b.txt", "c.txt")
    assert (request.model, request.layer, request.dtype) == ("m.gguf", 15, "float32")


@pytest.mark.parametrize("wrong", [["--layer", "-1"], ["--dtype", "int8"], ["--length", "1"]])
def test_extraction_refuses_bad_input(requests: list[Any], wrong: list[str]) -> None:
    Path("a.txt").touch()
    options = ["--model", "m", "--layer", "1", "--out", "o", "--text", "a.txt"]
    assert run(["activations", "extract", *options, *wrong]) == 2
    assert not requests


def test_export_goes_below_the_run_by_default(requests: list[Any], made_run: type) -> None:
    made_run("mine-1")
    assert run(["sae", "export", "mine", "--format", "saelens", "--checkpoint", "300"]) == 0
    assert requests[0].run == Path("runs/mine-1")
    assert requests[0].out == Path("runs/mine-1/export/saelens")
    assert requests[0].checkpoint == "300"


def test_export_refuses_a_checkpoint_that_is_no_name(requests: list[Any], made_run: type) -> None:
    made_run("mine-1")
    assert run(["sae", "export", "mine", "--format", "saelens", "--checkpoint", "first"]) == 2
    assert not requests

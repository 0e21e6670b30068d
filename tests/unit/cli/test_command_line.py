import json
import subprocess
import sys
from pathlib import Path

import pytest

from drumline.cli import launching
from drumline.cli.main import Commands, app, run
from drumline.errors import BadInput, CheckpointError

HEAVY = {"torch", "transformers", "yaml", "numpy", "wandb", "tensorboard"}


def imported_by(*arguments: str) -> set[str]:
    """Top-level packages that a command line imports, by Python's own account."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "drumline", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    names = (line.rpartition("|")[2].strip() for line in done.stderr.splitlines())
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_imports_nothing_heavy(argument: str) -> None:
    imported = imported_by(argument)
    assert "drumline" in imported
    assert not imported & (HEAVY | {"pydantic"})


@pytest.mark.parametrize("name", Commands.entries)
def test_help_of_a_command_imports_nothing_heavy(name: str) -> None:
    # Typer itself may load pydantic to read the values of options.
    assert not imported_by(name, "--help") & HEAVY


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, entry in Commands.entries.items():
        assert name in shown
        assert entry.summary in shown
    for code in ("0 done", "2 bad input", "75 stopped, resume me", "1 anything else"):
        assert code in shown


@pytest.mark.parametrize("name", Commands.entries)
def test_every_command_has_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert f"drumline {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["nope"], ["train", "--nope"], ["show"], ["sae", "export", "x", "--format", "zip"]],
)
def test_a_command_line_that_makes_no_sense_is_bad_input(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().out == ""
    assert run([*arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"


def test_a_command_that_is_nearly_right_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shwo"]) == 2
    assert "Did you mean 'show'?" in capsys.readouterr().err


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def demo(*request: object) -> launching.Outcome:
        raise error

    monkeypatch.setattr(launching, "demo", demo)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInput("No [red] text.", remedy="Bring [some].", path="a/b"), 2),
        (CheckpointError("No [red] text.", remedy="Bring [some].", path="a/b"), 1),
    ],
)
def test_a_known_error_is_one_message_with_its_exit_code(
    error: BadInput, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, error)
    assert run(["demo"]) == code
    shown = capsys.readouterr()
    assert shown.err == "Error: No [red] text.\n  → Bring [some].\n"
    assert shown.out == ""
    assert run(["demo", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == {"error": error.as_dict()}


def test_an_error_nobody_foresaw_shows_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, ZeroDivisionError("by hand"))
    assert run(["demo", "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["message"] == "Unexpected ZeroDivisionError: by hand"
    assert "Traceback" in shown.err


def test_an_interrupt_is_not_a_request_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert run(["demo"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_stopped_run_asks_to_be_resumed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = launching.Outcome("stopped", 75, "asked to stop", Path("runs/x"), {"fvu": 0.25})
    monkeypatch.setattr(launching, "demo", lambda *request: outcome)
    assert run(["demo"]) == 75
    assert "fraction of variance unexplained  0.25" in capsys.readouterr().out.replace("    ", " ")
    assert run(["demo", "--json"]) == 75
    printed = json.loads(capsys.readouterr().out)
    assert (printed["status"], printed["exit_code"], printed["path"]) == ("stopped", 75, "runs/x")


def test_a_failure_that_no_event_told_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = launching.Outcome("failed", 1, "the port was taken")
    monkeypatch.setattr(launching, "demo", lambda *request: outcome)
    assert run(["demo"]) == 1
    assert "the port was taken" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    from drumline import __version__

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"drumline {__version__}\n"


def test_the_app_offers_to_install_completion(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    assert "--install-completion" in capsys.readouterr().out
    assert app.info.cls is Commands

import os
import subprocess
import sys
from pathlib import Path

from drumline.run_directory import RunDirectory


def complete(line: str) -> list[str]:
    """What bash is offered for a command line, asked as its completion script asks."""
    words = line.split(" ")
    environment = {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_DRUMLINE_COMPLETE": "complete_bash",
    }
    done = subprocess.run(
        [sys.executable, "-m", "drumline"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_commands_and_options() -> None:
    assert complete("drumline r") == ["run", "runs"]
    assert complete("drumline train --dr") == ["--dry-run"]
    assert complete("drumline sae ex") == ["export"]


def test_config_files_and_the_only_folder_is_entered() -> None:
    Path("configs").mkdir()
    for name in ("configs/big.yaml", "configs/small.json", "configs/notes.txt", "other.yml"):
        Path(name).touch()
    assert complete("drumline train ") == ["other.yml", "configs/"]
    assert complete("drumline train con") == ["configs/big.yaml", "configs/small.json"]
    assert complete("drumline train configs/b") == ["configs/big.yaml"]


def test_names_of_runs() -> None:
    for name in ("first-1", "second-2"):
        RunDirectory.create(Path("runs") / name).write_config({})
    Path("runs/second-not-a-run").mkdir()
    assert complete("drumline show ") == ["first-1", "second-2"]
    assert complete("drumline train --resume sec") == ["second-2"]


def test_names_of_tasks_where_help_on_a_config_is_asked() -> None:
    assert "sae" in complete("drumline train --help-config ")

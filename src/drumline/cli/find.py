"""Finding a run by path, name or the start of a name."""

from __future__ import annotations

from pathlib import Path

from drumline.cli.completion import RUNS
from drumline.errors import RunDirectoryError
from drumline.run_directory import RunDirectory, find_runs

NAMED = 6


def find_run(name: str, root: Path = RUNS) -> RunDirectory:
    """The run at the path `name`, or the one below `root` whose name is or starts with it.

    Raises:
        RunDirectoryError: If there is none, or more than one.
    """
    path = Path(name)
    if path.is_dir() and (path / "config.yaml").is_file():
        return RunDirectory(path)
    runs = find_runs(root)
    matching = [run for run in runs if run.path.name.startswith(name)]
    exact = [run for run in matching if run.path.name == name]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if matching:
        raise RunDirectoryError(
            f"{name!r} may be any of {len(matching)} runs: {_listed(matching)}.",
            remedy="Give more of the name, or a path.",
            name=name,
            candidates=[run.path.name for run in matching],
        )
    if path.is_dir():
        return RunDirectory.open(path)
    there = f"There are: {_listed(runs)}." if runs else f"There are no runs in {root}."
    raise RunDirectoryError(
        f"There is no run {name!r}. {there}",
        remedy="List them with: drumline runs",
        name=name,
    )


def _listed(runs: list[RunDirectory]) -> str:
    names = ", ".join(run.path.name for run in runs[:NAMED])
    return f"{names} and {len(runs) - NAMED} more" if len(runs) > NAMED else names

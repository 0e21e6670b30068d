"""What the shell offers after Tab. Reads names only, so that it answers at once."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import typer

CONFIG_SUFFIXES = (".yaml", ".yml", ".json")
RUNS = Path("runs")


def configs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Config files and folders; after --help-config the names of the tasks."""
    if ctx.params.get("help_config"):
        return [name for name in task_names() if name.startswith(incomplete)]
    found = _paths(incomplete)
    while len(found) == 1 and found[0].endswith("/"):
        inside = _paths(found[0])
        if not inside:
            break
        found = inside
    return found


def runs(incomplete: str) -> list[str]:
    """Names of the run directories below ./runs."""
    if not RUNS.is_dir():
        return []
    return sorted(
        path.name
        for path in RUNS.iterdir()
        if path.name.startswith(incomplete) and (path / "config.yaml").is_file()
    )


def task_names() -> list[str]:
    """The tasks of all installed packages, without importing them."""
    return sorted({entry.name for entry in entry_points(group="drumline.tasks")})


def _paths(incomplete: str) -> list[str]:
    folder, _, start = incomplete.rpartition("/")
    root = f"{folder}/" if "/" in incomplete else ""
    try:
        entries = sorted(Path(root or ".").iterdir())
    except OSError:
        return []
    named = [path for path in entries if path.name.startswith(start) and path.name[0] != "."]
    folders = [f"{root}{path.name}/" for path in named if path.is_dir()]
    return [f"{root}{path.name}" for path in named if path.suffix in CONFIG_SUFFIXES] + folders

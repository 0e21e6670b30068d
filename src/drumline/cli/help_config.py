"""`drumline train --help-config`: every key of a config."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from drumline.cli.completion import task_names
from drumline.cli.output import print_json, results
from drumline.config.describe import Key, describe_config
from drumline.config.load import read_mapping


def print_help_config(subject: str | None, *, as_json: bool) -> None:
    """Print all keys; `subject` is a task's name, a config file that names a task, or None.

    Raises:
        ConfigError: If there is no such task.
        BadInput: If the file cannot be read.
    """
    data = read_mapping(Path(subject)) if subject and Path(subject).is_file() else {}
    task = _task(data) if data else subject
    keys = describe_config(task, data)
    if as_json:
        print_json([asdict(key) for key in keys])
        return
    console = results()
    console.print(_table(keys, task))
    if task is None:
        names = ", ".join(task_names()) or "none installed"
        console.print(Text(f"The keys of a task: drumline train --help-config TASK ({names})"))


def _task(data: dict[str, Any]) -> str | None:
    task = data.get("task")
    name = task.get("name") if isinstance(task, dict) else None
    return str(name) if name is not None else None


def _table(keys: list[Key], task: str | None) -> Table:
    """One row a key, indented below its section as in a YAML file."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("key", no_wrap=True)
    table.add_column("default", overflow="fold", max_width=16)
    table.add_column("meaning", ratio=1)
    section = ""
    for key in keys:
        parent, _, name = key.name.rpartition(".")
        if parent != section:
            table.add_row(Text(f"{parent}:", style="bold") if parent else "")
            section = parent
        style = "green" if parent.startswith("task") and task is not None else "cyan"
        default = Text(key.default, style="red" if key.default == "required" else "")
        meaning = Text.assemble(f"{key.meaning} ", (f"({key.type})", "dim"))
        table.add_row(Text(f"  {name}" if parent else name, style=style), default, meaning)
    return table

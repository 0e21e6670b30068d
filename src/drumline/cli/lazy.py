"""A command group that lists its commands from a table and imports one only when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class Entry(NamedTuple):
    """One command of a lazy group: the module whose `app` it is, and its line in the list."""

    module: str
    summary: str


class LazyGroup(TyperGroup):
    """A group whose subclass gives `entries`, in the order of the list."""

    entries: ClassVar[dict[str, Entry]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Stand-ins that know name and summary: enough for lists, completion and suggestions.
        self.commands = {
            name: TyperCommand(name, help=entry.summary) for name, entry in self.entries.items()
        }

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the table."""
        del ctx
        return list(self.entries)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The real command, imported now."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, self.load(name) if stand_in and name else stand_in, rest

    def load(self, name: str) -> Any:
        """Import the module of a command and build it."""
        app: typer.Typer = import_module(self.entries[name].module).app
        command = get_command(app)
        command.name = name
        return command

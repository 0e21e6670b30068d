"""What a watcher found, as it is handed to the policies."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """One finding, equal on all ranks.

    Attributes:
        name: The key of the config that holds its policy, for example "loss_spike".
        message: What was found, with its values, for a person.
        values: The same for a program.
        module: The module it was found in, where it has one.
    """

    name: str
    message: str
    values: dict[str, float] = field(default_factory=dict)
    module: str | None = None

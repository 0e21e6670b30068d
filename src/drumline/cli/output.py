"""The two consoles and how results and errors are put on them.

Results go to standard output; progress, warnings and errors to standard error. With `--json`
standard output holds one JSON value and nothing else.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from rich.console import Console
from rich.text import Text


def results() -> Console:
    """The console for what was asked for."""
    return Console(highlight=False)


def messages() -> Console:
    """The console for progress, warnings and errors."""
    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON value on standard output, indented where a person reads it.

    Numbers that are not finite become text, as in events: JSON has none.
    """
    indent = 2 if sys.stdout.isatty() else None
    plain = json.dumps(_finite(value), indent=indent, default=str, allow_nan=False)
    sys.stdout.write(plain + "\n")
    sys.stdout.flush()


def print_error(message: str, remedy: str = "") -> None:
    """Print what went wrong and what to do about it. Neither is read as markup."""
    console = messages()
    console.print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)
    if remedy:
        console.print(Text.assemble(("  → ", "cyan"), remedy), soft_wrap=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

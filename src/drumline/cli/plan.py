"""A plan for reading."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from drumline.cli.words import devices, plural

SHOWN = frozenset({"mode", "backend", "world_size", "devices", "shares", "micro_batch", "reasons"})


def render_plan(plan: dict[str, Any]) -> RenderableType:
    """Mode, ranks with their devices and shares, and the reason for every choice."""
    return Group(_headline(plan), *_ranks(plan), *_others(plan), *_reasons(plan))


def _headline(plan: dict[str, Any]) -> Text:
    world_size = plan.get("world_size")
    backend = f" over {plan['backend']}" if plan.get("backend") else ""
    parts = [f"{plan.get('mode', '?')}{backend}"]
    if isinstance(world_size, int):
        parts.append(plural(world_size, "rank"))
    where = devices(_list(plan.get("devices")))
    if where:
        parts.append(where)
    if plan.get("micro_batch") is not None:
        parts.append(f"micro-batch {plan['micro_batch']:,}")
    return Text(" · ".join(parts))


def _ranks(plan: dict[str, Any]) -> list[RenderableType]:
    """One row a rank: its device and its share of the global batch."""
    listed, shares = _list(plan.get("devices")), _list(plan.get("shares"))
    if not listed and not shares:
        return []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("rank", justify="right")
    table.add_column("device")
    table.add_column("share", justify="right")
    table.add_column("uuid", style="dim", overflow="fold")
    for rank in range(max(len(listed), len(shares))):
        device = listed[rank] if rank < len(listed) else {}
        fields = device if isinstance(device, dict) else {"name": device}
        share = f"{shares[rank]:,}" if rank < len(shares) else ""
        name = str(fields.get("name", "?"))
        table.add_row(str(rank), Text(name), share, Text(str(fields.get("uuid") or "")))
    return [table]


def _others(plan: dict[str, Any]) -> list[RenderableType]:
    """Simple values that a newer plan may hold."""
    known = {
        key: value
        for key, value in plan.items()
        if key not in SHOWN and isinstance(value, str | int | float) and value != ""
    }
    return [Text(" · ".join(f"{key} {value}" for key, value in known.items()))] if known else []


def _reasons(plan: dict[str, Any]) -> list[RenderableType]:
    return [Text(f"because {reason}", style="dim") for reason in _list(plan.get("reasons"))]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

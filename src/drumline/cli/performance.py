"""The report on performance switches, as a table and as one line."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from drumline.cli.words import duration, to_float

STYLES = {"applied": "green", "undone": "yellow", "not applicable": "dim"}
_REASONS_SHOWN = 5


def performance_table(report: dict[str, Any]) -> RenderableType:
    """Every switch with what it brought and what became of it.

    Args:
        report: Fields of an event `performance_report`, or of `Report.as_dict`.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("switch", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in ("before", "after", "saves", "deviates"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why")
    for row in _rows(report):
        outcome = str(row.get("outcome", ""))
        table.add_row(
            str(row.get("switch", "")),
            Text(outcome, style=STYLES.get(outcome, "")),
            _ms(row.get("before_s")),
            _ms(row.get("after_s")),
            _percent(row.get("gain")),
            _small(row.get("deviation")),
            Text(str(row.get("reason", ""))),
        )
    parts: list[RenderableType] = [table]
    parts += [Text(line, style="dim") for line in _graph_breaks(report)]
    parts.append(Text(performance_line(report), style="dim"))
    return Group(*parts)


def performance_line(report: dict[str, Any]) -> str:
    """What is on, and what it brings together."""
    applied = [str(row["switch"]) for row in _rows(report) if row.get("outcome") == "applied"]
    if not applied:
        return "No performance switch is on"
    line = f"Performance switches on: {', '.join(applied)}"
    if to_float(report.get("gain")) is not None:
        before, after = _ms(report.get("before_s")), _ms(report.get("after_s"))
        line += f"; a step takes {after}, before {before}"
    seconds = to_float(report.get("seconds"))
    return line if seconds is None else f"{line} (tried in {duration(seconds)})"


def _rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    rows = report.get("rows")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list | tuple) else []


def _graph_breaks(report: dict[str, Any]) -> list[str]:
    breaks = [
        found
        for row in _rows(report)
        for found in (row.get("details") or {}).get("graph_breaks", ())
    ]
    lines = [
        f"graph break at {found['where'] or 'a place torch does not name'}: {found['reason']}"
        for found in breaks[:_REASONS_SHOWN]
    ]
    left_out = len(breaks) - len(lines)
    return [*lines, f"{left_out} more graph breaks"] if left_out > 0 else lines


def _ms(seconds: Any) -> str:
    value = to_float(seconds)
    return "–" if value is None else f"{1000 * value:.3g} ms"


def _percent(part: Any) -> str:
    value = to_float(part)
    return "–" if value is None else f"{value:+.1%}"


def _small(deviation: Any) -> str:
    value = to_float(deviation)
    return "–" if value is None else f"{value:.0e}"

"""The page of `drumline show`: everything a run directory says, for people and for programs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from drumline.cli.notices import MARKS, Level, Notice, notice
from drumline.cli.outcome import metrics_table
from drumline.cli.performance import performance_table
from drumline.cli.plan import render_plan
from drumline.cli.runs import STYLES
from drumline.cli.sparkline import sparkline
from drumline.cli.state import read_config, size_bytes, status, task_name
from drumline.cli.summary import Event, Summary
from drumline.cli.words import age, duration, label, number, plural, size, to_float
from drumline.run_directory import RunDirectory

ROWS = 8
"""Checkpoints and lines of history shown; the newest, as --json has all."""

EVALUATIONS = 4
"""Evaluations shown, side by side."""

CURVES_LAST = ("lr", "grad_norm", "samples_per_s", "loss_scale")
HISTORY = frozenset(
    {
        "attempt_started",
        "attempt_ended",
        "checkpoint_failed",
        "checkpoint_refused",
        "rank_failed",
        "shares_changed",
        "step_skipped",
        "stop_requested",
        "warning",
    }
)


@dataclass(frozen=True)
class Page:
    """A run directory as read at one time."""

    run: RunDirectory
    config: dict[str, Any]
    plan: dict[str, Any] | None
    result: dict[str, Any] | None
    summary: Summary
    history: list[Event]
    now: float

    @classmethod
    def read(cls, run: RunDirectory) -> Page:
        """Read all of it."""
        events, summary = run.events(), Summary()
        summary.feed(events)
        history = [event for event in events if event.get("kind") in HISTORY or _is_resumed(event)]
        return cls(run, read_config(run), run.plan(), run.result(), summary, history, time.time())

    @property
    def status(self) -> str:
        """How the run stands, as in `drumline runs`."""
        return status(self.summary, self.result or {}, self.now)

    def as_dict(self) -> dict[str, Any]:
        """The page as plain data; curves as lists of [step, value]."""
        summary = self.summary
        return {
            "path": str(self.run.path),
            "name": self.run.path.name,
            "task": task_name(self.config),
            "status": self.status,
            "step": summary.step,
            "steps": summary.steps,
            "plan": self.plan,
            "performance": summary.performance or None,
            "metrics": summary.metrics,
            "curves": {
                name: [[step, curve[step]] for step in sorted(curve)]
                for name, curve in summary.curves.items()
            },
            "evaluations": summary.evaluations,
            "checkpoints": summary.checkpoints,
            "attempts": summary.attempts,
            "history": self.history,
            "result": self.result,
        }


def render_page(page: Page, width: int) -> RenderableType:
    """The page for a terminal `width` columns wide."""
    blocks: list[RenderableType] = [_headline(page)]
    summary = page.summary
    for title, body in (
        ("Plan", render_plan(page.plan) if page.plan else None),
        ("Performance", performance_table(summary.performance) if summary.performance else None),
        ("Curves", _curves(summary, width)),
        ("Evaluations", _evaluations(summary)),
        ("Checkpoints", _checkpoints(page)),
        ("History", _history(page)),
        ("Verdict", _verdict(page)),
    ):
        if body is not None:
            blocks += [
                Text(),
                Text(title, style="bold cyan"),
                Padding(body, (0, 0, 0, 2), expand=False),
            ]
    return Group(*blocks)


def _headline(page: Page) -> RenderableType:
    summary, run = page.summary, page.run
    facts = [task_name(page.config)] if task_name(page.config) else []
    facts.append(f"started {age(page.now - run.config_path.stat().st_mtime)}")
    if summary.attempts:
        facts.append(plural(len(summary.attempts), "attempt"))
    facts.append(size(size_bytes(run.path)))
    state = page.status
    return Group(
        Text.assemble((run.path.name, "bold"), "  ", (state, STYLES.get(state, "dim"))),
        Text(str(run.path), style="dim"),
        Text(" · ".join(facts)),
    )


def _curves(summary: Summary, width: int) -> RenderableType | None:
    """One row a metric: where it began, its curve, where it is, and its range."""
    first = [name for name in summary.curves if name not in CURVES_LAST]
    rows = [
        (name, _values(summary.curves[name]))
        for name in (*first, *CURVES_LAST)
        if len(summary.curves.get(name, {})) > 1
    ]
    if not rows:
        return None
    still = [(name, values) for name, values in rows if len(set(values)) == 1]
    rows = [row for row in rows if row not in still]
    names = max((len(label(name)) for name, _ in rows), default=0)
    room = max(10, min(80, width - names - 6 - 3 * 12))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True, min_width=names)
    table.add_column("first", justify="right", no_wrap=True)
    table.add_column(_steps(summary), no_wrap=True, style="cyan")
    table.add_column("last", justify="right", style="bold", no_wrap=True)
    table.add_column("lowest", justify="right", style="dim", no_wrap=True)
    for name, values in rows:
        lowest = min((value for value in values if not math.isnan(value)), default=None)
        table.add_row(
            label(name),
            number(values[0]),
            sparkline(values, room),
            number(values[-1]),
            number(lowest),
        )
    if not still:
        return table
    constant = ", ".join(f"{label(name)} {number(values[0])}" for name, values in still)
    return Group(table, Text(f"unchanged: {constant}", style="dim"))


def _values(curve: dict[int, float]) -> list[float]:
    return [curve[step] for step in sorted(curve)]


def _steps(summary: Summary) -> str:
    steps = [step for curve in summary.curves.values() for step in curve]
    return f"step {min(steps):,} to {max(steps):,}"


def _evaluations(summary: Summary) -> RenderableType | None:
    if not summary.evaluations:
        return None
    shown = summary.evaluations[-EVALUATIONS:]
    names = list(dict.fromkeys(name for event in shown for name in _metrics(event)))
    left_out = len(summary.evaluations) - len(shown)
    table = _table(f"+{left_out:,} earlier" if left_out else "step", *map(_step, shown))
    table.columns[0].justify = "left"
    for name in names:
        table.add_row(label(name), *(number(_metrics(event).get(name)) for event in shown))
    return table


def _checkpoints(page: Page) -> RenderableType | None:
    """The newest checkpoints, with where they are while they are kept."""
    if not page.summary.checkpoints:
        return None
    table = _table("step", "size", "took", "name")
    table.columns[-1].justify = "left"
    for event in _newest(table, page.summary.checkpoints):
        stored, seconds = to_float(event.get("bytes")), to_float(event.get("seconds"))
        table.add_row(
            _step(event),
            "–" if stored is None else size(stored),
            "–" if seconds is None else duration(seconds),
            Text(_kept(page.run.path, str(event.get("path", ""))), style="dim"),
        )
    return table


def _kept(run: Path, path: str) -> str:
    """A checkpoint's name, and whether it was dropped for newer ones since."""
    place = run / path  # an absolute path stays what it is
    return place.name if place.exists() else f"{place.name} (dropped)"


def _history(page: Page) -> RenderableType | None:
    """What went other than planned, with the time into the run."""
    written = [(event, line) for event in page.history if (line := notice(event)) is not None]
    if not written:
        return None
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column()
    left_out = len(written) - 2 * ROWS
    if left_out > 0:
        table.add_row("", Text(f"{left_out:,} earlier lines", style="dim"))
    for event, line in written[-2 * ROWS :]:
        since = (to_float(event.get("t")) or 0.0) - (page.summary.first_t or 0.0)
        table.add_row(duration(max(0.0, since)), _marked(line))
    return table


def _verdict(page: Page) -> RenderableType | None:
    """How it ended, by result.json or else by its last event."""
    ended = page.result if page.result and not _is_running(page) else page.summary.end
    if not ended:
        return None
    line = notice({"kind": "run_ended", **ended})
    parts: list[RenderableType] = [_marked(line)] if line else []
    if isinstance(ended.get("metrics"), dict) and ended["metrics"]:
        parts.append(metrics_table(ended["metrics"]))
    if ended.get("status") == "stopped":
        parts.append(Text(f"Go on with: drumline train --resume {page.run.path}", style="dim"))
    return Group(*parts)


def _is_resumed(event: Event) -> bool:
    step = event.get("step")
    return event.get("kind") == "run_started" and isinstance(step, int) and step > 0


def _is_running(page: Page) -> bool:
    return page.status in ("running", "silent")


def _marked(line: Notice) -> Text:
    mark, style = MARKS[line.level]
    return Text.assemble(
        (f"{mark} ", style), (line.text, "" if line.level is Level.INFO else style)
    )


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _newest(table: Table, events: list[Event]) -> Iterator[Event]:
    """The last few events; the row before them says how many were left out."""
    if len(events) > ROWS:
        table.add_row(f"+{len(events) - ROWS:,}", *[""] * (len(table.columns) - 1))
    yield from events[-ROWS:]


def _metrics(event: Event) -> dict[str, Any]:
    metrics = event.get("metrics")
    return metrics if isinstance(metrics, dict) else {}


def _step(event: Event) -> str:
    step = event.get("step")
    return f"{step:,}" if isinstance(step, int) else "?"

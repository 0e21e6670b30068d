"""The live display of a run: one reader of its events among others.

On a terminal: lines for what happened, and below them a bar, the loss as a curve, a few metrics
and the time left. Elsewhere: plain lines, at most one every few seconds apart from warnings.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from drumline.cli.notices import MARKS, Level, Notice, notice
from drumline.cli.sparkline import sparkline
from drumline.cli.summary import Event, Summary
from drumline.cli.words import age, compact, duration, number, to_float

INTERVAL_S = 5.0
"""Least time between two lines that only say how far the run is."""

CURVE_WIDTH = 24
CURVE_POINTS = 2000  # drawn eight times a second, so not from every step of a long run
METRICS_SHOWN = 4
TERMINAL_QUIET = frozenset({"checkpoint", "phase"})  # the live part shows these
RARE = frozenset({"step_skipped", "checkpoint", "evaluation"})  # one line each interval when plain

OF_ALL_RANKS = frozenset({"rank_failed", "stop_requested"})  # often of one cause, said once


class ProgressView:
    """Shows a run while it is fed the run's events. Use it as a context manager.

    Args:
        console: Where to show it; decides between the live display and plain lines.
        quiet: Show nothing at all.
        clock: Seconds that go on; for tests.
    """

    def __init__(
        self,
        console: Console,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.summary = Summary()
        self._console = console
        self._quiet = quiet
        self._clock = clock
        self._lock = threading.RLock()
        self._shown_at: dict[str, float] = {}
        self._said: set[tuple[Any, ...]] = set()
        self._spinner = Spinner("dots", style="cyan")
        self._live: Live | None = None
        if console.is_terminal and not quiet:
            self._live = Live(
                get_renderable=self._render,
                console=console,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=False,
            )

    def __enter__(self) -> ProgressView:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def feed(self, events: Iterable[Event]) -> None:
        """Take more events and show what they say."""
        for event in events:
            with self._lock:
                self.summary.feed([event])
            if not self._quiet:
                self._show(event)

    def line(self, text: str) -> None:
        """Print a line of a rank's output, above the bar."""
        if not self._quiet:
            self._put(Text.from_ansi(text))

    def warn(self, message: str) -> None:
        """Show a warning that is about the terminal's own side, not in the run's events."""
        if not self._quiet:
            self._print(Notice(Level.WARNING, message), "warning")

    def _show(self, event: Event) -> None:
        kind = str(event.get("kind"))
        if kind in ("step", "progress"):
            finished = kind == "progress" and event.get("done") == event.get("total")
            if self._live is None and (finished or self._due("status")):
                self._put(Text(self._status_line()))
            return
        if self._live is None and kind == "run_ended" and self.summary.latest:
            self._put(Text(self._status_line()))
        written = notice(event)
        if written is not None and self._wanted(event):
            self._print(written, kind)

    def _wanted(self, event: Event) -> bool:
        kind = str(event.get("kind"))
        if self._live and kind in TERMINAL_QUIET:
            return False
        if kind in OF_ALL_RANKS:
            said = (kind, event.get("attempt"), event.get("message"))
            is_new = said not in self._said
            self._said.add(said)
            return is_new
        throttled = kind == "step_skipped" if self._live else kind in RARE
        return not throttled or self._due(kind)

    def _due(self, kind: str) -> bool:
        """Whether the last line of this kind is long enough ago; if so, it counts as shown now."""
        now = self._clock()
        if now - self._shown_at.get(kind, float("-inf")) < INTERVAL_S:
            return False
        self._shown_at[kind] = now
        return True

    def _print(self, written: Notice, kind: str) -> None:
        mark, style = MARKS[written.level]
        text = written.text
        if kind == "step_skipped" and self.summary.skipped > 1:
            text += f" ({self.summary.skipped} skipped so far)"
        body = "bold" if kind == "run_started" else "" if written.level is Level.INFO else style
        self._put(Text.assemble((f"{mark} ", style), (text, body)))

    def _put(self, text: Text) -> None:
        """Wrapped between words on a terminal; one line each where a program may read it."""
        self._console.print(text, soft_wrap=self._live is None)

    def _status_line(self) -> str:
        """How far the run is, on one plain line."""
        summary, activity = self.summary, self.summary.activity
        if activity.get("kind") == "progress":
            parts = [str(activity.get("what") or "working"), _of_total(activity)]
            rate = summary.per_second()
            if rate:
                parts.append(f"{compact(rate)} {activity.get('unit') or 'units'}/s")
        else:
            steps = f"/{summary.steps:,}" if summary.steps else ""
            parts = [f"step {summary.step:,}{steps}", _percent(summary.step, summary.steps)]
            parts += [f"{name} {number(value)}" for name, value in self._numbers()]
            parts += self._speed()
        left = summary.seconds_left()
        if left:
            parts.append(f"{duration(left)} left")
        return "  ".join(part for part in parts if part)

    def _numbers(self) -> Iterator[tuple[str, Any]]:
        latest = self.summary.latest
        if "loss" in latest:
            yield "loss", latest["loss"]
        metrics = latest.get("metrics")
        if isinstance(metrics, dict):
            yield from islice(metrics.items(), METRICS_SHOWN)

    def _speed(self) -> list[str]:
        speed = to_float(self.summary.latest.get("samples_per_s"))
        return [f"{compact(speed)} samples/s"] if speed else []

    def _render(self) -> RenderableType:
        with self._lock:
            summary = self.summary
            if summary.end:
                return Text("")
            if summary.activity or not summary.latest:
                return self._render_activity(summary.activity)
            return Group(self._bar(), self._curve_line(), *self._footer())

    def _render_activity(self, activity: Event) -> RenderableType:
        if activity.get("kind") == "progress":
            total, done = to_float(activity.get("total")), to_float(activity.get("done"))
            rate = self.summary.per_second()
            facts = [_of_total(activity)]
            if rate:
                facts.append(f"{compact(rate)} {activity.get('unit') or 'units'}/s")
            title = str(activity.get("what") or "working")
            return self._bar_row(title, done or 0.0, total, facts)
        message = str(activity.get("message") or activity.get("name") or "Starting")
        self._spinner.update(text=Text(message))
        return self._spinner

    def _bar(self) -> RenderableType:
        summary = self.summary
        steps = f"/{summary.steps:,}" if summary.steps else ""
        facts = [_percent(summary.step, summary.steps)]
        return self._bar_row(
            f"step {summary.step:,}{steps}", float(summary.step), to_float(summary.steps), facts
        )

    def _bar_row(
        self, title: str, done: float, total: float | None, facts: list[str]
    ) -> RenderableType:
        left = self.summary.seconds_left()
        if left is not None:
            facts = [*facts, f"{duration(left)} left"]
        row = Table.grid(padding=(0, 2, 0, 0), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        pulse = total is None
        bar = ProgressBar(total=total, completed=done, pulse=pulse, complete_style="cyan")
        row.add_row(Text(title, style="bold"), bar, Text("  ".join(filter(None, facts))))
        return row

    def _curve_line(self) -> Text:
        losses = list(self.summary.curves.get("loss", {}).values())
        losses = losses[:: max(1, len(losses) // CURVE_POINTS)]
        text = Text(no_wrap=True, overflow="ellipsis")
        for position, (name, value) in enumerate(self._numbers()):
            if position:
                text.append("  ·  ", style="dim")
            text.append(f"{name} ", style="dim")
            if name == "loss" and len(losses) > 1:
                text.append(sparkline(losses, CURVE_WIDTH) + " ", style="cyan")
            text.append(number(value))
        return text

    def _footer(self) -> Iterator[Text]:
        summary = self.summary
        parts = self._speed()
        slow = _slowest(summary.own_speeds)
        if slow:
            parts.append(slow)
        learning_rate = to_float(summary.latest.get("lr"))
        if learning_rate is not None:
            parts.append(f"lr {number(learning_rate)}")
        if summary.last_checkpoint:
            ago = age(max(0.0, (summary.last_t or 0.0) - float(summary.last_checkpoint["t"])))
            parts.append(f"checkpoint at step {summary.last_checkpoint.get('step', '?')}, {ago}")
        if summary.skipped:
            parts.append(f"{summary.skipped} skipped")
        if parts:
            yield Text("  ·  ".join(parts), style="dim", no_wrap=True, overflow="ellipsis")


def _percent(done: float, total: float | None) -> str:
    return f"{100 * done / total:.0f}%" if total else ""


def _of_total(activity: Event) -> str:
    done, total = to_float(activity.get("done")), to_float(activity.get("total"))
    unit = activity.get("unit") or ""
    shown = f"{done or 0:,.0f}" + (f" of {total:,.0f}" if total else "")
    return f"{shown} {unit}".rstrip()


def _slowest(speeds: Sequence[float]) -> str:
    """Names a rank whose own speed is more than a tenth below the fastest's."""
    if len(speeds) < 2:
        return ""
    slowest = min(speeds)
    short = 1 - slowest / max(speeds)
    return f"rank {speeds.index(slowest)} is {100 * short:.0f}% slower" if short > 0.1 else ""

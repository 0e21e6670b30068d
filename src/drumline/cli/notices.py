"""Events that deserve a line of their own, in words."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from drumline.cli.performance import performance_line
from drumline.cli.words import compact, devices, duration, number, plural, size, to_float

Event = dict[str, Any]


class Level(StrEnum):
    """How much a notice matters."""

    INFO = "info"
    GOOD = "good"
    WARNING = "warning"
    ERROR = "error"


MARKS = {Level.INFO: ("·", "dim"), Level.GOOD: ("✓", "green")}
MARKS |= {Level.WARNING: ("!", "yellow"), Level.ERROR: ("✗", "red")}


class Notice(NamedTuple):
    """One line about one event."""

    level: Level
    text: str


def notice(event: Event) -> Notice | None:
    """The line for an event; None for kinds that are shown in other ways."""
    write = _WRITERS.get(str(event.get("kind")))
    return write(event) if write else None


def metrics_line(metrics: Any, limit: int = 6) -> str:
    """Metrics by name on one line."""
    items = list(metrics.items())[:limit] if isinstance(metrics, dict) else []
    return " · ".join(f"{name} {number(value)}" for name, value in items)


def _run_started(event: Event) -> Notice:
    parts = [str(event.get("name") or "run")]
    if event.get("task") and event["task"] != event.get("name"):
        parts.append(str(event["task"]))
    world_size = event.get("world_size")
    where = devices(event.get("devices") or [])
    if isinstance(world_size, int):
        parts.append(plural(world_size, "rank") + (f" on {where}" if where else ""))
    parts += [str(event[key]) for key in ("mode", "precision") if event.get(key)]
    parameters, batch = to_float(event.get("parameters")), to_float(event.get("global_batch"))
    if parameters:
        parts.append(f"{compact(parameters)} parameters")
    if batch:
        parts.append(f"global batch {batch:,.0f}")
    if isinstance(event.get("step"), int) and event["step"] > 0:
        parts.append(f"goes on from step {_step(event)}")
    return Notice(Level.INFO, " · ".join(parts))


def _attempt_started(event: Event) -> Notice | None:
    resumed = event.get("resumed_from")
    if resumed is None and not event.get("attempt"):
        return None
    ranks = event.get("world_size")
    where = f" on {plural(ranks, 'rank')}" if isinstance(ranks, int) else ""
    place = f" goes on from step {resumed:,}" if isinstance(resumed, int) else " starts"
    return Notice(Level.INFO, f"Attempt {event.get('attempt', 0)}{where}{place}")


def _attempt_ended(event: Event) -> Notice | None:
    if event.get("cause") in (None, "done", "stopped") or event.get("action") == "stop":
        return None  # the end of the run says the same
    text = str(event.get("message") or event["cause"])
    action = event.get("action")
    followed = f"; {action}" if action and str(action) not in text else ""
    return Notice(Level.WARNING, f"Attempt {event.get('attempt', 0)} ended: {text}{followed}")


def _step_skipped(event: Event) -> Notice:
    scale = to_float(event.get("loss_scale"))
    after = f"; loss scale now {number(scale)}" if scale is not None else ""
    return Notice(
        Level.WARNING, f"Step {event.get('step')} skipped: {event.get('reason') or '?'}{after}"
    )


def _evaluation(event: Event) -> Notice:
    shown = metrics_line(event.get("metrics"))
    return Notice(Level.INFO, f"Evaluation at step {_step(event)}: {shown}")


def _checkpoint(event: Event) -> Notice:
    facts = []
    if (stored := to_float(event.get("bytes"))) is not None:
        facts.append(size(stored))
    if (seconds := to_float(event.get("seconds"))) is not None:
        facts.append(duration(seconds))
    return Notice(
        Level.INFO,
        f"Checkpoint at step {_step(event)}" + (f" ({', '.join(facts)})" if facts else ""),
    )


def _checkpoint_failed(event: Event) -> Notice:
    return Notice(
        Level.WARNING,
        f"Checkpoint at step {_step(event)} failed: {event.get('reason') or 'no reason given'}",
    )


def _checkpoint_refused(event: Event) -> Notice:
    return Notice(
        Level.WARNING,
        f"Checkpoint {event.get('path')} refused: {event.get('reason') or 'no reason given'}",
    )


def _warning(event: Event) -> Notice:
    return Notice(Level.WARNING, str(event.get("message") or "warning"))


def _shares_changed(event: Event) -> Notice:
    old, new = (_listed(event.get(key), "{:,}") for key in ("old", "new"))
    speeds = _listed(event.get("rank_samples_per_s"), "{:,.0f}")
    gain = to_float(event.get("gain"))
    shorter = f", for steps {gain:.0%} shorter" if gain is not None else ""
    return Notice(
        Level.INFO,
        f"Shares from step {_step(event)} on: {new} samples instead of {old}{shorter} "
        f"(ranks alone: {speeds} samples/s; {event.get('reason') or '?'})",
    )


def _listed(values: Any, form: str) -> str:
    return " + ".join(form.format(v) for v in values) if isinstance(values, list) else "?"


def _rank_failed(event: Event) -> Notice:
    rank = event.get("rank", -1)
    who = f"Rank {rank}" if isinstance(rank, int) and rank >= 0 else "A rank"
    text = f"{who} failed: {event.get('message') or event.get('code') or 'no reason given'}"
    if event.get("remedy"):
        text = f"{text if text.endswith('.') else f'{text}.'} {event['remedy']}"
    return Notice(Level.ERROR, text)


def _stop_requested(event: Event) -> Notice:
    signal = event.get("signal") or "a signal"
    return Notice(Level.WARNING, f"{signal}: saving a checkpoint at the next step, then stopping")


def _phase(event: Event) -> Notice:
    return Notice(Level.INFO, str(event.get("message") or event.get("name") or "working"))


def _performance_report(event: Event) -> Notice:
    return Notice(Level.INFO, performance_line(event))


def _run_ended(event: Event) -> Notice:
    status, message = event.get("status"), str(event.get("message") or "")
    seconds, samples = to_float(event.get("seconds")), to_float(event.get("samples"))
    facts = f"step {_step(event)}"
    if samples is not None:
        facts += f", {compact(samples)} samples"
    if seconds is not None:
        facts += f" in {duration(seconds)}"
    if status == "done":
        return Notice(Level.GOOD, f"Done: {facts}")
    if status == "stopped":
        return Notice(Level.WARNING, f"Stopped at {facts}" + (f": {message}" if message else ""))
    return Notice(Level.ERROR, f"Failed at {facts}" + (f": {message}" if message else ""))


def _step(event: Event) -> str:
    step = event.get("step")
    return f"{step:,}" if isinstance(step, int) else "?"


_WRITERS: dict[str, Callable[[Event], Notice | None]] = {
    "run_started": _run_started,
    "attempt_started": _attempt_started,
    "attempt_ended": _attempt_ended,
    "step_skipped": _step_skipped,
    "evaluation": _evaluation,
    "checkpoint": _checkpoint,
    "checkpoint_failed": _checkpoint_failed,
    "checkpoint_refused": _checkpoint_refused,
    "warning": _warning,
    "shares_changed": _shares_changed,
    "rank_failed": _rank_failed,
    "stop_requested": _stop_requested,
    "performance_report": _performance_report,
    "phase": _phase,
    "run_ended": _run_ended,
}

"""What a run's events add up to so far. The live display, `runs` and `show` all read this."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from drumline.cli.words import to_float

Event = dict[str, Any]

RECENT = 30
"""Step events that the speed is measured over."""

STEP_NUMBERS = ("loss", "lr", "grad_norm", "samples_per_s", "loss_scale")


@dataclass
class Summary:
    """The state of a run after the events fed so far.

    Attributes:
        start: Fields of `run_started`.
        latest: Fields of the last `step`.
        curves: By metric: step to value. Steps that a restart undid are left out.
        activity: The last `phase` or `progress`, while no step came after it.
        end: Fields of `run_ended`.
        own_speeds: Samples per second of each rank on its own, as last measured.
        performance: Fields of the last `performance_report`.
    """

    start: Event = field(default_factory=dict)
    latest: Event = field(default_factory=dict)
    activity: Event = field(default_factory=dict)
    end: Event = field(default_factory=dict)
    performance: Event = field(default_factory=dict)
    last_checkpoint: Event = field(default_factory=dict)
    own_speeds: list[float] = field(default_factory=list)
    curves: dict[str, dict[int, float]] = field(default_factory=dict)
    evaluations: list[Event] = field(default_factory=list)
    checkpoints: list[Event] = field(default_factory=list)
    attempts: list[Event] = field(default_factory=list)
    skipped: int = 0
    step: int = 0
    first_t: float | None = None
    last_t: float | None = None
    _recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def feed(self, events: Iterable[Event]) -> None:
        """Take more events, in the order written. Kinds not known here are passed over."""
        for event in events:
            t = to_float(event.get("t"))
            if t is not None:
                self.first_t = t if self.first_t is None else self.first_t
                self.last_t = t
            take = getattr(self, f"_{event.get('kind')}", None)
            if callable(take):
                take(event)

    @property
    def steps(self) -> int | None:
        """How many steps the run has, once known."""
        steps = self.latest.get("steps") or self.start.get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def metrics(self) -> dict[str, Any]:
        """The last known value of every metric; those of evaluations win."""
        merged: dict[str, Any] = {}
        if "loss" in self.latest:
            merged["loss"] = self.latest["loss"]
        merged |= _mapping(self.latest.get("metrics"))
        if self.evaluations:
            merged |= _mapping(self.evaluations[-1].get("metrics"))
        return merged | _mapping(self.end.get("metrics"))

    def per_second(self) -> float | None:
        """Steps, or units of a progress, a second over the last events; None while unknown."""
        if len(self._recent) < 2:
            return None
        (start_t, start), (end_t, end) = self._recent[0], self._recent[-1]
        return (end - start) / (end_t - start_t) if end_t > start_t and end > start else None

    def seconds_left(self) -> float | None:
        """Seconds to the end of the steps, or of what is in progress."""
        rate = self.per_second()
        if self.activity.get("kind") == "progress":
            total, done = to_float(self.activity.get("total")), to_float(self.activity.get("done"))
        else:
            total, done = to_float(self.steps), float(self.step)
        if rate is None or total is None or done is None:
            return None
        return max(0.0, (total - done) / rate)

    def _run_started(self, event: Event) -> None:
        """Rank 0 of each attempt says where it begins: later steps, if any, were undone."""
        self.start, self.end, self.own_speeds = event, {}, []
        if isinstance(event.get("step"), int):
            self._go_back_to(event["step"])

    def _attempt_started(self, event: Event) -> None:
        resumed = event.get("resumed_from")
        if self.attempts and isinstance(resumed, int):
            self._go_back_to(resumed)
        self.attempts.append(event)
        self.activity, self.end = {}, {}
        self._recent.clear()

    def _attempt_ended(self, event: Event) -> None:
        started = self.attempts[-1] if self.attempts else {}
        if self.attempts:
            self.attempts[-1] = {**started, "ended": event}
        self._recent.clear()

    def _step(self, event: Event) -> None:
        step = event.get("step")
        if not isinstance(step, int):
            return
        if self.activity:
            self._recent.clear()
        if step <= self.step:
            self._go_back_to(step - 1)
        self.activity, self.latest, self.step = {}, event, step
        self._recent.append((to_float(event.get("t")) or 0.0, float(step)))
        numbers = {name: event.get(name) for name in STEP_NUMBERS}
        self._record(step, {**numbers, **_mapping(event.get("metrics"))})

    def _rank_speeds(self, event: Event) -> None:
        speeds = event.get("samples_per_s")
        known = [to_float(speed) or 0.0 for speed in speeds] if isinstance(speeds, list) else []
        self.own_speeds = known if all(known) else []

    def _step_skipped(self, event: Event) -> None:
        del event
        self.skipped += 1

    def _evaluation(self, event: Event) -> None:
        self.evaluations.append(event)

    def _checkpoint(self, event: Event) -> None:
        self.checkpoints.append(event)
        self.last_checkpoint = event

    def _performance_report(self, event: Event) -> None:
        self.performance = event

    def _phase(self, event: Event) -> None:
        self.activity = event

    def _progress(self, event: Event) -> None:
        if self.activity.get("what") != event.get("what"):
            self._recent.clear()
        self.activity = event
        done = to_float(event.get("done"))
        if done is not None:
            self._recent.append((to_float(event.get("t")) or 0.0, done))

    def _run_ended(self, event: Event) -> None:
        self.end, self.activity = event, {}

    def _go_back_to(self, step: int) -> None:
        """Forget what came after `step`, which a restart undid: curves and evaluations hold what
        led to the present weights.
        """
        self.step = step
        for curve in self.curves.values():
            for later in [at for at in curve if at > step]:
                del curve[later]
        self.evaluations = [
            event for event in self.evaluations if (to_float(event.get("step")) or 0) <= step
        ]

    def _record(self, step: int, values: Event) -> None:
        for name, value in values.items():
            number = to_float(value)
            if number is not None:
                self.curves.setdefault(name, {})[step] = number


def _mapping(value: Any) -> Event:
    return value if isinstance(value, dict) else {}

"""Trying switches one after the other: each is put on, compared, timed, and kept or taken off.

All ranks try the same switches and come to the same decisions: what failed on one has failed on
all, the largest deviation counts, and the slowest rank's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TypeVar

import torch

from drumline.distributed import ControlPlane, is_communication_failure
from drumline.training.performance.report import Outcome, Report, Row
from drumline.training.performance.results import (
    Deviation,
    Results,
    deviation,
    gradients_of,
    weights_of,
)
from drumline.training.performance.snapshot import Snapshot
from drumline.training.performance.switch import Subject, Switch
from drumline.training.performance.timing import WARM_UP, Rules, Timing, measure_pairs
from drumline.training.performance.workload import Workload

T = TypeVar("T")
_LONGEST = 200


class Bench:
    """A workload that can begin again and again from one state, with some switches on.

    Args:
        subject: What switches work on.
        workload: Its steps.
        snapshot: Where each comparison begins.
        control: Of all ranks.
        rules: What counts.
    """

    def __init__(
        self,
        subject: Subject,
        workload: Workload,
        snapshot: Snapshot,
        control: ControlPlane,
        rules: Rules,
    ) -> None:
        self.subject, self.workload, self.snapshot = subject, workload, snapshot
        self.control, self.rules = control, rules
        self.on: list[Switch] = []
        self._reference: Results | None = None
        self._unsteady = Deviation(0.0, "nothing")
        self._arithmetic = ""
        self._blocks = (1, 1)

    def prepare(self) -> None:
        """Find out what the workload does as it is: its results, and how long a step takes.

        What the user's own code raises passes through.
        """
        self._arithmetic = self.workload.arithmetic()
        self._reference = self.results()
        again = self.control.gather(deviation(self._reference, self.results(), updates=True))
        self._unsteady = max(again, key=lambda one: one.value)
        self._block(1)
        step_s = max(self.control.gather(self._block(3)))
        self._blocks = self.rules.blocks(step_s)

    def put_on(self, switch: Switch) -> str | None:
        """Put a switch on if it applies and works on all ranks; else say why not, on all."""
        refusal = self._first(switch.why_not(self.subject))
        if refusal is not None:
            return refusal
        _, problem = self._unless_it_fails(switch, lambda: self._begin(switch))
        return problem or self._idle(switch)

    def attempt(self, switch: Switch) -> Row:
        """Put a switch on, and keep it if it changes nothing and is worth it."""
        unfit = self._first(switch.why_not(self.subject))
        if unfit is None and self._unsteady.value > switch.tolerance(self._arithmetic):
            unfit = f"the same steps taken twice differ: {self._unsteady}"
        if unfit is not None:
            return Row(switch.name, Outcome.NOT_APPLICABLE, unfit)
        _, problem = self._unless_it_fails(switch, lambda: self._begin(switch))
        idle = self._idle(switch) if problem is None else None
        if idle is not None:
            return Row(switch.name, Outcome.NOT_APPLICABLE, idle, details=switch.details())
        if problem is not None:
            return self._failed(switch, problem)
        return self._compared(switch)

    def _compared(self, switch: Switch) -> Row:
        """Undo it if it changed results; else go on to time it."""
        off, problem = self._unless_it_fails(switch, lambda: self._deviation(switch))
        if problem is not None or off is None:
            return self._failed(switch, problem)
        worst = max(self.control.gather(off), key=lambda one: one.value)
        limit = switch.tolerance(self._arithmetic)
        row = Row(switch.name, Outcome.UNDONE, "", deviation=worst.value, tolerance=limit)
        if worst.value <= limit:
            return self._timed(switch, row)
        self.take_off(switch)
        reason = f"it changed {worst}; rounding explains {limit:.0e}"
        return replace(row, reason=reason, details=switch.details())

    def _timed(self, switch: Switch, row: Row) -> Row:
        """Undo it if it is not faster."""
        timing, problem = self._unless_it_fails(switch, lambda: self.time([switch]))
        if timing is None:
            return self._failed(switch, problem)
        found = replace(row, **asdict(timing), details=switch.details())
        if timing.is_worth(self.rules.minimum_gain):
            return replace(found, outcome=Outcome.APPLIED, reason=f"it saves {_gain(timing)}")
        self.take_off(switch)
        return replace(found, reason=f"it brought nothing: {_gain(timing)}")

    @staticmethod
    def _failed(switch: Switch, problem: str | None) -> Row:
        reason = f"it failed: {problem}"
        return Row(switch.name, Outcome.UNDONE, reason, details=switch.details())

    def take_off(self, switch: Switch) -> None:
        """Take off the switch that was put on last."""
        switch.undo(self.subject)
        self.on.remove(switch)

    def time(self, switches: Sequence[Switch]) -> Timing:
        """Steps without and with the last switches that are on; they are on afterwards."""
        steps, pairs = self._blocks

        def block(with_them: bool) -> float:
            self._toggle(switches, with_them)
            for number in range(WARM_UP):
                self.workload.step(number)
            return self._block(steps)

        timing = measure_pairs(block, pairs, self.control)
        self._toggle(switches, True)
        return timing

    def results(self) -> Results:
        """Losses and gradients of the first steps from the state of the snapshot."""
        self.reset()
        losses: list[float] = []
        before = weights_of(self.subject.model)
        gradients, updates = {}, {}
        for number in range(self.rules.compared_steps):
            losses.append(float(self.workload.step(number)))
            if number == 0:
                gradients, after = gradients_of(self.subject.model), weights_of(self.subject.model)
                updates = {name: after[name] - before[name] for name in before}
        return Results(losses, gradients, updates)

    def reset(self) -> None:
        """Go back to the snapshot. Its layout and options are those without any switch."""
        for switch in reversed(self.on):
            switch.undo(self.subject)
        self.snapshot.restore()
        for switch in self.on:
            switch.apply(self.subject)

    def close(self) -> None:
        """Leave everything as it was found, but for the switches that are on."""
        for switch in reversed(self.on):
            switch.undo(self.subject)
        self.snapshot.give_back()
        for switch in self.on:
            switch.apply(self.subject)

    def report(self, rows: Sequence[Row], began: float) -> Report:
        """All rows, and what the switches that are on bring together."""
        applied = [row for row in rows if row.outcome is Outcome.APPLIED]
        device = self.subject.device
        together = self._together(rows)
        return Report(
            rows=tuple(rows),
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
            ranks=len(self.control.gather(0)),
            seconds=round(time.perf_counter() - began, 3),
            before_s=together.before_s if applied and together else None,
            after_s=together.after_s if applied and together else None,
            gain=together.gain if applied and together else None,
        )

    def _together(self, rows: Sequence[Row]) -> Timing | None:
        """Measured again where several are on; a single one's own timing otherwise. None where
        nothing was measured.
        """
        if self._reference is None:
            return None
        if len(self.on) > 1:
            return self.time(list(self.on))
        names = {switch.name for switch in self.on}
        for row in rows:
            if row.switch in names and row.before_s is not None and row.after_s is not None:
                return Timing(row.before_s, row.after_s, row.gain or 0.0, row.noise or 0.0)
        return None

    def _begin(self, switch: Switch) -> None:
        self.on.append(switch)
        switch.apply(self.subject)
        self.workload.attempt()

    def _idle(self, switch: Switch) -> str | None:
        """Why a switch does nothing on some rank; it is then off on all."""
        why = self._first(switch.why_idle())
        if why is not None:
            self.take_off(switch)
        return why

    def _first(self, answer: str | None) -> str | None:
        """The first rank's answer that is one."""
        return next((each for each in self.control.gather(answer) if each is not None), None)

    def _deviation(self, switch: Switch) -> Deviation:
        assert self._reference is not None
        return deviation(self._reference, self.results(), updates=switch.updates)

    def _toggle(self, switches: Sequence[Switch], on: bool) -> None:
        if on and not set(map(id, switches)) <= set(map(id, self.on)):
            for switch in switches:
                self.on.append(switch)
                switch.apply(self.subject)
        elif not on and switches[-1] in self.on:
            for switch in reversed(switches):
                self.take_off(switch)

    def _block(self, steps: int) -> float:
        self.wait()
        began = self.rules.clock()
        for number in range(steps):
            self.workload.step(number)
        self.wait()
        return (self.rules.clock() - began) / steps

    def wait(self) -> None:
        """Until the device has done all that was queued."""
        if self.subject.device.type == "cuda":
            torch.cuda.synchronize(self.subject.device)

    def _unless_it_fails(
        self, switch: Switch, action: Callable[[], T]
    ) -> tuple[T | None, str | None]:
        """What an action gives, or why it failed on any rank; the switch is then off."""
        value, problem = None, None
        try:
            value = action()
        except Exception as error:
            if is_communication_failure(error):
                raise
            problem = _in_words(error)
        told = self.control.gather(problem)
        if all(each is None for each in told):
            return value, None
        if switch in self.on:
            self.take_off(switch)
        else:
            switch.undo(self.subject)
        self.subject.rewrap()  # what wraps the model may be left in the middle of a backward
        self.reset()
        return None, next(
            each if len(told) == 1 else f"rank {rank}: {each}"
            for rank, each in enumerate(told)
            if each is not None
        )


def _in_words(error: Exception) -> str:
    error = getattr(error, "inner_exception", error)  # torch.compile wraps what its backend raised
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _gain(timing: Timing) -> str:
    return f"{timing.gain:+.1%} ± {timing.noise:.1%} of a step"

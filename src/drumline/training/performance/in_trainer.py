"""Performance switches of a run: chosen at its start, kept in its checkpoints.

What the config names is used without asking. What is measured changes results by rounding at most,
and is decided once in a run: a resumed run uses what the run began with, whatever would be faster
where it is now, so that it goes on as if it had not been interrupted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from drumline.config import PerformanceConfig
from drumline.training.performance import loading
from drumline.training.performance.arithmetic import CudnnAutotune
from drumline.training.performance.communication import NcclGroup, nccl_switches
from drumline.training.performance.compiled import Compile, CudaGraphs
from drumline.training.performance.layout import ChannelsLast
from drumline.training.performance.rehearsal import (
    Rehearsal,
    SourceFeed,
    coming_batches,
    why_not,
)
from drumline.training.performance.report import Outcome, Report, Row
from drumline.training.performance.switch import Switch
from drumline.training.performance.timing import Rules
from drumline.training.performance.trial import Bench

if TYPE_CHECKING:
    from drumline.training.session import Session


class Performance:
    """The switches of one run.

    Args:
        config: What the run asks for.
        rules: How it is measured.
    """

    def __init__(self, config: PerformanceConfig, rules: Rules | None = None) -> None:
        self.config, self.rules = config, rules or Rules()
        self._decided: dict[str, Any] | None = None

    def begin(self, session: Session) -> Report | None:
        """Choose switches before the first step, and leave no other trace. All ranks call it.

        Returns:
            What was chosen and why, also written as an event; None if nothing was asked for.
        """
        if not self.config.wanted:
            return None
        began = time.perf_counter()
        events, is_main = session.events, session.world.is_main
        if is_main and self._decided is None and self.config.measure:
            events.emit("phase", name="performance", message="Trying performance switches")
        with events.silenced():
            report = self._choose(session, began)
        self._decided = self._decided or {
            "switches": report.applied,
            "workers": session.share.workers if loading.NAME in report.applied else None,
        }
        if is_main:
            events.emit("performance_report", step=session.progress.step, **report.as_dict())
        return report

    def state_dict(self) -> dict[str, Any]:
        """What was decided; empty before that."""
        return {} if self._decided is None else {"decided": self._decided}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._decided = state.get("decided", self._decided)

    def _choose(self, session: Session, began: float) -> Report:
        control = session.world.control
        batches = coming_batches(session, self.rules.compared_steps)
        session.schedule(batches[0])
        refusal = why_not(session, batches)
        if refusal is not None:
            rows = (Row("all", Outcome.NOT_APPLICABLE, refusal),)
            return Report(rows, str(session.world.device), session.world.size, 0.0)
        rehearsal = Rehearsal(session, batches)
        snapshot = rehearsal.snapshot()
        bench = Bench(rehearsal.subject(), rehearsal, snapshot, control, self.rules)
        try:
            if self._measures:
                bench.prepare()
            rows_of_switches = [self._row(bench, switch) for switch in _switches(session)]
            rows_found = [row for row in rows_of_switches if row is not None]
            return bench.report([*rows_found, *self._loader(session, rehearsal, bench)], began)
        finally:
            bench.close()

    @property
    def _measures(self) -> bool:
        return self.config.measure and self._decided is None

    def _row(self, bench: Bench, switch: Switch) -> Row | None:
        """What becomes of one switch; None if it is not to be spoken of."""
        wish = self._wish(switch)
        if wish is False:
            return None
        if wish is None and self._decided is None:
            return bench.attempt(switch) if self.config.measure else None
        if wish is None and switch.name not in (self._decided or {})["switches"]:
            return None
        problem = bench.put_on(switch)
        if problem is not None:
            return Row(switch.name, Outcome.UNDONE, problem, details=switch.details())
        reason = "as the config says" if wish else "as at the start of the run"
        return Row(switch.name, Outcome.APPLIED, reason, details=switch.details())

    def _wish(self, switch: Switch) -> bool | None:
        """What the config says of a switch; None leaves it to measuring."""
        if isinstance(switch, NcclGroup):
            return None if self.config.nccl else False
        wish: bool | None = getattr(self.config, switch.name)
        return wish

    def _loader(self, session: Session, rehearsal: Rehearsal, bench: Bench) -> list[Row]:
        if not (self.config.measure and self.config.loader):
            return []
        feed = SourceFeed(session, rehearsal)
        if self._decided is None:
            return [loading.tune(feed, session.world.control, self.rules, bench.wait)]
        workers = self._decided["workers"]
        if workers is None:
            return []
        feed.use(loading.Reading(workers))
        reason = f"{workers} workers, as at the start of the run"
        return [Row(loading.NAME, Outcome.APPLIED, reason)]


def _switches(session: Session) -> list[Switch]:
    """Those of a run, in the order they are tried. Precision and the optimizer's implementation
    are the config's own.
    """
    compiled = Compile()
    return [
        CudnnAutotune(),
        ChannelsLast(),
        compiled,
        CudaGraphs(compiled),
        *nccl_switches(session.world),
    ]

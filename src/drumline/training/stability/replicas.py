"""Whether all ranks hold the same weights, bit for bit; who does not is named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from drumline.config import StabilityConfig
from drumline.errors import RankFailure
from drumline.training.stability.fingerprint import combine, fingerprints, replicated
from drumline.training.watchers import Watcher

if TYPE_CHECKING:
    from drumline.training.session import Session
    from drumline.training.source import StepBatch
    from drumline.training.step import StepOutcome

_SHOWN = 4
_LOWEST = -(1 << 63)


@dataclass(frozen=True)
class Mismatch:
    """Which parameters differ, and on whom.

    Attributes:
        parameters: For each parameter that differs, the ranks out of step: those that are not
            with the majority, or all where there is none.
        decided: Whether there was a majority for every parameter.
        reference: A rank that is in step, to repair from; 0 where nothing decides.
    """

    parameters: dict[str, list[int]]
    decided: bool
    reference: int

    @property
    def ranks(self) -> list[int]:
        """All ranks that are out of step in something, or among which it is undecided."""
        return sorted({rank for ranks in self.parameters.values() for rank in ranks})

    def __str__(self) -> str:
        names = list(self.parameters)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        what = ", ".join(names[:_SHOWN]) + more
        ranks = ", ".join(map(str, self.ranks))
        if self.decided:
            return f"Rank {ranks} is out of step: its {what} is not that of the other ranks"
        return f"Ranks {ranks} differ in {what}, and no majority says which is right"


def compare(ranks: list[dict[str, int]]) -> Mismatch | None:
    """Compare fingerprints by name, those of each rank; None if all are equal.

    Of three ranks or more that hold a parameter the majority is right. Of two nobody can say.
    """
    parameters: dict[str, list[int]] = {}
    decided = True
    for name in dict.fromkeys(name for held in ranks for name in held):
        values = {rank: held[name] for rank, held in enumerate(ranks) if name in held}
        value, votes = Counter(values.values()).most_common(1)[0]
        if votes == len(values):
            continue
        majority = 2 * votes > len(values)
        decided = decided and majority
        parameters[name] = [r for r, v in values.items() if not majority or v != value]
    if not parameters:
        return None
    out = {rank for wrong in parameters.values() for rank in wrong}
    return Mismatch(parameters, decided, min(set(range(len(ranks))) - out, default=0))


class ReplicaWatcher(Watcher):
    """Compares fingerprints every so often, and before a checkpoint is due.

    One vote on the control plane says whether all are equal; only if not are they gathered.
    """

    def __init__(self, config: StabilityConfig) -> None:
        self.config = config

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Compare when it is time.

        Raises:
            RankFailure: On all ranks, naming the rank out of step and the parameter; unless the
                config says to repair.
        """
        del batch, outcome
        if self._is_due(session):
            self._compare(session)

    def at_end(self, session: Session) -> None:
        """Compare before the last checkpoint."""
        if session.world.size > 1 and self.config.fingerprint_every:
            self._compare(session)

    def _is_due(self, session: Session) -> bool:
        every, saving = self.config.fingerprint_every, session.config.checkpoint.every_steps
        step = session.progress.step
        if session.world.size == 1 or not every:
            return False
        return step % every == 0 or (saving is not None and step % saving == 0)

    def _compare(self, session: Session) -> None:
        world, parameters = session.world, replicated(session.model)
        numbers = fingerprints(parameters).tolist()
        digest = combine(numbers)
        places, own = range(world.pipeline_size), world.pipeline_rank
        # Ranks at different places of a pipeline hold other parameters.
        votes = {f"value{place}": digest if place == own else _LOWEST for place in places}
        votes |= {f"inverse{place}": ~digest if place == own else _LOWEST for place in places}
        highest = world.control.vote(**votes)
        if all(highest[f"value{place}"] == ~highest[f"inverse{place}"] for place in places):
            return
        named = dict(zip(parameters, numbers, strict=True))
        mismatch = compare(world.control.gather(named))
        if mismatch is not None:
            self._act(session, mismatch)

    def _act(self, session: Session, mismatch: Mismatch) -> None:
        step, repair = session.progress.step, self.config.replica == "repair"
        message = f"{mismatch} (found after step {step})."
        if session.world.is_main:
            session.events.emit(
                "replica_mismatch",
                step=step,
                ranks=mismatch.ranks,
                parameters=list(mismatch.parameters),
                decided=mismatch.decided,
                policy=self.config.replica,
                message=message,
            )
        if not repair:
            raise RankFailure(
                message,
                remedy="Test that device's memory (ECC errors, overclocking); a restart begins "
                "from the last checkpoint. Or set stability.replica=repair.",
                ranks=mismatch.ranks,
                parameters=list(mismatch.parameters),
            )
        copy_from(session, mismatch)
        if session.world.is_main:
            done = f"{message} They were copied from rank {mismatch.reference}."
            session.events.emit("warning", code="replica_repaired", message=done)


@torch.no_grad()
def copy_from(session: Session, mismatch: Mismatch) -> None:
    """Give all ranks the reference's bits of what differs, with the optimizer's moments of it."""
    parameters = replicated(session.model)
    for name in mismatch.parameters:
        parameter = parameters[name]
        session.world.broadcast(parameter.data, mismatch.reference)
        for _, value in sorted(session.optimizer.state.get(parameter, {}).items()):
            if isinstance(value, torch.Tensor):
                session.world.broadcast(value, mismatch.reference)

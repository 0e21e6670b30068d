"""The control plane: how ranks decide together, apart from the tensors they exchange.

Votes run over a gloo group of their own with their own timeout, so that ranks can still agree, and
name the one that is missing, while the data plane hangs. Every rank makes the same calls in the
same order. One process has the same interface and decides alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from drumline.errors import RankFailure

T = TypeVar("T")
ROLL_CALL_S = 5.0
_APART = 2
"""Calls that ranks may be apart when a collective breaks: who had its part of a sum has gone on, to
the next vote and what follows it, where it too waits for the rank that is missing."""


class Ballot(ABC):
    """A vote that was called and not yet counted."""

    @abstractmethod
    def result(self) -> dict[str, int]:
        """The largest value any rank gave for each name; waits for all ranks.

        Raises:
            RankFailure: If a rank did not vote in time, naming it.
        """


class ControlPlane(ABC):
    """Votes and small messages among all ranks."""

    @abstractmethod
    def call(self, **values: int) -> Ballot:
        """Start a vote: for each name the largest value over ranks. All ranks give all names."""

    def vote(self, **values: int) -> dict[str, int]:
        """Call a vote and wait for its result."""
        return self.call(**values).result()

    def any(self, value: bool) -> bool:
        """Whether it is true on any rank."""
        return bool(self.vote(value=int(value))["value"])

    @abstractmethod
    def broadcast(self, value: T) -> T:
        """Rank 0's value, on every rank. Plain data only."""

    @abstractmethod
    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank. Plain data or small tensors."""

    @abstractmethod
    def missing(self, what: str, error: BaseException) -> RankFailure:
        """What a broken collective means: an error that names the ranks that did not come."""

    @abstractmethod
    def barrier(self, name: str) -> None:
        """Wait for all ranks.

        Raises:
            RankFailure: If one does not come in time, naming it.
        """


class _Counted(Ballot):
    def __init__(self, values: Mapping[str, int]) -> None:
        self._values = dict(values)

    def result(self) -> dict[str, int]:
        return self._values


class LocalControl(ControlPlane):
    """The control plane of one process."""

    def call(self, **values: int) -> Ballot:
        """The values given are the result."""
        return _Counted(values)

    def broadcast(self, value: T) -> T:
        """The value itself."""
        return value

    def gather(self, value: T) -> list[T]:
        """A list of the one value."""
        return [value]

    def missing(self, what: str, error: BaseException) -> RankFailure:
        """Nobody can be missing; says what broke."""
        return RankFailure(f"A {what} broke: {_first_line(error)}")

    def barrier(self, name: str) -> None:
        """Nobody to wait for."""


class StoreControl(ControlPlane):
    """Votes over a gloo group of their own, and a roll call over the store if one fails.

    Args:
        store: The rendezvous store, used only to find out who is missing.
        rank: This rank.
        size: Number of ranks.
        timeout_s: How long a vote may take.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._store = PrefixStore("drumline/control", store)
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._calls = 0

    def call(self, **values: int) -> Ballot:
        """Start the vote and return at once."""
        self._calls += 1
        tensor = torch.tensor(list(values.values()), dtype=torch.int64)
        try:
            work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group, async_op=True)
        except RuntimeError as error:
            raise self.missing("vote", error) from error
        return _Pending(self, list(values), tensor, work)

    def broadcast(self, value: T) -> T:
        """Rank 0's value, pickled among our own ranks."""
        holder = [value]
        self._run("broadcast", lambda: dist.broadcast_object_list(holder, 0, group=self._group))
        return holder[0]

    def gather(self, value: T) -> list[T]:
        """Every rank's value, pickled among our own ranks."""
        values: list[Any] = [None] * self.size
        self._run("gather", lambda: dist.all_gather_object(values, value, group=self._group))
        return values

    def barrier(self, name: str) -> None:
        """Wait for all ranks, with the control plane's timeout."""
        self._run(name, lambda: dist.barrier(group=self._group))

    def missing(self, what: str, error: BaseException) -> RankFailure:
        """Find out who did not come to a vote or collective, as an error that names them.

        Every rank that noticed the failure signs in at the store; whoever has not after some
        seconds is missing.
        """
        present = self._roll_call()
        absent = [rank for rank in range(self.size) if rank not in present]
        if not absent:
            return RankFailure(
                f"The ranks lost contact during a {what}: {_first_line(error)}.",
                remedy="See the ranks' logs; the network between them may have failed.",
                timed_out=_timed_out(error),
            )
        ranks = ", ".join(map(str, absent))
        return RankFailure(
            f"Rank {ranks} did not come to a {what} in time, or is gone.",
            remedy="See the log of that rank; a slow one needs a larger distributed.timeout_s.",
            missing=absent,
            timed_out=_timed_out(error),
        )

    def _roll_call(self) -> set[int]:
        present = {self.rank}
        try:
            for call in range(self._calls - _APART, self._calls + _APART + 1):
                self._store.set(f"{call}/{self.rank}", "here")
        except RuntimeError:
            return set(range(self.size))  # the store itself is gone: nobody can be named
        for rank in range(self.size):
            if rank != self.rank:
                try:
                    self._store.wait([f"{self._calls}/{rank}"], timedelta(seconds=ROLL_CALL_S))
                    present.add(rank)
                except RuntimeError:
                    continue
        return present

    def _run(self, what: str, action: Any) -> None:
        self._calls += 1
        try:
            action()
        except RuntimeError as error:
            raise self.missing(what, error) from error


class _Pending(Ballot):
    def __init__(
        self, control: StoreControl, names: list[str], tensor: torch.Tensor, work: Any
    ) -> None:
        self._control, self._names, self._tensor, self._work = control, names, tensor, work

    def result(self) -> dict[str, int]:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._control.missing("vote", error) from error
        return dict(zip(self._names, self._tensor.tolist(), strict=True))


def _timed_out(error: BaseException) -> bool:
    text = str(error).lower()
    return "timed out" in text or "timeout" in text


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

"""What every rank of a check runs: measurement after measurement, each recorded as it ends.

Records are lines of JSON in a file of the rank, so that whatever a rank measured is kept when it
crashes or hangs. A rank that takes too long over one measurement ends itself, also where Python
is stuck in a driver's call.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from drumline.bench.checks.check import RankCheck, Seat
from drumline.config import ClusterEnvironment, DistributedConfig, Mode
from drumline.config.section import import_object

PATIENCE_S = 30.0
"""Collectives wait this much longer than the longest measurement, which ends the rank before."""

SETUP_S = 90.0
"""A rank may take this long to import torch and to meet the others, whatever it is to do then."""

TEARDOWN_S = 20.0
"""Leaving the process group may hang when a peer is gone; the rank then ends itself."""

_STDERR = 2  # the file descriptor: Python's own object may be replaced


@dataclass(frozen=True)
class Step:
    """One measurement, as it travels to the ranks. `function` is "module:name"."""

    name: str
    function: str
    together: bool
    timeout_s: float

    @classmethod
    def of(cls, check: RankCheck) -> Step:
        """The measurement of a check."""
        function = f"{check.measure.__module__}:{check.measure.__qualname__}"
        return cls(check.name, function, check.together, check.timeout_s)


class Records:
    """The records of one rank, in memory and, where there is a file, written through."""

    def __init__(self, rank: int, path: Path | None) -> None:
        self.rank = rank
        self.all: list[dict[str, Any]] = []
        self._file: TextIO | None = None if path is None else path.open("a")

    def add(self, check: str, state: str, **fields: Any) -> None:
        """Add one: state "started", "note", "done" with `value`, or "error" with `message`."""
        record = {"check": check, "rank": self.rank, "state": state, "t": time.time(), **fields}
        self.all.append(record)
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()


def records_path(folder: Path, rank: int) -> Path:
    """Where a rank writes its records."""
    return folder / f"records-{rank}.jsonl"


def check_in_rank(payload: dict[str, Any]) -> None:
    """Run the steps of the payload in a rank that the launcher started."""
    environment = ClusterEnvironment.detect()
    folder = environment.run_dir
    assert folder is not None, "the launcher names the run directory"
    records = Records(environment.rank, records_path(folder, environment.rank))
    steps = [Step(**step) for step in payload["steps"]]
    perform(steps, records, environment, quick=payload["quick"], scratch=folder)


def perform(
    steps: Sequence[Step],
    records: Records,
    environment: ClusterEnvironment,
    *,
    quick: bool,
    scratch: Path | None = None,
    at_end: Callable[[Seat], None] | None = None,
) -> None:
    """Measure step after step. The ranks meet before the first that is together.

    Args:
        steps: In order; those of single devices first.
        records: Where results go.
        environment: Who this rank is.
        quick: Passed on to measurements.
        scratch: A folder that the ranks of this machine share.
        at_end: Called with the last seat while the ranks are still together, if there was a step.
    """
    longest = max((step.timeout_s for step in steps), default=0.0) + PATIENCE_S
    spread = DistributedConfig(
        mode=Mode.DISTRIBUTED, timeout_s=longest, control_timeout_s=longest, max_restarts=0
    )
    seat: Seat | None = None
    with ExitStack() as stack:
        stack.callback(faulthandler.cancel_dump_traceback_later)  # runs last
        for step in steps:
            records.add(step.name, "started")
            note = functools.partial(_note, records, step.name)
            _end_after(max(step.timeout_s, SETUP_S))
            start = time.perf_counter()
            try:
                seat = seat or _seat(environment, quick=quick, scratch=scratch)
                if step.together and seat.world is None:
                    from drumline.distributed import open_world

                    world = stack.enter_context(open_world(spread, environment))
                    stack.callback(_end_after, TEARDOWN_S)  # runs before the world is left
                    seat = replace(seat, world=world, device=world.device)
                function = import_object(step.function)
                _end_after(step.timeout_s)
                value = function(replace(seat, note=note))
            except BaseException as error:
                records.add(step.name, "error", message=_in_words(error))
                raise
            finally:
                faulthandler.cancel_dump_traceback_later()
            records.add(step.name, "done", value=value, seconds=time.perf_counter() - start)
        if at_end is not None and seat is not None:
            at_end(seat)


def _seat(environment: ClusterEnvironment, *, quick: bool, scratch: Path | None) -> Seat:
    import torch

    on_cpu = environment.devices == "cpu" or not torch.cuda.is_available()
    device = torch.device("cpu") if on_cpu else torch.device("cuda", environment.local_rank)
    if not on_cpu:
        torch.cuda.set_device(device)
    return Seat(environment.rank, environment.world_size, device, quick, scratch)


def _end_after(seconds: float) -> None:
    """End this process then, with its stacks in the log, unless it is cancelled or set anew."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)


def _note(records: Records, check: str, text: str) -> None:
    records.add(check, "note", text=text)


def _in_words(error: BaseException) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return f"{type(error).__name__}: {first}".rstrip(": ")

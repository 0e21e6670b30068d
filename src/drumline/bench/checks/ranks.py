"""Runs measurements on ranks, and turns what came back into findings.

Where a rank crashes or hangs, that check fails with the reason, and the others go on in a new
launch: without the device at fault where it was alone with it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from drumline.bench.checks.check import CheckContext, RankCheck, device_names
from drumline.bench.checks.finding import Finding, failed, skipped
from drumline.bench.checks.programme import Step, check_in_rank, records_path
from drumline.config import DistributedConfig, Mode
from drumline.planning import Plan
from drumline.run_directory import RunDirectory

START = "process group"
"""The check by whose failure all that need ranks together are skipped."""

_LOG_LINES = 30
_ALONE_REMEDY = "Run it again with that device alone (--gpus), and see the driver's log (dmesg)."
_TOGETHER_REMEDY = (
    "Run it again with fewer devices (--gpus) to find which is at fault, and with NCCL_DEBUG=INFO."
)


@dataclass(frozen=True)
class Attempt:
    """What one launch left behind: the records of each rank in order, its log, how it ended."""

    records: Sequence[Sequence[dict[str, Any]]]
    logs: Sequence[str]
    message: str

    def values(self, check: str) -> list[dict[str, Any] | None]:
        """The record "done" of each rank, None where there is none."""
        return [self._last(rank, check, "done") for rank in range(len(self.records))]

    def began(self, check: str) -> bool:
        """Whether any rank began it."""
        return any(self._last(rank, check, "started") for rank in range(len(self.records)))

    def at_fault(self, check: RankCheck) -> tuple[list[int], str]:
        """The ranks that did not finish, those named first that say why, and why."""
        unfinished = [rank for rank, done in enumerate(self.values(check.name)) if done is None]
        errors = {
            rank: record["message"]
            for rank in unfinished
            if (record := self._last(rank, check.name, "error"))
        }
        if errors:
            rank, message = next(iter(errors.items()))
            return [rank], f"{message}{self._note(rank, check.name)}"
        hung = [rank for rank in unfinished if "Timeout (" in self.logs[rank]]
        if hung:
            note = self._note(hung[0], check.name)
            return hung, f"did not finish within {check.timeout_s:g} s{note}"
        return unfinished, self.message

    def _note(self, rank: int, check: str) -> str:
        note = self._last(rank, check, "note")
        return f" ({note['text']})" if note else ""

    def _last(self, rank: int, check: str, state: str) -> dict[str, Any] | None:
        matching = [r for r in self.records[rank] if r["check"] == check and r["state"] == state]
        return matching[-1] if matching else None


Launcher = Callable[[Sequence[RankCheck], CheckContext], Attempt]


def check_on_ranks(
    checks: Sequence[RankCheck], context: CheckContext, launch: Launcher | None = None
) -> Iterator[Finding]:
    """The findings of all checks, in order, over as many launches as it takes."""
    start = launch or launch_ranks
    pending = list(checks)
    while pending and context.devices:
        attempt = start(pending, context)
        broken: RankCheck | None = None
        for check in list(pending):
            if not attempt.began(check.name):
                break
            pending.remove(check)
            values = attempt.values(check.name)
            if None in values:
                broken = check
                break
            yield from judged(check, context, [value for value in values if value])
        if broken is not None:
            ranks, why = attempt.at_fault(broken)
            yield _broken(broken, context, ranks, why, attempt.logs)
            if broken.name == START:
                yield from _give_up(pending, "the ranks could not form a process group")
                return
            context = _without(context, ranks) if not broken.together else context
        elif pending:
            yield _not_started(attempt)
            yield from _give_up(pending, "the ranks could not start")
            return
    yield from _give_up(pending, "no device is left")


def judged(
    check: RankCheck, context: CheckContext, records: Sequence[dict[str, Any]]
) -> list[Finding]:
    """The findings on what all ranks measured; judging that breaks is a failure of its own."""
    seconds = max(record["seconds"] for record in records)
    try:
        findings = check.judge(context, [record["value"] for record in records])
    except Exception as error:
        findings = [failed(check.name, f"the check broke: {error!r}", "Please report this.")]
    return [replace(found, group=check.group, seconds=seconds) for found in findings]


def launch_ranks(checks: Sequence[RankCheck], context: CheckContext) -> Attempt:
    """Start one rank on each device, for all of the checks.

    Raises:
        KeyboardInterrupt: If the user stopped it.
    """
    from drumline.launch import LaunchRequest, launch

    size = len(context.devices)
    backend = "gloo" if context.on_cpu else "nccl"
    plan = Plan(Mode.DISTRIBUTED, backend, context.devices, size, (1,) * size, 1)
    steps = [asdict(Step.of(check)) for check in checks]
    payload = json.dumps({"steps": steps, "quick": context.quick})
    function = f"{check_in_rank.__module__}:{check_in_rank.__name__}"
    with tempfile.TemporaryDirectory(prefix="drumline-check-") as folder:
        run = RunDirectory.create(Path(folder))
        spread = DistributedConfig(max_restarts=0)
        request = LaunchRequest(run, plan, "call", (function, payload), spread)
        outcome = launch(request, _unheard)
        if "SIGTERM" in outcome.message or "as asked" in outcome.message:
            raise KeyboardInterrupt
        return Attempt(
            [_read_records(records_path(run.path, rank)) for rank in range(size)],
            [_read(run.rank_log(rank)) for rank in range(size)],
            outcome.message.removesuffix("; no restart is left"),
        )


def _unheard(rank: int, line: str) -> None:
    """What ranks print is in their logs."""
    del rank, line


def _broken(
    check: RankCheck,
    context: CheckContext,
    ranks: Sequence[int],
    why: str,
    logs: Sequence[str],
) -> Finding:
    """A failure that names the ranks; their last lines go with it for programs."""
    names = device_names(context)
    where = ", ".join(names[rank] for rank in ranks)
    remedy = _TOGETHER_REMEDY if check.together else _ALONE_REMEDY
    value = {"ranks": list(ranks), "logs": [_last_lines(logs[rank]) for rank in ranks]}
    return replace(failed(check.name, f"{where}: {why}", remedy, value), group=check.group)


def _not_started(attempt: Attempt) -> Finding:
    value = {"logs": [_last_lines(log) for log in attempt.logs]}
    found = failed("ranks", f"could not start: {attempt.message}", _TOGETHER_REMEDY, value)
    return replace(found, group="ranks")


def _last_lines(log: str) -> list[str]:
    return log.splitlines()[-_LOG_LINES:]


def _give_up(checks: Sequence[RankCheck], reason: str) -> Iterator[Finding]:
    for check in checks:
        yield replace(skipped(check.name, reason), group=check.group)


def _without(context: CheckContext, ranks: Sequence[int]) -> CheckContext:
    """The context without one device that broke a check by itself; with several, it stays."""
    if len(ranks) != 1 or context.on_cpu:
        return context
    kept = [device for rank, device in enumerate(context.devices) if rank not in ranks]
    return replace(context, devices=tuple(kept))


def _read_records(path: Path) -> list[dict[str, Any]]:
    """All whole lines; the last one of a rank that was killed may be cut."""
    records = []
    for line in _read(path).splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

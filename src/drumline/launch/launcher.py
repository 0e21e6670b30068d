"""Launching a run: attempt after attempt, until it is done, stopped, or beyond help."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from drumline.config import DistributedConfig, Mode, RunConfig, load_config
from drumline.config.environment import ATTEMPT, DEVICE_LOCKS, OVERRIDES, PLAN_DEVICES, RUN_DIR
from drumline.config.load import override
from drumline.errors import EXIT_FAILED, DrumlineError
from drumline.events import EventLog, EventReader
from drumline.hardware import Machine
from drumline.launch.attempt import Attempt
from drumline.launch.loss import Loss, find_loss
from drumline.launch.policy import Action, AttemptEnd, Decision, RankEnd, Savings, decide
from drumline.launch.preflight import visible_machine
from drumline.planning import Plan
from drumline.run_directory import RunDirectory

Output = Callable[[int, str], None]
_TAIL_LINES = 15
MOST_HOST_THREADS = 8
"""Of a rank with a GPU: what it does on the host, copying samples, gains nothing from more."""


def host_threads(ranks: int, *, on_gpu: bool) -> dict[str, str]:
    """Variables for OpenMP in each of the ranks of this host; what the user has set stays.

    Ranks with a GPU use their threads now and then, to read samples. Waiting busily in between
    would take half of all that a rank uses of its cores, and time from the thread that issues
    kernels.
    """
    threads = max(1, (os.cpu_count() or 1) // ranks)
    set_here = {"OMP_NUM_THREADS": str(threads)}
    if on_gpu:
        set_here = {
            "OMP_NUM_THREADS": str(min(threads, MOST_HOST_THREADS)),
            "OMP_WAIT_POLICY": "passive",
        }
    return {name: os.environ.get(name, value) for name, value in set_here.items()}


@dataclass(frozen=True)
class LaunchRequest:
    """What to launch.

    Attributes:
        run: The run directory, made and with its config written.
        plan: Devices and world size.
        kind: "train", "call" or "script"; see `worker`.
        arguments: For the worker.
        spread: Bounds for the failure policy: restarts and timeouts. A script's own config has
            the word over them.
        config: What was planned. With it a run that has lost a device goes on with the others.
        probe: Says what devices are there when an attempt has failed.
        locks: Lock files of the devices, which this process holds and the ranks join.
    """

    run: RunDirectory
    plan: Plan
    kind: str
    arguments: tuple[str, ...] = ()
    spread: DistributedConfig = field(default_factory=DistributedConfig)
    config: RunConfig | None = None
    probe: Callable[[], Machine] = visible_machine
    locks: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a launch ended."""

    exit_code: int
    message: str
    remedy: str = ""
    attempts: int = 1
    result: dict[str, Any] = field(default_factory=dict)


def launch(request: LaunchRequest, output: Output) -> Outcome:
    """Run attempts until one decides the run.

    Ctrl-C, SIGTERM and SIGUSR1 ask the ranks to stop at the next step boundary; a second Ctrl-C
    ends them at once.

    Args:
        request: What to launch.
        output: Called in this thread with (rank, line) for each line that rank 0 prints, and for
            the last lines of other ranks that fail. What happens is in the run's events.

    Raises:
        LaunchError: If the ranks could not be started.
    """
    return _Launch(request, output).run()


class _Launch:
    def __init__(self, request: LaunchRequest, output: Output) -> None:
        self.request, self.run_dir, self.plan = request, request.run, request.plan
        self._show = output
        self._first = _next_attempt(self.run_dir)
        self._reader = EventReader(self.run_dir.events_path)
        self._reader.new()  # what earlier launches said is not news
        self._output = _Tail(self.run_dir)
        self._events = EventLog(self.run_dir.events_path)
        self._seen: list[dict[str, Any]] = []
        self._attempt: Attempt | None = None
        self._stops = 0
        self._overrides: dict[str, str] = {}
        self._loss: Loss | None = None

    def run(self) -> Outcome:
        self.run_dir.result_path.unlink(missing_ok=True)
        number = self._first
        with _Signals(self._on_signal):
            while True:
                decision = self._one(number)
                if decision.action in (Action.FINISH, Action.STOP) or self._stops:
                    break
                number += 1
                self._adjust(decision)
        outcome = self._outcome(decision, number)
        self._events.close()
        return outcome

    def _one(self, number: int) -> Decision:
        self._seen = []
        self._events.attempt = number
        plan = self.plan
        self._events.emit("attempt_started", world_size=plan.world_size)
        worker = ["-m", "drumline.launch.worker", str(os.getpid()), self.request.kind]
        self._attempt = Attempt(
            [*worker, *self.request.arguments], plan.world_size, self._environment(number)
        )
        ranks = self._attempt.run(self._watch)
        self._watch()
        end = self._end(number, ranks)
        left = self._bounds().max_restarts - (number - self._first)
        decision = decide(end, left, self._savings())
        self._events.emit(
            "attempt_ended",
            cause=decision.cause,
            action=decision.action.value,
            message=decision.message,
            ranks=[
                {"rank": r.rank, "exit_code": r.exit_code, "signal": r.signal_name} for r in ranks
            ],
        )
        self._watch()
        if decision.action is not Action.FINISH:
            self._show_failed_logs(ranks)
        return decision

    def _end(self, number: int, ranks: list[RankEnd]) -> AttemptEnd:
        mine = [event for event in self._seen if event["attempt"] == number]
        result = self.run_dir.result()
        return AttemptEnd(
            result=result if result and result.get("attempt") == number else None,
            ranks=ranks,
            failures=[event for event in mine if event["kind"] == "rank_failed"],
            steps=sum(event["kind"] in ("first_step", "step") for event in mine),
            killed_by_us=self._stops > 1,
            loss=self._find_loss() if any(rank.exit_code for rank in ranks) else None,
        )

    def _find_loss(self) -> Loss | None:
        config = self.request.config
        if config is None:
            return None
        if self.request.kind == "script":
            with suppress(DrumlineError):  # until it has opened its run nobody knows its own
                config = load_config(self.run_dir.config_path)
        adjusted = override(config, [f"{key}={value}" for key, value in self._overrides.items()])
        return find_loss(adjusted, self.plan, self._micro_batch(), self.request.probe, self._loss)

    def _environment(self, number: int) -> dict[str, str]:
        """Variables of every rank. Devices go by UUID and are set before CUDA can start."""
        plan = self.plan
        environment = {
            RUN_DIR: str(self.run_dir.path.resolve()),
            ATTEMPT: str(number),
            PLAN_DEVICES: plan.devices[0].kind,
            OVERRIDES: " ".join(f"{key}={value}" for key, value in self._overrides.items()),
            **host_threads(plan.world_size, on_gpu=plan.devices[0].kind != "cpu"),
            DEVICE_LOCKS: os.pathsep.join(map(str, self.request.locks)),
            "PYTHONUNBUFFERED": "1",
        }
        uuids = [device.uuid for device in plan.devices if device.uuid]
        if plan.devices[0].kind == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
        if plan.devices[0].kind == "rocm":
            environment["HIP_VISIBLE_DEVICES"] = ",".join(str(d.index) for d in plan.devices)
        return environment

    def _adjust(self, decision: Decision) -> None:
        action = decision.action
        if action is Action.RESTART_FEWER and decision.loss is not None:
            self._go_on_with(decision.loss)
        if action is Action.RESTART_SMALLER:
            self._overrides["micro_batch"] = str(max(1, self._micro_batch() // 2))
        if action is Action.RESTART_SHARDED:
            self._overrides["distributed.mode"] = Mode.SHARDED.value
        if action is Action.RESTART_PATIENT:
            for name in ("timeout_s", "control_timeout_s"):
                key = f"distributed.{name}"
                before = float(self._overrides.get(key, getattr(self._bounds(), name)))
                self._overrides[key] = str(2 * before)

    def _go_on_with(self, loss: Loss) -> None:
        """Take the plan for the devices that are left; ranks read it in the run directory."""
        assert loss.plan is not None
        self.plan, self._loss = loss.plan, loss
        self._overrides.update(loss.overrides)
        self.run_dir.write_json(self.run_dir.plan_path, self.plan.as_dict())
        self._events.emit(
            "devices_lost",
            lost=list(loss.lost),
            devices=[device.uuid for device in self.plan.devices],
            shares=list(self.plan.shares),
            mode=self.plan.mode.value,
        )

    def _savings(self) -> Savings:
        open_mode = self._bounds().mode is Mode.AUTO and "distributed.mode" not in self._overrides
        cutting = open_mode and self.plan.world_size > 1 and self.plan.mode is not Mode.SHARDED
        return Savings(halving=self._micro_batch() > 1, cutting=cutting)

    def _micro_batch(self) -> int:
        """What the ranks held at last: they may have halved it, and a script has its own."""
        told = [event["micro_batch"] for event in self._seen if "micro_batch" in event]
        asked = self._overrides.get("micro_batch", self.plan.micro_batch)
        return int(told[-1] if told else asked)

    def _bounds(self) -> DistributedConfig:
        """The config's bounds. Those of a script are known once it has opened its run."""
        if self.request.kind == "script":
            with suppress(DrumlineError):
                return load_config(self.run_dir.config_path).distributed
        return self.request.spread

    def _watch(self) -> None:
        self._seen += self._reader.new()
        for line in self._output.new():
            self._show(0, line)

    def _show_failed_logs(self, ranks: list[RankEnd]) -> None:
        """The last lines of ranks that failed by themselves, but for rank 0, which was shown."""
        reported = {event["rank"] for event in self._seen if event["kind"] == "rank_failed"}
        for rank in ranks:
            if not rank.ended_by_us and rank.rank != 0 and rank.rank in reported:
                for line in _last_lines(self.run_dir, rank.rank):
                    self._show(rank.rank, line)

    def _on_signal(self, number: signal.Signals) -> None:
        self._stops += 1
        if self._stops == 1:  # told at once: the ranks act at the end of a step, which may be long
            self._events.emit("stop_requested", signal=number.name)
        if self._attempt is None:
            return
        if self._stops > 1 and number is signal.SIGINT:
            self._attempt.kill()
        else:
            self._attempt.signal(signal.SIGTERM)

    def _outcome(self, decision: Decision, number: int) -> Outcome:
        attempts = number - self._first + 1
        result = self.run_dir.result() if decision.action is Action.FINISH else None
        if result is None and decision.action is not Action.FINISH:
            result = {
                "status": "failed",
                "message": decision.message,
                "remedy": decision.remedy,
                "cause": decision.cause,
                "exit_code": decision.exit_code or EXIT_FAILED,
                "attempt": number,
                **_how_far(self.run_dir),
            }
            self._events.emit("run_ended", **result)
            with suppress(OSError):  # a full disk must not hide why the run failed
                self.run_dir.write_json(
                    self.run_dir.result_path, {**result, "attempts": number + 1}
                )
            self._watch()
        result = result or {}
        code = int(result.get("exit_code", decision.exit_code))
        return Outcome(code, decision.message, decision.remedy, attempts, result)


class _Signals:
    """Handlers for the signals that stop a run, in the main thread, put back at the end."""

    def __init__(self, act: Callable[[signal.Signals], None]) -> None:
        self._act = act
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._act(signal.Signals(number))


class _Tail:
    """What rank 0 has written to its log since the launch began."""

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.rank_log(0)
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def new(self) -> list[str]:
        """Complete lines; what has no newline yet waits for it."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self._offset += end
        return data[:end].decode(errors="replace").splitlines()


def _next_attempt(run: RunDirectory) -> int:
    """One more than the last that began; what was told before any did is of none."""
    begun = (e for e in run.events() if e["rank"] >= 0 or e["kind"] == "attempt_started")
    return max((int(event["attempt"]) + 1 for event in begun), default=0)


def _last_lines(run: RunDirectory, rank: int) -> list[str]:
    try:
        return run.rank_log(rank).read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []


def _how_far(run: RunDirectory) -> dict[str, Any]:
    steps = [event for event in run.events() if event["kind"] == "step"]
    if not steps:
        return {"step": 0, "samples": 0}
    return {"step": steps[-1]["step"], "samples": steps[-1]["samples"]}

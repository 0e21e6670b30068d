"""Real runs for tests: started as a user starts them, followed through their events, read back.

A process is started in a session of its own, so that a test may signal the whole group, as a
terminal does. Waiting always has a deadline; on a busy machine it is generous.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from safetensors.torch import load_file

from drumline.config.environment import CACHE_FOLDER
from drumline.events import read_events
from drumline.training.checkpoint import CheckpointStore

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE_S = 180.0
_POLL_S = 0.05
_LAUNCHERS = ("DRUMLINE_", "TORCHELASTIC_", "SLURM_", "OMPI_")
_WORLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

Event = dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """A process that has ended, and its run directory if it has one."""

    code: int
    out: str
    err: str
    run: Path

    def events(self, kind: str | None = None) -> list[Event]:
        """The run's events, of one kind or all."""
        events = read_events(self.run / "events.jsonl")
        return [event for event in events if kind is None or event["kind"] == kind]

    def event(self, kind: str) -> Event:
        """The only event of a kind."""
        found = self.events(kind)
        assert len(found) == 1, f"{len(found)} events {kind}: {found}"
        return found[0]

    @property
    def losses(self) -> dict[int, float]:
        """Loss by step; of a step that was taken twice, the later."""
        return {event["step"]: event["loss"] for event in self.events("step")}

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The weights of the last checkpoint, verified."""
        return weights_of(self.run)

    @property
    def result(self) -> dict[str, Any]:
        """result.json."""
        value: dict[str, Any] = json.loads((self.run / "result.json").read_text())
        return value

    def succeeded(self) -> Finished:
        """Itself; fails with all that was printed if the exit code is not 0."""
        return self.ended_with(0)

    def ended_with(self, code: int) -> Finished:
        """Itself; fails with all that was printed if the exit code is another."""
        assert self.code == code, f"exit code {self.code}\n{self.out}\n{self.err}\n{self._logs()}"
        return self

    def _logs(self) -> str:
        logs = sorted((self.run / "logs").glob("rank-*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)


class Running:
    """A process under way."""

    def __init__(self, command: list[str], folder: Path, run: Path, environment: Environment):
        self.run = run
        self._out, self._err = folder / "stdout.txt", folder / "stderr.txt"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def events(self, kind: str | None = None) -> list[Event]:
        """Events so far, of one kind or all."""
        events = read_events(self.run / "events.jsonl")
        return [event for event in events if kind is None or event["kind"] == kind]

    def wait_for(self, what: str, found: Callable[[list[Event]], Any]) -> Any:
        """What `found` makes of the events, once that is true; fails if the process ends first."""
        return until(what, lambda: found(self.events()), alive=self.assert_running)

    def wait_for_step(self, step: int) -> None:
        """Wait for the metrics of a step."""
        self.wait_for(
            f"step {step}",
            lambda events: any(e["kind"] == "step" and e["step"] >= step for e in events),
        )

    def printed(self) -> str:
        """Its standard output so far."""
        return self._out.read_text()

    def rank_pids(self, world_size: int) -> dict[int, int]:
        """Process ids of the ranks of the latest attempt, once all have started."""
        pids: dict[int, int] = self.wait_for(
            f"{world_size} ranks", lambda events: _all_of(_pids(events), world_size)
        )
        return pids

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        self.process.send_signal(number)

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to the foreground process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def finish(self, deadline_s: float = DEADLINE_S) -> Finished:
        """Wait until it has ended."""
        code = self.process.wait(deadline_s)
        return Finished(code, self._out.read_text(), self._err.read_text(), self.run)

    def clear(self) -> None:
        """End whatever is left of it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(DEADLINE_S)
        for pid in _pids(self.events()).values():
            if _is_rank_of(pid, self.process.pid):
                os.kill(pid, signal.SIGKILL)

    def assert_running(self) -> None:
        """Fails with what it printed if it has ended."""
        assert self.process.poll() is None, (
            f"it ended with {self.process.returncode}\n"
            f"{self._out.read_text()}\n{self._err.read_text()}"
        )


Environment = dict[str, str]


@contextmanager
def started(
    arguments: Sequence[str | Path], folder: Path, *, run: str = "run", **environment: str
) -> Iterator[Running]:
    """`python ARGUMENTS...` in a folder, under way; ended at the end whatever happens.

    Args:
        arguments: After the interpreter.
        folder: Working directory, made if need be; output goes to files in it.
        run: The run directory that the arguments name, below the folder.
        **environment: Variables over those of the tests.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *map(str, arguments)]
    running = Running(command, folder, folder / run, {**_environment(), **environment})
    try:
        yield running
    finally:
        running.clear()


def run_to_end(
    arguments: Sequence[str | Path], folder: Path, *, run: str = "run", **environment: str
) -> Finished:
    """As `started`, to its end."""
    with started(arguments, folder, run=run, **environment) as running:
        return running.finish()


def train(config: Path, devices: str, *more: str, run: str = "run") -> list[str]:
    """`drumline train` on some devices, into a run directory of the working directory."""
    return [
        *("-m", "drumline", "train", str(config), *more),
        *("--gpus", devices, "--run-dir", run),
    ]


def script(
    program: str, devices: str, options: dict[str, Any] | None = None, *, run: str = "run"
) -> list[str]:
    """`drumline run` of one of the programs, its options as JSON."""
    return [
        *("-m", "drumline", "run", "--gpus", devices, "--run-dir", run),
        *(str(PROGRAMS / program), json.dumps(options or {})),
    ]


def alone(program: str, options: dict[str, Any] | None = None) -> list[str]:
    """A program started by hand, as one process."""
    return [str(PROGRAMS / program), json.dumps(options or {})]


def torchrun(world_size: int, *arguments: str, max_restarts: int = 0) -> list[str]:
    """What follows plain `torchrun` on one machine."""
    return [
        *("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"),
        *(f"--max-restarts={max_restarts}", *arguments),
    ]


def write_config(path: Path, config: dict[str, Any]) -> Path:
    """A config as YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config))
    return path


def weights_of(run: Path, which: str = "last") -> dict[str, torch.Tensor]:
    """The weights of a checkpoint of a run, verified."""
    checkpoint = CheckpointStore(run / "checkpoints").choose(which)
    return dict(load_file(checkpoint.weights_path))


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Over all tensors, the largest difference relative to the tensor's largest entry."""
    assert ours.keys() == theirs.keys()
    differences = [0.0]
    for name, tensor in ours.items():
        other = theirs[name]
        size = float(other.abs().max())
        differences.append(float((tensor - other).abs().max()) / (size or 1.0))
    return max(differences)


def assert_same_bits(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Every tensor is equal in dtype, shape and every bit."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), f"{name} differs"


def assert_all_gone(pids: Sequence[int]) -> None:
    """Wait until none of the processes lives any more."""
    until(
        f"the end of {pids}",
        lambda: not [pid for pid in pids if _lives(pid)],
    )


def until(
    what: str,
    found: Callable[[], Any],
    *,
    alive: Callable[[], None] = lambda: None,
    deadline_s: float = DEADLINE_S,
) -> Any:
    """Ask again and again until the answer is true; give it."""
    end = time.monotonic() + deadline_s
    while True:
        value = found()
        if value:
            return value
        alive()
        assert time.monotonic() < end, f"waited {deadline_s:.0f} s for {what}"
        time.sleep(_POLL_S)


def _environment() -> Environment:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == CACHE_FOLDER or (name not in _WORLD and not name.startswith(_LAUNCHERS))
    }
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}


def _pids(events: list[Event]) -> dict[int, int]:
    started = [event for event in events if event["kind"] == "rank_started"]
    last = max((event["attempt"] for event in started), default=0)
    return {event["rank"]: event["pid"] for event in started if event["attempt"] == last}


def _all_of(pids: dict[int, int], world_size: int) -> dict[int, int] | None:
    return pids if len(pids) == world_size else None


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_rank_of(pid: int, launcher: int) -> bool:
    """Whether a rank is still there; its process id may long belong to somebody else."""
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return False
    return "drumline.launch.worker" in command and str(launcher) in command

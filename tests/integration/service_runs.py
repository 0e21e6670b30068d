"""The service's processes for tests: agents as a user starts them, trainings through the queue."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from support import PROGRAMS, Running, started, until

from drumline.config.environment import MARK
from drumline.database import Database, open_database
from drumline.jobs.states import State
from drumline.jobs.training import Attempt, Request, Training
from drumline.jobs.trainings import Trainings

LEASE_S = 4.0


class Service:
    """A database with trainings in it, and agents of one host that work on it."""

    def __init__(self, url: str, folder: Path, activations: Path) -> None:
        self.url, self.folder, self.activations = url, folder, activations
        self.database: Database = open_database(url)
        self.trainings = Trainings(self.database)

    def environment(self, **more: str) -> dict[str, str]:
        """Of an agent: quick, with four simulated devices."""
        return {
            "DRUMLINE_DATABASE_URL": self.url,
            "DRUMLINE_HOME": str(self.folder / "home"),
            "DRUMLINE_RUN_ROOT": str(self.folder / "runs"),
            "DRUMLINE_LOCK_FOLDER": str(self.folder / "locks"),
            "DRUMLINE_SIMULATE": "4xH100",
            "DRUMLINE_LEASE_S": str(LEASE_S),
            "DRUMLINE_HEARTBEAT_S": "0.3",
            "DRUMLINE_POLL_S": "0.2",
            "DRUMLINE_SAMPLE_EVERY_S": "0.5",
            "DRUMLINE_PASSED_ENVIRONMENT": "PATH,HOME,OMP_NUM_THREADS,DRUMLINE_QUICK_STEPS",
            **more,
        }

    @contextmanager
    def agent(self, name: str = "agent", **more: str) -> Iterator[Running]:
        """`drumline agent`, under way."""
        environment = self.environment(**more)
        with started(["-m", "drumline", "agent"], self.folder / name, **environment) as running:
            yield running

    @contextmanager
    def quick_agent(self, name: str = "agent", **more: str) -> Iterator[Running]:
        """An agent whose trainings are quick stand-ins of 60 steps; see programs/quick_agent.py."""
        environment = self.environment(**more)
        program = [PROGRAMS / "quick_agent.py"]
        with started(program, self.folder / name, **environment) as running:
            yield running

    def queue(self, steps: int = 60, gpus: int = 1, **request: Any) -> str:
        """The id of a new training in the queue, of so many steps."""
        config = {
            "name": "tiny",
            "task": {
                "name": "sae",
                "activations": str(self.activations),
                "latents": 64,
                "k": 4,
                "bias_samples": 512,
                "evaluation": {"samples": 400},
            },
            "steps": steps,
            "global_batch": 96,
            "logging": {"every_steps": 5},
            "checkpoint": {"every_steps": 20},
        }
        return self.trainings.create(Request(config, owner="ann", gpus=gpus, **request)).id

    def training(self, training_id: str) -> Training:
        """As it is now."""
        return self.trainings.get(training_id)

    def wait_for(self, training_id: str, *states: State, agent: Running) -> Training:
        """Wait until a training is in one of the states; it then."""

        def found() -> Training | None:
            now = self.training(training_id)
            return now if now.state in states else None

        wanted = f"{training_id} to be {' or '.join(states)}"
        reached: Training = until(wanted, found, alive=agent.assert_running)
        return reached

    def wait_for_step(self, training_id: str, step: int, agent: Running) -> Training:
        """Wait until the database knows of a step."""

        def found() -> Training | None:
            now = self.training(training_id)
            return now if (now.step or 0) >= step else None

        wanted = f"step {step} of {training_id}"
        reached: Training = until(wanted, found, alive=agent.assert_running)
        return reached

    def attempt(self, training_id: str) -> Attempt:
        """The latest attempt."""
        return self.trainings.attempts(training_id)[-1]

    def processes(self, training_id: str) -> list[psutil.Process]:
        """All live processes of a training, its supervisor among them."""
        return [
            process
            for process in psutil.process_iter()
            if _mark(process).startswith(f"{training_id}/")
            and process.status() != psutil.STATUS_ZOMBIE
        ]

    def clear(self) -> None:
        """End what is left of all trainings."""
        for training in self.trainings.list(limit=200).items:
            for process in self.processes(training.id):
                process.send_signal(signal.SIGKILL)
        self.database.close()


def _mark(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(MARK, ""))
    except (psutil.Error, OSError):
        return ""

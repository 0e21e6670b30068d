"""Eight processes claim trainings of one database at once, on both engines; some are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa

from drumline.database import Database, now_ms, open_database
from drumline.database.tables import devices, gpu_leases, hosts
from drumline.hardware import Machine
from drumline.jobs.leases import Leases
from drumline.jobs.outcome import Ending
from drumline.jobs.states import State
from drumline.jobs.training import Request
from drumline.jobs.trainings import Trainings

PROGRAM = Path(__file__).parent / "programs" / "claiming_workers.py"
CONFIG = {"steps": 1, "task": {"name": "sae", "activations": "somewhere"}}
PROCESSES = 8


def queue_up(database: Database, many: int) -> list[str]:
    """Trainings of one to four devices, some of which ask for devices by name."""
    uuids = [device.uuid for device in Machine.probe(simulate="8xH100").devices]
    seen = {"first_seen_ms": 0, "last_seen_ms": 0}
    with database.writing() as connection:
        connection.execute(sa.insert(hosts).values(id="h", name="h", inventory={}, **seen))
        rows = [
            {"uuid": uuid, "host_id": "h", "index": index, "simulated": True, **seen}
            for index, uuid in enumerate(uuids)
        ]
        connection.execute(sa.insert(devices), rows)
    trainings = Trainings(database)
    asked = [
        Request(CONFIG, gpu_ids=(uuids[n % 8], uuids[(n + 3) % 8]))
        if n % 5 == 0
        else Request(CONFIG, gpus=1 + n % 4, owner=f"owner {n % 3}")
        for n in range(many)
    ]
    return [trainings.create(request).id for request in asked]


def workers(url: str, folder: Path, seconds: float) -> tuple[subprocess.Popen[str], list[int]]:
    """Processes that have begun together: who waits for them, and their ids."""
    command = [sys.executable, PROGRAM, url, folder, str(seconds), str(PROCESSES)]
    pipe = subprocess.PIPE
    parent = subprocess.Popen(
        list(map(str, command)), stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    ids = [int(word) for word in parent.stdout.readline().split()]
    assert len(ids) == PROCESSES, parent.communicate(timeout=60)[1]
    parent.stdin.write("go\n")
    parent.stdin.flush()
    return parent, ids


def claims_of(parent: subprocess.Popen[str]) -> list[str]:
    """The trainings they claimed, once all have ended, well or killed."""
    out, errors = parent.communicate(timeout=120)
    assert parent.returncode == 0, errors
    return [line.split()[1] for line in out.splitlines()]


def leases_left(database: Database) -> int:
    with database.reading() as connection:
        count = sa.select(sa.func.count()).select_from(gpu_leases)
        return int(connection.execute(count).scalar_one())


def test_no_device_and_no_training_is_taken_twice(database_url: str, tmp_path: Path) -> None:
    database = open_database(database_url)
    ids = queue_up(database, 60)
    folder = tmp_path / "held"
    folder.mkdir()
    claimed = claims_of(workers(database_url, folder, 0.01)[0])
    assert sorted(claimed) == sorted(ids)
    trainings = Trainings(database)
    for training_id in ids:
        training = trainings.get(training_id)
        assert (training.state, training.attempts_made) == (State.SUCCEEDED, 1)
    assert leases_left(database) == 0
    database.close()


def test_what_the_killed_held_is_taken_back_and_nothing_is_lost(
    database_url: str, tmp_path: Path
) -> None:
    """All eight are killed with SIGKILL wherever they are, in transactions too."""
    database = open_database(database_url)
    ids = queue_up(database, 40)
    folder = tmp_path / "held"
    folder.mkdir()
    parent, processes = workers(database_url, folder, 0.02)
    assert parent.stdout is not None
    for _ in range(PROCESSES):  # some have claimed and go on, others are about to
        assert parent.stdout.readline().startswith("claimed")
    for process in processes:
        with suppress(ProcessLookupError):  # it has seen that none waits any more
            os.kill(process, signal.SIGKILL)
    claims_of(parent)
    trainings = Trainings(database)
    before = {training_id: trainings.get(training_id) for training_id in ids}

    later = Leases(database, clock=lambda: now_ms() + 60_000)
    for attempt in later.expired("h"):
        done = later.reclaim(attempt.id, Ending(State.QUEUED, "lost", "killed"))
        assert done is State.QUEUED
    assert leases_left(database) == 0
    for file in folder.iterdir():
        file.unlink()

    claims_of(workers(database_url, folder, 0.0)[0])
    for training_id in ids:
        training = trainings.get(training_id)
        assert training.state is State.SUCCEEDED
        again = 0 if before[training_id].state is State.SUCCEEDED else 1
        assert training.attempts_made == before[training_id].attempts_made + again
    assert leases_left(database) == 0
    database.close()

"""Processes that claim trainings of a service's database, one after another, until none waits.

While one holds a device it holds a file named after it, made so that only one process can: a second
lease of a device shows as the error of making that file. Arguments: the URL of the database, the
folder of those files, how long a held training takes in seconds, and how many processes. Prints
their ids on one line, waits for a line, lets all begin, and prints a line for each claim. Ends with
1 if one of them fails; those that are killed do not count.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

from drumline.database import open_database
from drumline.hardware import Machine
from drumline.jobs.leases import Claim, Leases
from drumline.jobs.listing import Filter
from drumline.jobs.outcome import Ending, Outcomes
from drumline.jobs.states import State
from drumline.jobs.trainings import Trainings

MACHINE = Machine.probe(simulate="8xH100")


def main() -> int:
    """Start them, let them begin together, wait for all."""
    url, folder, seconds, count = sys.argv[1:]
    gate, opener = os.pipe()
    children = []
    for _ in range(int(count)):
        child = os.fork()  # after the imports, which take longer than all the claims
        if child == 0:
            os.close(opener)
            os._exit(worker(gate, url, Path(folder), float(seconds)))
        children.append(child)
    print(*children, flush=True)
    sys.stdin.readline()
    os.close(opener)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return int(any(os.WIFEXITED(status) and os.WEXITSTATUS(status) for status in statuses))


def worker(gate: int, url: str, folder: Path, seconds: float) -> int:
    """Claim, hold, finish; 1 where that fails."""
    try:
        database = open_database(url)
        leases, outcomes, trainings = Leases(database), Outcomes(database), Trainings(database)
        os.read(gate, 1)
        while trainings.list(Filter(states=[State.QUEUED]), limit=1).items:
            claim = leases.claim("h", MACHINE)
            if claim is None:
                time.sleep(0.03)  # others hold what the rest needs
                continue
            os.write(1, f"claimed {claim.training.id}\n".encode())
            run(claim, outcomes, folder, seconds)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(claim: Claim, outcomes: Outcomes, folder: Path, seconds: float) -> None:
    """Hold the devices for a while and end well."""
    files = [folder / uuid for uuid in claim.gpu_ids]
    for file in files:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    outcomes.starting(claim.token)
    outcomes.running(claim.token)
    time.sleep(seconds)
    for file in files:
        file.unlink()
    outcomes.finish(claim.token, Ending(State.SUCCEEDED, "done", "done", 0))


if __name__ == "__main__":
    sys.exit(main())

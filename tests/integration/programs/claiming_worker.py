"""Claims trainings of a service's database, one after another, until none waits.

While it holds a device it holds a file named after it, made so that only one process can: a second
lease of a device shows as the error of making that file. Arguments: the URL of the database, the
folder of those files, and how long a held training takes, in seconds. Prints a line when it is
ready, waits for one, then prints a line for each claim.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from drumline.database import open_database
from drumline.hardware import Machine
from drumline.jobs.leases import Claim, Leases
from drumline.jobs.listing import Filter
from drumline.jobs.outcome import Ending, Outcomes
from drumline.jobs.states import State
from drumline.jobs.trainings import Trainings


def main() -> None:
    """Claim, hold, finish."""
    url, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    database = open_database(url)
    leases, outcomes, trainings = Leases(database), Outcomes(database), Trainings(database)
    machine = Machine.probe(simulate="8xH100")
    print("ready", flush=True)
    sys.stdin.readline()
    while trainings.list(Filter(states=[State.QUEUED]), limit=1).items:
        claim = leases.claim("h", machine)
        if claim is None:
            time.sleep(0.03)  # others hold what the rest needs
            continue
        print("claimed", claim.training.id, flush=True)
        run(claim, outcomes, folder, seconds)


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
    main()

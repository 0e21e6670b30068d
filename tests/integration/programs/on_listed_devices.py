"""`drumline train` on CPU processes that have UUIDs, as GPUs do, and may be lost.

Arguments: config, run directory, and a JSON file with how many there are and which are lost; it is
read whenever the launcher looks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from drumline.config import load_config
from drumline.hardware import Device, Host, Machine
from drumline.launch import LaunchRequest, launch
from drumline.launch.preflight import open_run
from drumline.planning import plan


def machine() -> Machine:
    said = json.loads(Path(sys.argv[3]).read_text())
    devices = [Device(f"PROCESS-{n}", n, "cpu", "CPU process") for n in range(said["count"])]
    return Machine(
        Host("here"),
        tuple(d.as_lost("it fell off the bus") if d.uuid in said["lost"] else d for d in devices),
    )


def main() -> int:
    config = load_config(Path(sys.argv[1]), [f"run_dir={sys.argv[2]}"])
    made = plan(config, machine())
    with open_run(config, made, Path(sys.argv[2])) as run:
        request = LaunchRequest(
            run, made, "train", spread=config.distributed, config=config, probe=machine
        )
        outcome = launch(request, print)
    print(outcome.message)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())

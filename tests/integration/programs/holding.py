"""Launch one rank under a lock on a device that it does not use; the rank leaves a process behind.

Arguments: the lock folder, the run directory, the device's UUID. The rank's child leads a session
of its own and outlives rank and launcher, as a loader that escapes would.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def rank(payload: list[str]) -> None:
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.pause()
    aside = Path(payload[0], "escaped.part")
    aside.write_text(str(child))
    aside.rename(aside.with_suffix(""))
    signal.pause()


def main() -> None:
    from drumline.config import RunConfig
    from drumline.hardware.device_locks import DeviceLocks
    from drumline.launch import LaunchRequest, launch
    from drumline.launch.preflight import plan_here
    from drumline.run_directory import RunDirectory

    made = plan_here(RunConfig(steps=1, global_batch=8, devices="cpu"))
    run = RunDirectory.create(Path(sys.argv[2]))
    with DeviceLocks(Path(sys.argv[1]), [sys.argv[3]]) as locks:
        locks.tell(run.path)
        payload = f'["{run.path}"]'
        request = LaunchRequest(
            run, made, "call", ("holding:rank", payload), locks=tuple(locks.paths)
        )
        launch(request, lambda _, line: print(line))


if __name__ == "__main__":
    main()

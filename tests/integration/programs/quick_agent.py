"""An agent as it is, and supervisors as they are; only what these start is a quick stand-in.

Without arguments: the agent. `supervisor`: a supervisor. `launcher RUN UUID,...`: a training that
takes a second or so, writes the events of a real one, saves when told to stop, and notes whatever
must not happen: a device used by two at once, or a training that ends twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SELF = Path(__file__).resolve()
STEPS = int(os.environ.get("DRUMLINE_QUICK_STEPS", "60"))


def agent() -> None:
    from drumline.config.environment import MARK
    from drumline.config.service import ServiceSettings
    from drumline.jobs import agent_process
    from drumline.jobs.agent import Agent
    from drumline.jobs.supervisor import Order

    def start(order: Order, settings: ServiceSettings) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, str(SELF), "supervisor"],
            env={**os.environ, MARK: order.mark},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(order.as_json(settings).encode())
        return process

    class QuickAgent(Agent):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, start=start)  # type: ignore[arg-type]

    agent_process.Agent = QuickAgent  # type: ignore[misc]
    agent_process.run_agent(threading.Event())


def supervisor() -> None:
    from drumline.config.service import ServiceSettings
    from drumline.jobs import launching
    from drumline.jobs import supervisor as module
    from drumline.run_directory import RunDirectory

    def start_launcher(
        run: RunDirectory, devices: str, settings: ServiceSettings, mark: str
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(SELF), "launcher", str(run.path), devices],
            env=launching.environment(settings, mark, os.environ),
            start_new_session=True,
        )

    module.start_launcher = start_launcher
    module.devices_of = lambda config, gpu_ids: ",".join(gpu_ids)
    module.main()


def launcher(run: Path, uuids: list[str]) -> None:
    from drumline.events import EventLog, read_events

    notes = run.parent / "violations"
    held = []
    for uuid in uuids:  # kept to the end of this process and of what it forks
        file = (run.parent / f"{uuid}.used").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _note(notes, f"{uuid} is used by two")
        held.append(file)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    if os.fork() == 0:  # a rank, in a session of its own, that ignores everything
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    log = read_events(run / "events.jsonl")
    if any(event["kind"] == "run_ended" and event["status"] == "done" for event in log):
        _note(notes, f"{run.name} goes on after its end")
    reached = max((event["step"] for event in log if event["kind"] == "step"), default=0)
    events = EventLog(run / "events.jsonl")
    (run / "result.json").unlink(missing_ok=True)
    events.emit("run_started", world_size=len(uuids), step=reached, steps=STEPS)
    for step in range(reached + 1, STEPS + 1):
        if stopped.wait(0.05 * random.random()):
            break
        events.emit("step", step=step, steps=STEPS, loss=1.0 / step)
    else:
        reached = STEPS
    status, code = ("done", 0) if reached == STEPS else ("stopped", 75)
    result = {"status": status, "exit_code": code, "message": status}
    part = run / "result.part"
    part.write_text(json.dumps(result))
    part.rename(run / "result.json")
    events.emit("run_ended", status=status)
    os._exit(code)  # the rank stays, for the supervisor to end


def _note(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["supervisor"]:
        supervisor()
    elif sys.argv[1:2] == ["launcher"]:
        launcher(Path(sys.argv[2]), [uuid for uuid in sys.argv[3].split(",") if uuid])
    else:
        agent()

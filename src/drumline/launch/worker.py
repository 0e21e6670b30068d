"""What every rank executes: `python -m drumline.launch.worker PARENT KIND ARGUMENTS...`.

It ties itself to the launcher's life, holds the devices with it, sends its output to its own log,
waits to be told where the others are, and then trains the run directory's config, calls a
function, or runs a user's script. A failure becomes an event that says what the cause was, for the
launcher to decide on.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from drumline.config import ClusterEnvironment
from drumline.config.environment import device_lock_paths
from drumline.errors import EXIT_FAILED, BadInput, DrumlineError
from drumline.events import EventLog
from drumline.hardware.device_locks import join_claim
from drumline.launch.lifeline import die_with_parent
from drumline.launch.policy import COMMUNICATION, OUT_OF_MEMORY, TIMEOUT
from drumline.launch.ranks import await_rendezvous
from drumline.run_directory import RunDirectory


def main(arguments: list[str]) -> int:
    """Run one rank; returns its exit code."""
    die_with_parent(int(arguments[0]))
    join_claim(device_lock_paths())
    environment = ClusterEnvironment.detect()
    assert environment.run_dir is not None, "the launcher names the run directory"
    run = RunDirectory(environment.run_dir)
    try:
        _redirect_output(run.rank_log(environment.rank))
    except FileNotFoundError:  # the launcher has ended and tidied up
        return EXIT_FAILED
    faulthandler.enable()  # a crash tells where it was
    events = EventLog(run.events_path, attempt=environment.attempt, rank=environment.rank)
    events.emit("rank_started", pid=os.getpid())
    try:
        if arguments[1] != "script":  # which may have something to set before it imports torch
            with suppress(Exception):  # what needs it tells
                import torch  # noqa: F401  (while the launcher does)
        await_rendezvous()
        _execute(arguments[1], arguments[2:], run)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        if not isinstance(error, BadInput):  # whose message says all that a user needs
            traceback.print_exc()
            sys.stderr.flush()
        events.emit("rank_failed", **describe(error))
        return error.exit_code if isinstance(error, DrumlineError) else EXIT_FAILED
    return 0


def _execute(kind: str, arguments: list[str], run: RunDirectory) -> None:
    if kind == "train":
        from drumline.config import load_config
        from drumline.training import Trainer

        Trainer(load_config(run.config_path)).fit()
    elif kind == "call":
        from drumline.config.section import import_object

        import_object(arguments[0])(json.loads(arguments[1]))
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def describe(error: BaseException) -> dict[str, Any]:
    """A failure as the fields of a `rank_failed` event: code, message, remedy, exit code, trace."""
    if isinstance(error, DrumlineError):
        facts = error.as_dict()
        facts["message"] = str(error.message)
        exit_code = error.exit_code
    else:
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        facts = {
            "code": _classify(error),
            "message": f"{type(error).__name__}: {first}".rstrip(": "),
            "remedy": "",
        }
        exit_code = EXIT_FAILED
    trace = "".join(traceback.format_exception(error))
    return {**facts, "exit_code": exit_code, "traceback": trace[-8000:]}


def _classify(error: BaseException) -> str:
    """What kind of failure an error of torch is; peers of a dead rank get `communication`."""
    from drumline.distributed import is_communication_failure
    from drumline.training.step import is_out_of_memory

    text = str(error)
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    if isinstance(error, RuntimeError) and "timed out" in text.lower():
        return TIMEOUT
    if is_communication_failure(error):
        return COMMUNICATION
    return "exception"


def _redirect_output(path: Path) -> None:
    """Append stdout and stderr, also those of C libraries, to a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # not through atexit handlers, which may wait for peers that are gone

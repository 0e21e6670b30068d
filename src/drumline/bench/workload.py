"""What a step of a config costs, asked without torch: the trace runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from drumline.config import RunConfig
from drumline.errors import BadInput, LaunchError
from drumline.planning.workload import Workload

_TIMEOUT_S = 300


def ask_workload(config: RunConfig) -> dict[str, Any]:
    """What `bench.workload_trace` answers: the trace or an error, and the sources they come from.

    Raises:
        BadInput: If the config names no task.
        LaunchError: If the process died, or was not done in time.
    """
    if config.task is None:
        raise BadInput("The config names no task.", remedy="Set task.name.")
    config.task.check()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "drumline.bench.workload_trace"],
            input=config.model_dump_json(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _untraceable(f"it was not done after {_TIMEOUT_S} s") from None
    if done.returncode:
        raise _untraceable((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def workload_in(answer: dict[str, Any]) -> Workload:
    """The trace in an answer.

    Raises:
        LaunchError: If there is an error in its place.
    """
    if "error" in answer:
        raise _untraceable(answer["error"])
    return Workload.from_dict(answer["trace"])


def _untraceable(why: str) -> LaunchError:
    return LaunchError(
        f"The task could not be traced: {why}",
        remedy="Time it on a device instead: drumline estimate CONFIG --calibrate",
    )

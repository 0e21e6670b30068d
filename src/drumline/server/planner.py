"""Plans for requests: made in processes of their own, a few at a time, and ended in time.

So the service never imports torch, and no config can hold it up.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from drumline.config.environment import only_these
from drumline.config.service import ServiceSettings
from drumline.errors import BadInput, DrumlineError, LaunchError
from drumline.hardware import Machine
from drumline.server.errors import Overloaded, TookTooLong

logger = logging.getLogger(__name__)

AT_A_TIME = 2
TIMEOUT_S = 120.0
_MODULE = "drumline.server.plan_process"


class PlanRefused(BadInput):
    """The config cannot be planned; the code is that of the plan's own error."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told["message"], remedy=told["remedy"], **told["values"])
        self.code = told["code"]  # type: ignore[misc]


class Planner:
    """Makes plans.

    Args:
        settings: Of the service.
        at_a_time: How many plans are made at once; more are refused.
        timeout_s: How long one may take.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        *,
        at_a_time: int = AT_A_TIME,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._environment = only_these(settings.passed_environment)
        self._timeout_s = timeout_s
        self._free = threading.Semaphore(at_a_time)

    def plan(
        self, config: dict[str, Any], machine: Machine, occupied: Collection[str]
    ) -> dict[str, Any]:
        """A whole plan as plain data; see `drumline.bench.whole_plan`.

        Raises:
            PlanRefused: If the config cannot be planned there.
            Overloaded: If as many plans as may be are being made.
            TookTooLong: If it was not made in time.
            LaunchError: If its process died.
        """
        if not self._free.acquire(blocking=False):
            raise Overloaded("As many plans as may be are being made.", retry_after_s=5)
        try:
            request = {
                "config": config,
                "machine": machine.as_dict(),
                "occupied": sorted(occupied),
            }
            return self._answer(self._run(json.dumps(request, default=str)))
        finally:
            self._free.release()

    def _run(self, request: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        try:
            said, complained = process.communicate(request, timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            raise TookTooLong(
                f"The plan was not made within {self._timeout_s:.0f} s.",
                remedy="Make it with `drumline plan`, or plan a smaller model first.",
            ) from None
        finally:
            _end(process)
        if process.returncode != 0:
            logger.error("A plan's process ended with %s: %s", process.returncode, complained)
            raise LaunchError(
                "The process that makes plans has failed; the service's log tells why.",
                remedy="Make the plan with `drumline plan` to see the error.",
            )
        return said

    def _answer(self, said: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        if "plan" in found:
            made: dict[str, Any] = found["plan"]
            return made
        if found["kind"] == "failed":
            told = found["error"]
            raise DrumlineError(told["message"], remedy=told["remedy"])
        raise PlanRefused(found["error"])


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()

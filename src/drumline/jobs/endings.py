"""How an attempt ended, from what its launcher left: an exit code, its last word, result.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drumline.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_RESUME_ME, DeviceError
from drumline.jobs.outcome import Ending
from drumline.jobs.states import State
from drumline.run_directory import RunDirectory

LAST_WORD = "launcher.json"
"""In the folder of logs: what the launcher prints as JSON."""


def ending_of(exit_code: int, run: RunDirectory) -> Ending:
    """How an attempt ended whose launcher ended with `exit_code`.

    A stop nobody is known to have asked for, as by the shutdown of the machine, and a launcher
    that was killed are no ends of the training, nor are devices that are not to be had any more:
    it goes on in another attempt.
    """
    code, said = _last_word(run)
    if exit_code == EXIT_DONE:
        return Ending(State.SUCCEEDED, "done", "done", exit_code)
    if exit_code == EXIT_RESUME_ME:
        return Ending(State.QUEUED, "stopped", said or "stopped on request", exit_code)
    if exit_code < 0:
        return Ending(State.QUEUED, "lost", f"the launcher was killed by signal {-exit_code}")
    if code == DeviceError.code:  # somebody outside the queue was faster
        return Ending(State.QUEUED, "device_taken", said, exit_code)
    cause = "bad_input" if exit_code == EXIT_BAD_INPUT else "failed"
    verdict = said or f"the launcher ended with exit code {exit_code}"
    return Ending(State.FAILED, cause, verdict, exit_code)


def ending_found(run_dir: str | None, claimed_ms: int) -> Ending | None:
    """How an attempt ended that nobody supervised to the end; None where it did not end by itself.

    Args:
        run_dir: Its run directory, if it had come so far as to have one.
        claimed_ms: When the attempt began; a result from before is not its own.
    """
    if run_dir is None:
        return None
    run = RunDirectory(Path(run_dir))
    try:
        written_ms = run.result_path.stat().st_mtime * 1000
    except OSError:
        return None
    result = run.result()
    if result is None or written_ms < claimed_ms:
        return None
    if result.get("status") == "done":
        return Ending(State.SUCCEEDED, "done", "done", EXIT_DONE)
    if result.get("status") == "failed":
        code = int(result.get("exit_code") or 1)
        cause = "bad_input" if code == EXIT_BAD_INPUT else "failed"
        return Ending(State.FAILED, cause, _sentence(result), code)
    return None


def _last_word(run: RunDirectory) -> tuple[str, str]:
    """Code and message of the launcher's JSON, or of result.json; empty where there is neither."""
    try:
        said: Any = json.loads((run.logs_path / LAST_WORD).read_text())
    except (OSError, ValueError):
        said = None
    if isinstance(said, dict):
        error = said.get("error")
        told = error if isinstance(error, dict) else said
        if _sentence(told):
            return str(told.get("code", "")), _sentence(told)
    return "", _sentence(run.result() or {})


def _sentence(told: Mapping[str, Any]) -> str:
    return f"{told.get('message') or ''} {told.get('remedy') or ''}".strip()

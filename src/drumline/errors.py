"""Every error a user can meet: a code, what happened with its values, and what to do about it.

Errors are raised where the cause is known and printed in one place (the command line, or the
service). `exit_code` is what the command line ends with; the four values are documented for users.
"""

from __future__ import annotations

from typing import Any, ClassVar

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_RESUME_ME = 75  # EX_TEMPFAIL of sysexits.h: stopped on request, run again to go on


class DrumlineError(Exception):
    """Base of all errors with a known cause.

    Args:
        message: What happened, with the values involved.
        remedy: What the user can do; one sentence.
        **values: The values involved, for `--json` and the event log.
    """

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self, message: str, *, remedy: str = "", **values: Any) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.values = values

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()

    def as_dict(self) -> dict[str, Any]:
        """The error as plain data: code, message, remedy and values."""
        return {
            "code": self.code,
            "message": self.message,
            "remedy": self.remedy,
            "values": {key: _plain(value) for key, value in self.values.items()},
        }


class BadInput(DrumlineError):
    """Something the user gave cannot be used; nothing was started or written."""

    code = "bad_input"
    exit_code = EXIT_BAD_INPUT


class ConfigError(BadInput):
    """One or more keys of a config are wrong. `problems` holds one (key, value, remedy) each."""

    code = "bad_config"

    def __init__(self, source: str, problems: list[ConfigProblem]) -> None:
        lines = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(f"{source} cannot be used:\n{lines}", source=source)
        self.problems = problems

    def as_dict(self) -> dict[str, Any]:
        """The error as plain data, with every problem in a list."""
        return {**super().as_dict(), "problems": [problem.as_dict() for problem in self.problems]}


class ConfigProblem:
    """What is wrong with one key of a config."""

    def __init__(self, key: str, value: object, what: str, remedy: str) -> None:
        self.key, self.value, self.what, self.remedy = key, value, what, remedy

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {self.value!r}"
        return f"{self.key}{shown}: {self.what}. {self.remedy}".rstrip()

    def as_dict(self) -> dict[str, Any]:
        """Key, value, what is wrong and the remedy."""
        return {
            "key": self.key,
            "value": _plain(self.value),
            "what": self.what,
            "remedy": self.remedy,
        }


class DeviceError(BadInput):
    """The devices asked for are not there, or not enough, or not usable."""

    code = "bad_devices"


class DataError(BadInput):
    """A data set is missing, unreadable, of the wrong shape, or holds values it must not."""

    code = "bad_data"


class CheckpointError(DrumlineError):
    """A checkpoint cannot be read or written."""

    code = "bad_checkpoint"


class RunDirectoryError(BadInput):
    """A run directory is missing, cannot be written, or is not one."""

    code = "bad_run_directory"


class RankFailure(DrumlineError):
    """A rank is missing, late or out of step; the message names it."""

    code = "rank_failed"


class NumericsError(DrumlineError):
    """Training went non-finite for longer than the config allows."""

    code = "non_finite"


class LaunchError(DrumlineError):
    """An attempt could not be started or ended without a result."""

    code = "launch_failed"


class MissingPackage(BadInput):
    """An optional package is needed for what was asked."""

    code = "missing_package"

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed.",
            remedy=f"Install it with: pip install 'drumline[{extra}]'",
            package=package,
        )


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None | list | dict) else str(value)

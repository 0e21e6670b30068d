"""The seam between the terminal and `drumline.launch`: plain requests in, one outcome out.

A command builds a request, the floor below does the work and reports through `Follower`: it calls
`follower.watch(events_path, trackers)` before the first attempt starts, and
`follower.output(rank, line)` for what goes to the terminal. An error with a known cause is raised
as a `DrumlineError`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.errors import EXIT_DONE

if TYPE_CHECKING:
    from drumline.cli.follow import Follower
    from drumline.config import RunConfig


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        status: "done", "stopped", "failed" or, for a dry run, "planned".
        exit_code: One of the four of `drumline.errors`.
        message: Why it failed or stopped; empty when done.
        path: The run directory, or the folder that was written.
        metrics: Final metrics by name.
        plan: The plan as plain data, as in plan.json; for a dry run.
        values: Anything else a program may want to know.
    """

    status: str
    exit_code: int = EXIT_DONE
    message: str = ""
    path: Path | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    plan: dict[str, Any] | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The outcome as plain data for `--json`."""
        return {
            "status": self.status,
            "exit_code": self.exit_code,
            "message": self.message,
            "path": None if self.path is None else str(self.path),
            "metrics": self.metrics,
            "plan": self.plan,
            **self.values,
        }


@dataclass(frozen=True)
class TrainOptions:
    """What `drumline train` asks for beyond the config. `resume` is a run directory."""

    resume: Path | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class ScriptRequest:
    """What `drumline run` asks for."""

    script: Path
    arguments: list[str]
    gpus: str


@dataclass(frozen=True)
class ExtractRequest:
    """What `drumline activations extract` asks for. `length` is tokens in one context."""

    model: str
    layer: int
    text: list[Path]
    out: Path
    gpus: str
    dtype: str
    length: int


@dataclass(frozen=True)
class ExportRequest:
    """What `drumline sae export` asks for. `checkpoint` is "best", "last" or a step."""

    run: Path
    format: str
    out: Path
    checkpoint: str


@dataclass(frozen=True)
class DemoRequest:
    """What `drumline demo` asks for."""

    out: Path
    gpus: str


def train(config: RunConfig, options: TrainOptions, follower: Follower) -> Outcome:
    """Plan and run a training over all its attempts; with `dry_run` plan only."""
    raise NotImplementedError("drumline.launch is not wired to the terminal yet")


def run_script(request: ScriptRequest, follower: Follower) -> Outcome:
    """Run a user's script, one process per device."""
    raise NotImplementedError("drumline.launch is not wired to the terminal yet")


def extract(request: ExtractRequest, follower: Follower) -> Outcome:
    """Store activations; goes on where an earlier call with the same request ended."""
    raise NotImplementedError("drumline.launch is not wired to the terminal yet")


def export(request: ExportRequest) -> Outcome:
    """Write a trained SAE in another format."""
    raise NotImplementedError("drumline.launch is not wired to the terminal yet")


def demo(request: DemoRequest, follower: Follower) -> Outcome:
    """Extract activations of the demo's model and train an SAE on them."""
    raise NotImplementedError("drumline.launch is not wired to the terminal yet")

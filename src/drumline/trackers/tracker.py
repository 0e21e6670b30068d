"""What a tracker is, and opening one by its name in a config."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any, Protocol

from drumline.config import RunConfig
from drumline.errors import BadInput, MissingPackage
from drumline.run_directory import RunDirectory

PURPOSES = {"tensorboard": "Writing for TensorBoard", "wandb": "Logging to Weights & Biases"}


class Tracker(Protocol):
    """Takes events until it is closed."""

    def feed(self, events: list[dict[str, Any]]) -> None:
        """Pass on the numbers of more events, in the order written."""

    def close(self) -> None:
        """Write out what is pending. Closing twice does nothing."""


def require_trackers(names: Iterable[str]) -> None:
    """Check that the packages of these trackers are installed, without importing them.

    Raises:
        BadInput: If there is no tracker of a name.
        MissingPackage: If one's package is not installed.
    """
    for name in names:
        if name not in PURPOSES:
            raise BadInput(
                f"There is no tracker {name!r}.", remedy=f"Use one of: {', '.join(PURPOSES)}."
            )
        if find_spec(name) is None:
            raise MissingPackage(name, "trackers", PURPOSES[name])


def open_tracker(name: str, run: RunDirectory, config: RunConfig) -> Tracker:
    """Open the tracker of a run; what it writes locally goes below the run directory.

    Raises:
        BadInput: If there is no tracker of that name.
        MissingPackage: If its package is not installed.
    """
    require_trackers([name])
    if name == "tensorboard":
        from drumline.trackers.tensorboard import TensorBoardTracker

        return TensorBoardTracker(run.path / "tensorboard")
    from drumline.trackers.wandb import WandbTracker

    return WandbTracker(run.path, config)

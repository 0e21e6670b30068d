"""One attempt: all ranks of this machine, from their start until the last has ended.

The elastic agent that watches over them runs in a thread of its own, so the launcher's main thread
is free to show progress and to take signals.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence

from drumline.errors import LaunchError
from drumline.launch.policy import RankEnd
from drumline.launch.ranks import Ranks

_POLL_S = 0.1


class Attempt:
    """All ranks of one attempt on this machine, which start at once.

    Args:
        arguments: What every rank executes, after the Python interpreter.
        world_size: How many ranks.
        environment: Variables for every rank, over those of this process.

    Raises:
        LaunchError: If the ranks could not be started.
    """

    def __init__(
        self, arguments: Sequence[str], world_size: int, environment: Mapping[str, str]
    ) -> None:
        self._ranks = Ranks(arguments, world_size, environment)
        self._ends: list[RankEnd] | None = None
        self._error: BaseException | None = None

    def run(self, watch: Callable[[], None]) -> list[RankEnd]:
        """Wait until all ranks have ended, calling `watch` about ten times a second.

        Raises:
            LaunchError: If they could not be brought together.
        """
        try:
            thread = threading.Thread(target=self._watch_over, name="elastic-agent")
            thread.start()
            while thread.is_alive():
                thread.join(_POLL_S)
                watch()
        finally:
            self._ranks.end()
        if self._ends is None:
            raise LaunchError(
                f"The ranks could not be started: {self._error}", remedy="See the message above."
            ) from self._error
        return self._ends

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank (not to the processes they have started)."""
        self._ranks.signal(number)

    def kill(self) -> None:
        """End every rank and all it has started, at once."""
        self._ranks.kill()

    def _watch_over(self) -> None:
        try:
            from drumline.launch.agent import watch_over

            self._ends = watch_over(self._ranks)
        except BaseException as error:  # reported by `run` in the main thread
            self._error = error

"""How far a run is in its environments, over all ranks: steps, episodes, and what they brought."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Counts:
    """Counts since the run began, and facts about the latest rollout.

    Attributes:
        environment_steps: Steps in all environments together.
        episodes: Episodes that ended.
        latest: Facts to show, by name; of the latest rollout in which they were known.
    """

    environment_steps: int = 0
    episodes: int = 0
    latest: dict[str, float] = field(default_factory=dict)
    _since: float | None = None

    def add(self, sums: list[float], steps: int) -> None:
        """Count a rollout.

        Args:
            sums: Over all ranks: episodes that ended, their returns, their lengths; the errors of
                the values, their squares; the returns that values should have foretold, their
                squares.
            steps: Steps in all environments together.
        """
        ended, returns, lengths, error, squared_error, wanted, squared_wanted = sums
        self.environment_steps += steps
        self.episodes += round(ended)
        if ended:
            self.latest["episode_return"] = returns / ended
            self.latest["episode_length"] = lengths / ended
        spread = squared_wanted / steps - (wanted / steps) ** 2
        if spread > 0:
            missed = squared_error / steps - (error / steps) ** 2
            self.latest["explained_variance"] = 1 - missed / spread
        now = time.perf_counter()
        if self._since is not None:
            self.latest["environment_steps_per_s"] = steps / (now - self._since)
        self._since = now

    def shown(self) -> dict[str, float]:
        """All of it as metrics."""
        counted = {"environment_steps": self.environment_steps, "episodes": self.episodes}
        return self.latest | {name: float(value) for name, value in counted.items()}

    def state_dict(self) -> dict[str, Any]:
        """Counts and facts as plain values."""
        return {
            "environment_steps": self.environment_steps,
            "episodes": self.episodes,
            "latest": dict(self.latest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.environment_steps, self.episodes = state["environment_steps"], state["episodes"]
        self.latest = dict(state["latest"])
        self._since = None

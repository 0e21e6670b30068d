"""The portfolio as one Gymnasium environment in plain numpy: the reference for the batched form,
and a way to other libraries.

    gymnasium.make("drumline.tasks.clstm_ppo.trading.gymnasium_portfolio:Portfolio-v0")
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from drumline.tasks.clstm_ppo.trading.config import PortfolioConfig
from drumline.tasks.clstm_ppo.trading.market import Market, load_market
from drumline.tasks.clstm_ppo.trading.prices import Array


class GymnasiumPortfolio(gymnasium.Env[Array, Array]):
    """See `portfolio` for what a step is and what is observed.

    Args:
        market: Whose stocks are traded; None: the one that the config names.
        config: The keys; None: made of `keys`.
        keys: Those of `PortfolioConfig`.
    """

    def __init__(
        self,
        market: Market | None = None,
        config: PortfolioConfig | None = None,
        **keys: Any,
    ) -> None:
        self.config = config or PortfolioConfig(**keys)
        self.market = load_market(self.config) if market is None else market
        self.span = self.market.span(self.config.played)
        self.steps = self.config.episode_days or self.span.steps
        _, features, self.stocks = self.market.features.shape
        size = 2 + features * self.stocks + self.stocks
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        low = -1.0 if self.config.actions == "trades" else 0.0
        self.action_space = gymnasium.spaces.Box(low, 1.0, (self.stocks,), np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin on a random day, or on options["day"], its number in the market."""
        super().reset(seed=seed)
        latest = self.span.begin + self.span.steps - self.steps
        drawn = int(self.np_random.integers(self.span.begin, latest + 1))
        self.day = int((options or {}).get("day", drawn))
        self.elapsed = 0
        self.cash = self.config.cash
        self.holdings = np.zeros(self.stocks)
        return self._observation(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Trade at the close of the day, and see the next."""
        before = self._value()
        wanted = self._wanted(np.asarray(action, dtype=np.float64))
        if self.market.turbulent[self.day]:
            wanted = -self.holdings
        self._sell(wanted)
        self._buy(wanted)
        self.day += 1
        self.elapsed += 1
        reward = (self._value() - before) * self.config.reward_scale
        return self._observation(), float(reward), False, self.elapsed >= self.steps, {}

    def _wanted(self, action: Array) -> Array:
        if self.config.actions == "trades":
            return np.clip(action, -1, 1) * self.config.hmax
        weights = np.clip(action, 0, 1)
        weights = weights / max(weights.sum(), 1.0)
        wanted: Array = weights * self._value() / self._prices() - self.holdings
        return wanted

    def _sell(self, wanted: Array) -> None:
        for stock, price in enumerate(self._prices()):
            shares = min(max(-wanted[stock], 0.0), self.holdings[stock])
            self.holdings[stock] -= shares
            self.cash += shares * price * (1 - self.config.cost)

    def _buy(self, wanted: Array) -> None:
        """What is wanted, or as large a part of all of it as the cash pays for."""
        shares = np.maximum(wanted, 0)
        needed = float(shares @ self._prices()) * (1 + self.config.cost)
        if needed > self.cash:
            shares = shares * (self.cash / needed)
            needed = self.cash
        self.holdings += shares
        self.cash -= needed

    def _prices(self) -> Array:
        prices: Array = self.market.close[self.day]
        return prices

    def _value(self) -> float:
        return float(self.cash + self.holdings @ self._prices())

    def _observation(self) -> Array:
        return np.concatenate(
            [
                [self.cash / self.config.cash],
                [float(self.market.turbulent[self.day])],
                self.market.features[self.day].reshape(-1),
                self.holdings * self._prices() / self.config.cash,
            ]
        )


gymnasium.register("Portfolio-v0", f"{__name__}:GymnasiumPortfolio")

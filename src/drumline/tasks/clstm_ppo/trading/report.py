"""A backtest as data: each strategy's values over the same days, measured in the same way.

How it is shown is left to the terminal and to `chart`. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from drumline.tasks.clstm_ppo.trading.measures import NAMES, Measures, Spread, measure
from drumline.tasks.clstm_ppo.trading.prices import Array, Days


@dataclass(frozen=True)
class Strategy:
    """One way to trade, tried n times: runs of several seeds, or once where nothing is random.

    Attributes:
        name: What it is called.
        values: [n, T + 1], the portfolio at each close.
        traded: [n, T], value of what was sold and bought.
    """

    name: str
    values: Array
    traded: Array

    @property
    def measures(self) -> list[Measures]:
        """Of each try."""
        return [measure(v, t) for v, t in zip(self.values, self.traded, strict=True)]

    def spread(self) -> dict[str, Spread]:
        """Each measure over all tries."""
        each = [found.as_dict() for found in self.measures]
        return {name: Spread.of(np.array([one[name] for one in each])) for name in NAMES}


@dataclass(frozen=True)
class Report:
    """Strategies side by side.

    Attributes:
        days: datetime64[T + 1], those of all values.
        use: What the days were for: train, validation or test.
        symbols: The stocks.
        cost: Part of a trade's value that it costs; the same for all.
        strategies: Those that were trained first.
        notes: What was repaired in the prices or looks odd.
    """

    days: Days
    use: str
    symbols: tuple[str, ...]
    cost: float
    strategies: tuple[Strategy, ...]
    notes: tuple[str, ...] = ()

    def caption(self) -> str:
        """What was measured, and how to read it."""
        return (
            f"{len(self.days) - 1} steps on {self.use} days, {self.days[0]} to {self.days[-1]}, "
            f"{len(self.symbols)} stocks, a trade costs {self.cost:.2%} of its value. Means over "
            "tries, ± their standard deviation; one try has none. Drawdown is the largest; the "
            "Sharpe ratio is yearly with a risk-free rate of 0; turnover is sales and purchases of "
            "a year over the portfolio."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data: facts, and each measure of each strategy with its spread."""
        return {
            "use": self.use,
            "first_day": str(self.days[0]),
            "last_day": str(self.days[-1]),
            "steps": len(self.days) - 1,
            "symbols": list(self.symbols),
            "cost": self.cost,
            "notes": list(self.notes),
            "strategies": {
                strategy.name: {
                    "tries": len(strategy.values),
                    "measures": {
                        name: {
                            "mean": found.mean,
                            "deviation": found.deviation if found.number > 1 else None,
                            "least": found.least,
                            "most": found.most,
                        }
                        for name, found in strategy.spread().items()
                    },
                }
                for strategy in self.strategies
            },
        }

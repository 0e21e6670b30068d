"""What a sequence of portfolio values is worth, by the usual measures. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from drumline.tasks.clstm_ppo.trading.indicators import TRADING_DAYS
from drumline.tasks.clstm_ppo.trading.prices import Array


@dataclass(frozen=True)
class Measures:
    """Of one portfolio over T days. Fractions, not percent.

    Attributes:
        cumulative_return: Last value over first, less 1.
        annual_return: The same growth for a year of 252 days.
        annual_volatility: Standard deviation of daily returns, times sqrt(252).
        max_drawdown: The largest fall from the highest value so far, as a fraction of it.
        sharpe: Mean over standard deviation of daily returns, times sqrt(252); the risk-free rate
            is taken as 0 (Sharpe 1994). NaN where nothing moved.
        turnover: Value of what was sold and bought in a year, over the portfolio's.
    """

    cumulative_return: float
    annual_return: float
    annual_volatility: float
    max_drawdown: float
    sharpe: float
    turnover: float

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


NAMES = tuple(field.name for field in fields(Measures))


def measure(values: Array, traded: Array) -> Measures:
    """The measures of one portfolio.

    Args:
        values: [T + 1], at each day's close, before that day's trades.
        traded: [T], value of what was sold and bought on all days but the last.
    """
    alive = values[:-1] > 0  # with options a portfolio can lose all
    before = np.where(alive, values[:-1], 1.0)
    returns = np.where(alive, values[1:] / before - 1, 0.0)
    growth = float(values[-1] / values[0])
    deviation = float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
    yearly = math.sqrt(TRADING_DAYS)
    return Measures(
        cumulative_return=growth - 1,
        annual_return=growth ** (TRADING_DAYS / len(returns)) - 1,
        annual_volatility=deviation * yearly,
        max_drawdown=float((1 - values / np.maximum.accumulate(values)).max()),
        sharpe=float(returns.mean()) / deviation * yearly if deviation > 0 else math.nan,
        turnover=float((traded / before).mean()) * TRADING_DAYS,
    )


@dataclass(frozen=True)
class Spread:
    """Of several numbers: what is known of them, and no more.

    Attributes:
        mean: Their mean.
        deviation: Their standard deviation (n - 1); NaN if there is only one.
        least, most: The ends.
        number: How many.
    """

    mean: float
    deviation: float
    least: float
    most: float
    number: int

    @classmethod
    def of(cls, numbers: Array) -> Spread:
        """From at least one number."""
        deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
        return cls(
            float(numbers.mean()),
            deviation,
            float(numbers.min()),
            float(numbers.max()),
            len(numbers),
        )

"""What a trading environment knows of a market: closes, features, turbulence, and which days are
for training and which for testing. Both forms of the environment read it, so that they cannot
differ. Needs no torch.

Everything that is fitted (scales of features, turbulence) is fitted to the training days alone. A
feature of a day uses that day and earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from drumline.errors import BadInput
from drumline.tasks.clstm_ppo.trading import indicators
from drumline.tasks.clstm_ppo.trading.clean_prices import clean_prices
from drumline.tasks.clstm_ppo.trading.config import MarketConfig
from drumline.tasks.clstm_ppo.trading.prices import Array, Days, Prices
from drumline.tasks.clstm_ppo.trading.read_prices import SHIPPED, find_prices, read_table

FEATURE_BOUND = 5.0
"""Scaled features are cut at so many deviations."""
LEAST_DAYS = 2


@dataclass(frozen=True)
class Span:
    """Days from `begin` up to and without `end`, by their numbers."""

    begin: int
    end: int

    @property
    def steps(self) -> int:
        """Steps from the first day to the last."""
        return self.end - self.begin - 1


@dataclass(frozen=True)
class Market:
    """D days of S stocks with K features.

    Attributes:
        days: datetime64[D].
        symbols: Names of the S stocks.
        close: [D, S].
        features: [D, K, S], scaled by the training days.
        turbulent: bool [D], days on which the turbulence stop holds.
        volatility: [D, S], of the last days, a year; what options are marked with.
        spans: The days by their use: train, validation (if there are days between) and test.
        notes: What was repaired in the prices or looks odd.
    """

    days: Days
    symbols: tuple[str, ...]
    close: Array
    features: Array
    turbulent: NDArray[np.bool_]
    volatility: Array
    spans: dict[str, Span]
    notes: tuple[str, ...] = ()

    def span(self, use: str) -> Span:
        """The days for a use.

        Raises:
            BadInput: If there are none.
        """
        if use not in self.spans:
            raise BadInput(
                f"There are no {use} days: the test days follow the training days directly.",
                remedy="Set task.environment.test_from later, which leaves days between.",
            )
        return self.spans[use]


def load_market(config: MarketConfig) -> Market:
    """The market that a config names.

    Raises:
        MissingPackage: If the data's package is not installed.
        DataError: If prices are missing or refused.
        BadInput: If the dates leave too few days.
    """
    return _load(config.model_dump_json(include=set(MarketConfig.model_fields) - {"name"}))


@lru_cache(maxsize=4)
def _load(keys: str) -> Market:
    """Read once a process: evaluations build their environments anew."""
    config = MarketConfig.model_validate_json(keys)
    splits = config.splits
    if splits == "refuse" and config.data in SHIPPED and SHIPPED[config.data].adjusted:
        splits = "keep"
    table = read_table(find_prices(config.data))
    return build_market(clean_prices(table, config.symbols, splits), config)


def build_market(prices: Prices, config: MarketConfig) -> Market:
    """Features and spans from whole prices.

    Raises:
        BadInput: If the dates leave too few days.
    """
    spans = _spans(prices.days, config)
    training = np.zeros(len(prices.days), dtype=np.bool_)
    training[spans["train"].begin : spans["train"].end] = True
    returns = prices.close[1:] / prices.close[:-1] - 1
    features = _features(prices)
    return Market(
        days=prices.days,
        symbols=prices.symbols,
        close=prices.close,
        features=_scaled(features, training),
        turbulent=_turbulent(returns, training[1:], config.turbulence_quantile),
        volatility=_volatility(returns, config.volatility_days),
        spans=spans,
        notes=prices.notes,
    )


def with_feature(market: Market, values: Array) -> Market:
    """The market with one more feature, [D, S], as it is."""
    return replace(market, features=np.concatenate([market.features, values[:, None, :]], axis=1))


def _features(prices: Prices) -> Array:
    """Log price, MACD as a part of the price, RSI, CCI, ADX: [D, 5, S], none in units of money."""
    high, low, close = prices.high, prices.low, prices.close
    return np.stack(
        [
            np.log(close),
            indicators.macd(close) / close,
            indicators.rsi(close),
            indicators.cci(high, low, close),
            indicators.adx(high, low, close),
        ],
        axis=1,
    )


def _scaled(features: Array, training: NDArray[np.bool_]) -> Array:
    """By mean and deviation of the training days; days before the first value get the mean."""
    sample = features[training]
    mean, deviation = np.nanmean(sample, axis=0), np.nanstd(sample, axis=0)
    scaled = (features - mean) / np.where(deviation > 0, deviation, 1.0)
    bounded: Array = np.clip(np.nan_to_num(scaled, nan=0.0), -FEATURE_BOUND, FEATURE_BOUND)
    return bounded


def _turbulent(
    returns: Array, training: NDArray[np.bool_], quantile: float | None
) -> NDArray[np.bool_]:
    if quantile is None:
        return np.zeros(len(returns) + 1, dtype=np.bool_)
    found = indicators.turbulence(returns, training)
    threshold = np.quantile(found[training], quantile)
    return np.concatenate([[False], found > threshold])


def _volatility(returns: Array, days: int) -> Array:
    """Root mean square of the last returns, a year; before there are any, of the first."""
    squares = np.cumsum(np.concatenate([np.zeros((1, returns.shape[1])), returns**2]), axis=0)
    last = np.arange(1, len(returns) + 1)
    first = np.maximum(last - days, 0)
    mean = (squares[last] - squares[first]) / (last - first)[:, None]
    found = np.sqrt(np.maximum(mean, 0) * indicators.TRADING_DAYS)
    return np.concatenate([np.zeros_like(found[:1]), found])


def _spans(days: Days, config: MarketConfig) -> dict[str, Span]:
    train_until = np.datetime64(config.train_until)
    test_from = np.datetime64(config.test_from) if config.test_from else None
    warm = min(indicators.WARM_UP_DAYS, len(days))
    begin = max(_first(days, config.train_from), warm)
    train_end = int(np.searchsorted(days, train_until, side="right"))
    test_begin = train_end if test_from is None else int(np.searchsorted(days, test_from))
    test_end = len(days)
    if config.test_until is not None:
        test_end = int(np.searchsorted(days, np.datetime64(config.test_until), side="right"))
    spans = {"train": Span(begin, train_end), "test": Span(test_begin, test_end)}
    for use, span in spans.items():
        if span.end - span.begin < LEAST_DAYS:
            raise BadInput(
                f"task.environment leaves no {use} days: prices go from {days[0]} to {days[-1]}, "
                f"and the first {warm} days are for the indicators to find their level.",
                remedy="Change train_from, train_until, test_from or test_until.",
            )
    if test_begin - train_end >= LEAST_DAYS:
        spans["validation"] = Span(train_end, test_begin)
    return spans


def _first(days: Days, wanted: date | None) -> int:
    return 0 if wanted is None else int(np.searchsorted(days, np.datetime64(wanted)))

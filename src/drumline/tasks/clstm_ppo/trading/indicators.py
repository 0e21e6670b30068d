"""Technical indicators of many stocks at once, in float64. A value uses its own day and earlier
ones only. NaN where there are too few days before.

All take and give [D, S]: days by stocks.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[np.float64]

MACD_FAST_DAYS, MACD_SLOW_DAYS = 12, 26
RSI_DAYS, CCI_DAYS, ADX_DAYS = 14, 20, 14
TRADING_DAYS = 252
"""Of a year."""
WARM_UP_DAYS = 40
"""Days at the start on which not every indicator has found its level."""


def macd(close: Array, fast: int = MACD_FAST_DAYS, slow: int = MACD_SLOW_DAYS) -> Array:
    """Moving average convergence/divergence (Appel 1979): a fast exponential mean of the closes
    less a slow one, each begun at the first close.
    """
    return _exponential_mean(close, fast) - _exponential_mean(close, slow)


def rsi(close: Array, days: int = RSI_DAYS) -> Array:
    """Relative strength index (Wilder 1978), 0 to 100: smoothed gains over gains and losses; 50
    where nothing has moved.
    """
    change = np.diff(close, axis=0)
    gain = _wilder_mean(np.maximum(change, 0), days)
    loss = _wilder_mean(np.maximum(-change, 0), days)
    return _below_first(100 * _ratio(gain, gain + loss, otherwise=0.5))


def cci(high: Array, low: Array, close: Array, days: int = CCI_DAYS) -> Array:
    """Commodity channel index (Lambert 1980): how far the typical price is from its mean, in 0.015
    mean absolute deviations; 0 where it has not moved.
    """
    typical = (high + low + close) / 3
    windows = sliding_window_view(typical, days, axis=0)
    mean = windows.mean(axis=-1)
    deviation = np.abs(windows - mean[..., None]).mean(axis=-1)
    found = np.full_like(typical, np.nan)
    still = deviation <= 1e-12 * np.abs(mean)
    found[days - 1 :] = _ratio(
        typical[days - 1 :] - mean, np.where(still, 0.0, 0.015 * deviation), otherwise=0.0
    )
    return found


def adx(high: Array, low: Array, close: Array, days: int = ADX_DAYS) -> Array:
    """Average directional index (Wilder 1978), 0 to 100: the strength of a trend in either
    direction. The first value is on day 2 * days - 1, counted from 0.
    """
    up, down = np.diff(high, axis=0), -np.diff(low, axis=0)
    plus = np.where((up > down) & (up > 0), up, 0.0)
    minus = np.where((down > up) & (down > 0), down, 0.0)
    before = close[:-1]
    true_range = np.maximum(high[1:], before) - np.minimum(low[1:], before)
    span, rise, fall = (_wilder_mean(part, days) for part in (true_range, plus, minus))
    rise, fall = _ratio(rise, span, otherwise=0.0), _ratio(fall, span, otherwise=0.0)
    direction = 100 * _ratio(np.abs(rise - fall), rise + fall, otherwise=0.0)
    found = np.full_like(close, np.nan)
    found[days:] = _wilder_mean(direction[days - 1 :], days)
    return found


def turbulence(returns: Array, fitted: NDArray[np.bool_]) -> Array:
    """How unusual the returns of a day are, all stocks taken together: the squared Mahalanobis
    distance from their mean (Kritzman and Li 2010), [D].

    Args:
        returns: [D, S].
        fitted: bool [D], the days whose mean and covariance are taken.
    """
    sample = returns[fitted]
    covariance = np.atleast_2d(np.cov(sample, rowvar=False))
    apart = returns - sample.mean(axis=0)
    distance: Array = np.einsum("ds,st,dt->d", apart, np.linalg.pinv(covariance), apart)
    return distance


def _exponential_mean(values: Array, days: int) -> Array:
    return _smoothed(values, 2 / (days + 1), values[0], begin=0)


def _wilder_mean(values: Array, days: int) -> Array:
    """Wilder's smoothing, begun with the plain mean of the first `days`; NaN before it."""
    return _smoothed(values, 1 / days, values[:days].mean(axis=0), begin=days - 1)


def _smoothed(values: Array, weight: float, first: Array, begin: int) -> Array:
    found = np.full_like(values, np.nan)
    if len(values) <= begin:
        return found
    mean = found[begin] = first
    for day in range(begin + 1, len(values)):
        mean = mean + weight * (values[day] - mean)
        found[day] = mean
    return found


def _ratio(above: Array, below: Array, otherwise: float) -> Array:
    there = below != 0
    return np.where(there, above / np.where(there, below, 1.0), otherwise)


def _below_first(values: Array) -> Array:
    """Of changes to of days: the first day has none."""
    return np.concatenate([np.full_like(values[:1], np.nan), values])

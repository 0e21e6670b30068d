"""Indicators against their definitions written out day by day, and against TA-Lib."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from markets import walk
from numpy.typing import NDArray

from drumline.tasks.clstm_ppo.trading import indicators

Array = NDArray[np.float64]
PRICES = walk(300, 3, seed=3)


def exponential(values: Array, days: int) -> list[float]:
    mean, found = float(values[0]), []
    for value in values:
        mean = value * 2 / (days + 1) + mean * (1 - 2 / (days + 1))
        found.append(mean)
    return found


def test_macd_is_the_difference_of_two_exponential_means() -> None:
    found = indicators.macd(PRICES.close)
    for stock, close in enumerate(PRICES.close.T):
        fast, slow = exponential(close, 12), exponential(close, 26)
        assert found[:, stock] == pytest.approx(np.subtract(fast, slow), abs=1e-12)


def test_rsi_by_its_definition() -> None:
    close = PRICES.close[:, 0]
    changes = [float(b - a) for a, b in pairwise(close)]
    gain = sum(max(change, 0) for change in changes[:14]) / 14
    loss = sum(max(-change, 0) for change in changes[:14]) / 14
    wanted = [100 - 100 / (1 + gain / loss)]
    for change in changes[14:]:
        gain = (gain * 13 + max(change, 0)) / 14
        loss = (loss * 13 + max(-change, 0)) / 14
        wanted.append(100 - 100 / (1 + gain / loss))
    found = indicators.rsi(PRICES.close)[:, 0]
    assert np.isnan(found[:14]).all()
    assert found[14:] == pytest.approx(wanted, abs=1e-9)


def test_cci_by_its_definition() -> None:
    high, low, close = PRICES.high[:, 1], PRICES.low[:, 1], PRICES.close[:, 1]
    typical = [(h + lo + c) / 3 for h, lo, c in zip(high, low, close, strict=True)]
    wanted = []
    for end in range(20, len(typical) + 1):
        window = typical[end - 20 : end]
        mean = sum(window) / 20
        deviation = sum(abs(value - mean) for value in window) / 20
        wanted.append((window[-1] - mean) / (0.015 * deviation))
    found = indicators.cci(PRICES.high, PRICES.low, PRICES.close)[:, 1]
    assert np.isnan(found[:19]).all()
    assert found[19:] == pytest.approx(wanted, abs=1e-9)


def test_adx_by_its_definition() -> None:
    high, low, close = PRICES.high[:, 2], PRICES.low[:, 2], PRICES.close[:, 2]
    ranges, rises, falls = [], [], []
    for t in range(1, len(close)):
        up, down = high[t] - high[t - 1], low[t - 1] - low[t]
        rises.append(up if up > down and up > 0 else 0.0)
        falls.append(down if down > up and down > 0 else 0.0)
        span = (high[t] - low[t], abs(high[t] - close[t - 1]), abs(low[t] - close[t - 1]))
        ranges.append(max(span))
    parts = [sum(series[:14]) / 14 for series in (ranges, rises, falls)]
    directions = []
    for t in range(13, len(ranges)):
        if t > 13:
            new = (ranges[t], rises[t], falls[t])
            parts = [(13 * old + value) / 14 for old, value in zip(parts, new, strict=True)]
        plus, minus = 100 * parts[1] / parts[0], 100 * parts[2] / parts[0]
        directions.append(100 * abs(plus - minus) / (plus + minus))
    wanted = [sum(directions[:14]) / 14]
    for direction in directions[14:]:
        wanted.append((13 * wanted[-1] + direction) / 14)
    found = indicators.adx(PRICES.high, PRICES.low, PRICES.close)[:, 2]
    assert np.isnan(found[:27]).all()
    assert found[27:] == pytest.approx(wanted, abs=1e-9)


def test_turbulence_is_the_squared_mahalanobis_distance() -> None:
    """In two dimensions, with the inverse of the covariance written out."""
    returns = PRICES.close[1:, :2] / PRICES.close[:-1, :2] - 1
    fitted = np.arange(len(returns)) < 150
    x, y = returns[:150].T
    a, d = x.var(ddof=1), y.var(ddof=1)
    b = ((x - x.mean()) * (y - y.mean())).sum() / 149
    wanted = []
    for u, v in returns - [x.mean(), y.mean()]:
        wanted.append((d * u * u - 2 * b * u * v + a * v * v) / (a * d - b * b))
    assert indicators.turbulence(returns, fitted) == pytest.approx(wanted, rel=1e-9)


def test_what_does_not_move_has_neutral_values() -> None:
    still = np.full((60, 2), 7.0)
    assert (indicators.macd(still) == 0).all()
    assert (indicators.rsi(still)[14:] == 50).all()
    assert (indicators.cci(still, still, still)[19:] == 0).all()
    assert (indicators.adx(still, still, still)[27:] == 0).all()


BY_CLOSE: dict[str, Callable[[Array, Array, Array], Array]] = {
    "macd": lambda high, low, close: indicators.macd(close),
    "rsi": lambda high, low, close: indicators.rsi(close),
    "cci": indicators.cci,
    "adx": indicators.adx,
}


@pytest.mark.parametrize("name", BY_CLOSE)
def test_later_prices_change_nothing_before(name: str) -> None:
    whole = [PRICES.high, PRICES.low, PRICES.close]
    changed = [np.concatenate([part[:200], part[200:] * 1.7]) for part in whole]
    before, after = (BY_CLOSE[name](*parts) for parts in (whole, changed))
    assert np.array_equal(before[:200], after[:200], equal_nan=True)
    assert not np.array_equal(before[200:], after[200:])


@pytest.mark.parametrize("name", ["rsi", "cci", "adx"])
def test_equal_to_ta_lib(name: str) -> None:
    import talib

    theirs = {
        "rsi": lambda high, low, close: talib.RSI(close, 14),
        "cci": lambda high, low, close: talib.CCI(high, low, close, 20),
        "adx": lambda high, low, close: talib.ADX(high, low, close, 14),
    }[name]
    ours = BY_CLOSE[name](PRICES.high, PRICES.low, PRICES.close)
    for stock in range(3):
        series = [
            np.ascontiguousarray(p[:, stock]) for p in (PRICES.high, PRICES.low, PRICES.close)
        ]
        wanted = theirs(*series)
        late = slice(250, None) if name == "adx" else slice(30, None)
        # TA-Lib begins ADX's sums one day short, which fades away.
        tolerance = 1e-5 if name == "adx" else 1e-8
        assert ours[late, stock] == pytest.approx(wanted[late], abs=tolerance)

"""Made-up prices for tests of trading."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np

from drumline.tasks.clstm_ppo.trading.config import PortfolioConfig
from drumline.tasks.clstm_ppo.trading.market import Market, build_market
from drumline.tasks.clstm_ppo.trading.prices import Prices

START = np.datetime64("2010-01-01")


def walk(days: int, stocks: int, seed: int, deviation: float = 0.02) -> Prices:
    """Closes whose returns have mean 0 and do not depend on the past; open, high, low around."""
    random = np.random.default_rng(seed)
    returns = np.clip(random.normal(0, deviation, (days, stocks)), -0.2, 0.2)
    close = 50 * np.cumprod(1 + returns, axis=0)
    opening = np.concatenate([close[:1], close[:-1]]) * (1 + random.normal(0, 0.002, close.shape))
    high = np.maximum(opening, close) * (1 + np.abs(random.normal(0, 0.005, close.shape)))
    low = np.minimum(opening, close) * (1 - np.abs(random.normal(0, 0.005, close.shape)))
    names = tuple(f"S{number}" for number in range(stocks))
    dates = START + np.arange(days)
    return Prices(dates, names, opening, high, low, close, np.full_like(close, 1000.0))


def day(number: int) -> date:
    found: date = (START + number).item()
    return found


def config_of(train_days: int, **keys: Any) -> PortfolioConfig:
    """Training on the first days, testing on the rest."""
    keys = {"cash": 10_000.0, "hmax": 40.0, "episode_days": 50} | keys
    return PortfolioConfig(train_until=day(train_days - 1), **keys)


def market_of(config: PortfolioConfig, days: int = 400, stocks: int = 4, seed: int = 1) -> Market:
    return build_market(walk(days, stocks, seed), config)

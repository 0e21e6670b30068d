"""Walking forward: the test days cut into quarters or the like, and before each a policy trained on
all days before. What trains them is the caller's; see `drumline walk-forward`.

Periods overlap by one day: on the last day of one its policy no longer trades, and the next takes
the portfolio over.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Literal

import numpy as np

from drumline.tasks.clstm_ppo.policy import Policy
from drumline.tasks.clstm_ppo.trading.backtest import (
    FP64,
    RANDOM_TRIES,
    Trading,
    built,
    comparisons,
    follow,
    policy_decides,
    random_decides,
)
from drumline.tasks.clstm_ppo.trading.config import TradingConfig
from drumline.tasks.clstm_ppo.trading.market import LEAST_DAYS, load_market
from drumline.tasks.clstm_ppo.trading.report import Report, Strategy

Every = Literal["month", "quarter", "year"]
_MONTHS = {"month": 1, "quarter": 3, "year": 12}


@dataclass(frozen=True)
class Period:
    """Days that one policy trades on.

    Attributes:
        name: For example 2020-Q1; the month it begins in where it is no quarter.
        train_until: The last day its policy is trained on.
        first, last: The first day it trades on, and the day it hands over or stops.
    """

    name: str
    train_until: date
    first: date
    last: date

    @property
    def overrides(self) -> list[str]:
        """What makes a run's config that of the period."""
        keys = {
            "train_until": self.train_until,
            "test_from": self.first,
            "test_until": self.last,
            "evaluated_on": "test",
        }
        return [f"task.environment.{key}={value}" for key, value in keys.items()]


def periods(config: TradingConfig, every: Every) -> list[Period]:
    """The test days of a config by calendar periods; a rest of a single day is left out."""
    market = load_market(config)
    span = market.span("test")
    days = market.days[span.begin : span.end]
    numbers = days.astype("datetime64[M]").astype(int) // _MONTHS[every]
    begins = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    ends = [*begins[1:], len(days) - 1]
    found = []
    for begin, end in zip(begins, ends, strict=True):
        if end - begin + 1 < LEAST_DAYS:
            continue
        before = market.days[span.begin + begin - 1]
        dates = [day.astype("datetime64[D]").item() for day in (before, days[begin], days[end])]
        found.append(Period(_name(dates[1], every), *dates))
    return found


def trade_in_turn(parts: list[tuple[TradingConfig, Policy]], whole: TradingConfig) -> Report:
    """One portfolio that passes from policy to policy, beside the comparisons.

    Args:
        parts: Each period's config, in order, and its policy. A policy's memory begins empty.
        whole: The config whose test days the periods are of.
    """
    state, values, traded = None, [], []
    for config, policy in parts:
        one = built(config.for_evaluation(), 1, policy.observation_mean.dtype)
        trading = Trading(one, policy_decides(policy), state)
        values.append(trading.values[:, :-1])
        traded.append(trading.traded)
        state = trading.state
    values.append(trading.values[:, -1:])
    walked = Strategy("policies in turn", np.concatenate(values, 1), np.concatenate(traded, 1))
    over_all = whole.model_copy(update={"evaluated_on": "test"}).for_evaluation()
    random = built(over_all, RANDOM_TRIES, FP64)
    market, span = random.market, random.market.span("test")
    return Report(
        days=market.days[span.begin : span.begin + walked.values.shape[1]],
        use="test",
        symbols=market.symbols,
        cost=whole.cost,
        strategies=(
            walked,
            follow("random", random, random_decides(random, seed=0)),
            *comparisons(over_all),
        ),
        notes=market.notes,
    )


def _name(first: date, every: Every) -> str:
    if every == "quarter":
        return f"{first.year}-Q{(first.month + 2) // 3}"
    return str(first.year) if every == "year" else f"{first:%Y-%m}"

"""Test days cut into periods, and a portfolio that passes from policy to policy."""

from datetime import date

import numpy as np
import pytest
import torch

from drumline.tasks.clstm_ppo.config import PolicyConfig
from drumline.tasks.clstm_ppo.policy import Policy
from drumline.tasks.clstm_ppo.trading.backtest import built
from drumline.tasks.clstm_ppo.trading.config import PortfolioConfig
from drumline.tasks.clstm_ppo.trading.walk_forward import periods, trade_in_turn

WHOLE = PortfolioConfig.model_validate(
    {
        "symbols": ["AAPL", "NVDA", "AMZN"],
        "train_until": "2019-12-31",
        "test_until": "2020-09-30",
        "actions": "weights",
        "turbulence_quantile": None,
        "cost": 0.01,
    }
)


def test_quarters_hand_over_on_the_first_day_of_the_next() -> None:
    found = periods(WHOLE, "quarter")
    assert [(period.name, period.train_until, period.first, period.last) for period in found] == [
        ("2020-Q1", date(2019, 12, 31), date(2020, 1, 2), date(2020, 4, 1)),
        ("2020-Q2", date(2020, 3, 31), date(2020, 4, 1), date(2020, 7, 1)),
        ("2020-Q3", date(2020, 6, 30), date(2020, 7, 1), date(2020, 9, 30)),
    ]
    assert [period.name for period in periods(WHOLE, "year")] == ["2020"]
    assert [period.name for period in periods(WHOLE, "month")][::4] == [
        *("2020-01", "2020-05", "2020-09")
    ]


def test_a_period_of_one_day_is_left_out() -> None:
    ends = WHOLE.model_copy(update={"test_until": date(2020, 7, 1)})
    assert [period.name for period in periods(ends, "quarter")] == ["2020-Q1", "2020-Q2"]


def test_the_portfolio_is_handed_over_whole() -> None:
    """Policies whose action is always the same are one strategy, whoever carries it out."""
    space = built(WHOLE, 1, torch.float64)
    policy = Policy(space.observation_space.size, space.action_space, PolicyConfig()).double()
    for parameter in policy.parameters():
        torch.nn.init.zeros_(parameter)
    parts = [
        (
            WHOLE.model_copy(
                update={
                    "train_until": period.train_until,
                    "test_from": period.first,
                    "test_until": period.last,
                }
            ),
            policy,
        )
        for period in periods(WHOLE, "quarter")
    ]
    report = trade_in_turn(parts, WHOLE)
    walked = report.strategies[0]
    equal = next(one for one in report.strategies if one.name == "equal weight")
    assert walked.values.shape == (1, len(report.days))
    assert (str(report.days[0]), str(report.days[-1])) == ("2020-01-02", "2020-09-30")
    assert walked.values[0] == pytest.approx(equal.values[0], rel=1e-12)
    assert walked.traded[0] == pytest.approx(equal.traded[0], rel=1e-6)
    assert np.abs(np.diff(walked.values[0])).min() > 0

"""Backtests against arithmetic over the days, and of policies against the environment itself."""

import numpy as np
import pytest
import torch

from drumline.tasks.clstm_ppo.config import PolicyConfig
from drumline.tasks.clstm_ppo.policy import Policy
from drumline.tasks.clstm_ppo.trading.backtest import backtest, built, comparisons
from drumline.tasks.clstm_ppo.trading.config import PortfolioConfig
from drumline.tasks.clstm_ppo.trading.market import load_market
from drumline.tasks.clstm_ppo.trading.report import Strategy

CONFIG = PortfolioConfig.model_validate(
    {"symbols": ["AAPL", "NVDA"], "train_until": "2019-12-31", "test_until": "2020-06-30"}
)


def closes_of_the_test() -> np.ndarray:
    market = load_market(CONFIG)
    span = market.span("test")
    return market.close[span.begin : span.end]


def named(strategies: list[Strategy], name: str) -> Strategy:
    return next(one for one in strategies if one.name == name)


def test_buying_and_holding_pays_once() -> None:
    close = closes_of_the_test()
    held = named(comparisons(CONFIG.for_evaluation()), "buy and hold")
    growth = (close / close[0]).mean(axis=1) / 1.001  # the cost is taken from what is bought
    wanted = CONFIG.cash * np.concatenate([[1.0], growth[1:]])
    assert held.values[0] == pytest.approx(wanted, rel=1e-9)
    assert held.traded[0, 0] == pytest.approx(CONFIG.cash / 1.001)
    assert np.abs(held.traded[0, 1:]).max() < 1e-6


def test_equal_weight_is_restored_every_day() -> None:
    """Without costs the growth of each day is the plain mean of the stocks' growths."""
    close = closes_of_the_test()
    free = CONFIG.model_copy(update={"cost": 0.0}).for_evaluation()
    equal = named(comparisons(free), "equal weight")
    growth = (close[1:] / close[:-1]).mean(axis=1)
    assert equal.values[0] == pytest.approx(
        CONFIG.cash * np.cumprod(np.concatenate([[1.0], growth])), rel=1e-9
    )
    dear = named(comparisons(CONFIG.for_evaluation()), "equal weight")
    fees = 0.001 * dear.traded[0].sum()
    assert 0 < equal.values[0, -1] - dear.values[0, -1] < 3 * fees


def test_what_the_stop_alone_is_worth_is_shown() -> None:
    """With it, all is cash over each turbulent day's night."""
    found = comparisons(CONFIG.for_evaluation())
    stopped, market = named(found, "equal weight, stop"), load_market(CONFIG)
    first = market.span("test").begin
    turbulent = market.turbulent[first : market.span("test").end - 1]
    returns = stopped.values[0, 1:] / stopped.values[0, :-1] - 1
    assert turbulent.sum() > 3
    assert (returns[turbulent] <= 0).all()  # the cost of selling, and nothing else
    assert returns[turbulent].min() >= -0.0011
    assert np.abs(returns[~turbulent]).max() > 0.02
    without = comparisons(CONFIG.model_copy(update={"turbulence_quantile": None}).for_evaluation())
    assert [one.name for one in without] == ["buy and hold", "equal weight"]


def policy_of(seed: int) -> Policy:
    environment = built(CONFIG, 1, torch.float64)
    torch.manual_seed(seed)
    size, space = environment.observation_space.size, environment.action_space
    policy = Policy(size, space, PolicyConfig(hidden=5, heads=[4]))
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return policy.double()


def test_a_policy_trades_as_in_the_environment_with_its_state_carried() -> None:
    policies = [policy_of(1), policy_of(2)]
    report = backtest(CONFIG, policies, random_tries=3)
    assert [one.name for one in report.strategies] == [
        *("policy", "random", "buy and hold", "equal weight", "equal weight, stop")
    ]
    assert report.strategies[0].values.shape == (2, len(report.days))
    assert report.strategies[1].values.shape == (3, len(report.days))
    for values, policy in zip(report.strategies[0].values, policies, strict=True):
        environment = built(CONFIG.for_evaluation(), 1, torch.float64)
        seen, state, gained = environment.reset(torch.tensor([0])), policy.initial_state(1), 0.0
        starts = torch.tensor([True])
        for _ in range(len(report.days) - 1):
            with torch.no_grad():
                acted = policy.act(seen, starts, state)
            chosen = policy.actions.for_environment(policy.actions.likeliest(acted.outputs))
            seen, rewards, _, starts, _ = environment.step(chosen)
            state, gained = acted.state, gained + float(rewards)
        assert bool(starts)
        assert values[-1] == pytest.approx(CONFIG.cash + gained / CONFIG.reward_scale)


def test_random_tries_differ_and_are_repeatable() -> None:
    first, again = (backtest(CONFIG, [], random_tries=4) for _ in range(2))
    assert np.array_equal(first.strategies[0].values, again.strategies[0].values)
    assert len(set(first.strategies[0].values[:, -1])) == 4
    other = backtest(CONFIG, [], seed=1, random_tries=4)
    assert not np.array_equal(first.strategies[0].values, other.strategies[0].values)
    assert first.days[0] == np.datetime64("2020-01-02")
    assert (first.use, first.symbols) == ("test", ("AAPL", "NVDA"))

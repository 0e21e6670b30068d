"""The batched portfolio against the plain one, and both against arithmetic."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from markets import config_of, market_of

from drumline.tasks.clstm_ppo.trading.config import PortfolioConfig
from drumline.tasks.clstm_ppo.trading.gymnasium_portfolio import GymnasiumPortfolio
from drumline.tasks.clstm_ppo.trading.market import Market
from drumline.tasks.clstm_ppo.trading.portfolio import Portfolio

CPU = torch.device("cpu")
SEEDS = torch.arange(100, 106)


def batched(
    config: PortfolioConfig, market: Market, dtype: torch.dtype = torch.float64
) -> Portfolio:
    return Portfolio(config, len(SEEDS), CPU, dtype, market)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("actions", ["trades", "weights"])
def test_equal_to_the_plain_form_step_by_step(
    actions: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Random actions through two episodes, with turbulent days and cash that does not suffice."""
    config = config_of(300, actions=actions, turbulence_quantile=0.9, cost=0.01, reward_scale=1e-2)
    market = market_of(config)
    ours = batched(config, market, dtype)
    seen = ours.reset(SEEDS)
    peers = [GymnasiumPortfolio(market, config) for _ in SEEDS]
    expected = [
        peer.reset(options={"day": int(day)})[0]
        for peer, day in zip(peers, ours.state["day"], strict=True)
    ]
    assert seen.numpy() == pytest.approx(np.stack(expected), abs=tolerance)
    random = np.random.default_rng(0)
    stopped = ended = poor = 0
    for _ in range(110):
        given = random.uniform(-1.2, 1.2, (len(SEEDS), 4))
        before = ours.state["day"]
        transition = ours.step(torch.from_numpy(given).to(dtype))
        for place, peer in enumerate(peers):
            stopped += bool(market.turbulent[int(before[place])])
            observation, reward, terminated, truncated, _ = peer.step(given[place])
            poor += peer.cash == 0
            final = transition.final_observations[place].numpy()
            assert final == pytest.approx(observation, abs=tolerance)
            assert float(transition.rewards[place]) == pytest.approx(reward, abs=tolerance)
            assert bool(transition.truncated[place]) == truncated
            assert not terminated
            assert not transition.terminated[place]
            if truncated:
                ended += 1
                begin = {"day": int(ours.state["day"][place])}
                fresh = peer.reset(options=begin)[0]
                assert transition.observations[place].numpy() == pytest.approx(fresh, abs=tolerance)
    assert ended == 2 * len(SEEDS)
    assert stopped > 20
    assert poor > 20


def one_trade(config: PortfolioConfig, state: dict[str, Any], action: list[float]) -> Any:
    market = market_of(config, stocks=2)
    environment = Portfolio(config, 1, CPU, torch.float64, market)
    full = {
        "day": torch.tensor([100]),
        "cash": torch.tensor([state["cash"]], dtype=torch.float64),
        "holdings": torch.tensor([state["holdings"]], dtype=torch.float64),
    }
    wanted = environment.wanted(full, torch.tensor([action], dtype=torch.float64))
    return environment, full, environment.settle(full, wanted), market.close[100]


def test_what_is_sold_pays_for_what_is_bought_and_each_trade_costs_once() -> None:
    config = config_of(300, cost=0.01, hmax=10.0, turbulence_quantile=None)
    _, _, settled, (p, q) = one_trade(config, {"cash": 1000.0, "holdings": [8.0, 0.0]}, [-0.5, 1.0])
    income = 5 * p * 0.99
    assert settled.holdings[0].tolist() == pytest.approx([3.0, 10.0])
    assert float(settled.cash) == pytest.approx(1000 + income - 10 * q * 1.01)
    assert float(settled.fees) == pytest.approx(0.01 * (5 * p + 10 * q))
    assert float(settled.traded) == pytest.approx(5 * p + 10 * q)


def test_no_more_is_sold_than_held_and_none_bought_without_cash() -> None:
    config = config_of(300, cost=0.0, hmax=10.0, turbulence_quantile=None)
    _, _, settled, (p, q) = one_trade(config, {"cash": 0.0, "holdings": [4.0, 0.0]}, [-1.0, 1.0])
    assert settled.holdings[0].tolist() == pytest.approx([0.0, min(10.0, 4 * p / q)])
    assert float(settled.cash) == pytest.approx(max(0.0, 4 * p - 10 * q))
    _, _, settled, _ = one_trade(config, {"cash": 0.0, "holdings": [0.0, 0.0]}, [1.0, 1.0])
    assert settled.holdings[0].tolist() == [0.0, 0.0]
    assert float(settled.cash) == 0.0


def test_buys_beyond_the_cash_are_cut_in_proportion() -> None:
    config = config_of(300, cost=0.01, hmax=1000.0, turbulence_quantile=None)
    _, _, settled, (p, q) = one_trade(config, {"cash": 500.0, "holdings": [0.0, 0.0]}, [1.0, 0.5])
    bought = settled.holdings[0].tolist()
    assert bought[0] / bought[1] == pytest.approx(2.0)
    assert (bought[0] * p + bought[1] * q) * 1.01 == pytest.approx(500.0)
    assert float(settled.cash) == pytest.approx(0.0, abs=1e-9)


def test_weights_are_parts_of_the_portfolio_and_the_rest_is_cash() -> None:
    config = config_of(300, cost=0.0, actions="weights", turbulence_quantile=None)
    environment, state, settled, prices = one_trade(
        config, {"cash": 700.0, "holdings": [3.0, 1.0]}, [0.2, 0.5]
    )
    value = float(environment.value(state))
    assert (settled.holdings[0].numpy() * prices).tolist() == pytest.approx(
        [0.2 * value, 0.5 * value]
    )
    assert float(settled.cash) == pytest.approx(0.3 * value)
    _, _, settled, _ = one_trade(config, {"cash": 700.0, "holdings": [3.0, 1.0]}, [1.0, 3.0])
    assert (settled.holdings[0].numpy() * prices).tolist() == pytest.approx([value / 2] * 2)


def test_on_a_turbulent_day_all_is_sold_and_nothing_bought() -> None:
    config = config_of(300, cost=0.01, turbulence_quantile=0.9)
    market = market_of(config)
    environment = batched(config, market)
    environment.reset(SEEDS)
    day = int(np.flatnonzero(market.turbulent)[3])
    state = {
        "day": torch.full_like(SEEDS, day),
        "cash": torch.full((6,), 100.0, dtype=torch.float64),
        "holdings": torch.full((6, 4), 2.0, dtype=torch.float64),
    }
    assert (environment.observe(state)[:, 1] == 1).all()
    after, _, _ = environment.advance(state, torch.ones(6, 4))
    assert (after["holdings"] == 0).all()
    assert after["cash"].tolist() == pytest.approx([100 + 0.99 * 2 * market.close[day].sum()] * 6)


def test_rewards_add_up_to_the_gain() -> None:
    config = config_of(300, episode_days=40)
    environment = batched(config, market_of(config))
    environment.reset(SEEDS)
    random = torch.Generator().manual_seed(1)
    total, state = torch.zeros(6, dtype=torch.float64), environment.state
    for _ in range(40):
        actions = torch.rand(6, 4, generator=random) * 2 - 1
        state, rewards, _ = environment.advance(state, actions)
        total += rewards
    gain = (environment.value(state) - config.cash) * config.reward_scale
    assert total.tolist() == pytest.approx(gain.tolist(), abs=1e-12)
    assert gain.abs().min() > 0


def test_an_environment_does_the_same_whatever_stands_beside_it() -> None:
    config = config_of(300)
    market = market_of(config)
    many, one = batched(config, market), Portfolio(config, 1, CPU, torch.float64, market)
    many.reset(SEEDS)
    one.reset(SEEDS[2:3])
    for step in range(120):
        action = torch.full((6, 4), 0.3 * (-1) ** step)
        assert torch.equal(many.step(action).observations[2], one.step(action[:1]).observations[0])


def test_episodes_begin_on_many_days_and_stay_in_their_span() -> None:
    config = config_of(300, episode_days=50)
    market = market_of(config)
    environment = Portfolio(config, 2000, CPU, torch.float64, market)
    environment.reset(torch.arange(2000))
    begin = environment.state["day"]
    assert int(begin.min()) == 40  # the indicators' warm-up
    assert int(begin.max()) == 300 - 1 - 50
    whole = Portfolio(config.for_evaluation(), 3, CPU, torch.float64, market)
    whole.reset(torch.arange(3))
    assert whole.state["day"].tolist() == [300] * 3
    assert whole.episode_limit == 99


@pytest.mark.filterwarnings("ignore:.*Box observation space.*")
def test_gymnasium_finds_nothing_wrong_with_the_plain_form() -> None:
    name = "drumline.tasks.clstm_ppo.trading.gymnasium_portfolio:Portfolio-v0"
    made = gymnasium.make(name, symbols=["AAPL", "NVDA"], episode_days=20)
    check_env(made.unwrapped, skip_render_check=True)
    observation, _ = made.reset(seed=3)
    again, _ = made.reset(seed=3)
    assert np.array_equal(observation, again)
    for step in range(20):
        observation, reward, terminated, truncated, _ = made.step(np.ones(2))
        assert (terminated, truncated) == (False, step == 19)
        assert reward != 0


@pytest.mark.gpu
@pytest.mark.parametrize("actions", ["trades", "weights"])
def test_the_same_on_a_gpu(actions: str) -> None:
    config = config_of(300, actions=actions, turbulence_quantile=0.9, cost=0.01)
    market = market_of(config)
    here, there = (
        Portfolio(config, 64, torch.device(device), torch.float64, market)
        for device in ("cpu", "cuda")
    )
    seeds, random = torch.arange(64), torch.Generator().manual_seed(0)
    assert torch.allclose(here.reset(seeds), there.reset(seeds.cuda()).cpu(), atol=1e-12)
    for _ in range(110):
        given = torch.rand(64, 4, generator=random, dtype=torch.float64) * 2.4 - 1.2
        ours, theirs = here.step(given), there.step(given.cuda())
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one.double(), other.cpu().double(), atol=1e-9)

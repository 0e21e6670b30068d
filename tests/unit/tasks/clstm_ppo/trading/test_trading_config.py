"""Keys of the trading environments: all with a meaning, and wrong ones refused by name."""

from datetime import date
from typing import Any

import pytest

from drumline.config import parse_config
from drumline.errors import BadInput, ConfigError
from drumline.tasks.clstm_ppo.environments.config import environment_config_class
from drumline.tasks.clstm_ppo.trading.config import OptionsConfig, PortfolioConfig, TradingConfig


def parsed(**environment: Any) -> Any:
    task = {"name": "clstm_ppo", "environment": environment, "total_steps": 1024}
    return parse_config({"task": task, "global_batch": 1024}, source="a test")


@pytest.mark.parametrize("name", ["portfolio", "options"])
def test_every_key_has_a_meaning(name: str) -> None:
    config = environment_config_class(name)
    assert issubclass(config, TradingConfig)
    assert all(field.description for field in config.model_fields.values())


def test_dates_are_read_as_yaml_and_as_text() -> None:
    for given in (date(2018, 6, 30), "2018-06-30"):
        config = parsed(name="portfolio", train_until=given)
        assert config.task.environment.train_until == date(2018, 6, 30)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"name": "portfolio", "cost": 1.5}, "task.environment.cost"),
        ({"name": "portfolio", "actions": "bets"}, "task.environment.actions"),
        ({"name": "portfolio", "turbulence_quantile": 1.0}, "task.environment.turbulence_quantile"),
        ({"name": "portfolio", "stake": 0.1}, "task.environment.stake"),
        ({"name": "options", "moneyness": []}, "task.environment.moneyness"),
        ({"name": "options", "stake": 0}, "task.environment.stake"),
        ({"name": "portfolio", "test_from": "2019-01-01"}, "train_until 2019-12-31 is not before"),
    ],
)
def test_wrong_keys_are_named(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parsed(**keys)


def test_what_cannot_be_traded_is_told_before_anything_starts() -> None:
    with pytest.raises(BadInput, match="there is no such file"):
        PortfolioConfig(data="absent.csv").check()
    with pytest.raises(BadInput, match="no validation days"):
        PortfolioConfig(evaluated_on="validation").check()
    with pytest.raises(BadInput, match="has no IBM; it has AAPL"):
        PortfolioConfig(symbols=["AAPL", "IBM"]).check()
    OptionsConfig().check()


def test_an_evaluation_plays_all_test_days_once() -> None:
    whole = PortfolioConfig(episode_days=100).for_evaluation()
    assert (whole.played, whole.episode_days) == ("test", None)

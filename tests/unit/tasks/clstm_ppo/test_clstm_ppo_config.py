"""What the config of CLSTM-PPO refuses, each with its key, its value and a remedy."""

from typing import Any

import pytest

from drumline.config import RunConfig, parse_config
from drumline.config.load import apply_overrides
from drumline.errors import BadInput, ConfigError
from drumline.tasks.clstm_ppo.config import CLSTMPPOConfig
from drumline.tasks.clstm_ppo.environments.config import NAMES, environment_config_class

CARTPOLE: dict[str, Any] = {
    "global_batch": 256,
    "task": {
        "name": "clstm_ppo",
        "environment": {"name": "cartpole_memory"},
        "total_steps": 50_000,
    },
}


def parsed(*overrides: str) -> RunConfig:
    return parse_config(apply_overrides(CARTPOLE, overrides))


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["environment.name=cartpole"], "task.environment.name = 'cartpole': no such environment"),
        (["environment.name=nope:X"], "task.environment.name = 'nope:X': cannot be imported"),
        (["environment.name=os:path"], "task.environment.name = 'os:path': is no environment"),
        (["environment.episode_limitt=3"], "Did you mean episode_limit?"),
        (["environment.name=gymnasium"], "task.environment.id: is missing"),
        (["environment=7"], "task.environment"),
        (["total_steps=1000"], "less than one rollout of 1024"),
        (["sequence_length=100"], "sequence_length 100 does not divide rollout_steps 128"),
        (["policy.attention_heads=2"], "needs a window to attend over"),
        (["policy.window=4", "policy.attention_heads=3"], "features 64 cannot be cut into 3"),
        (["global_batch=200"], "near it fit: 128, 256, 512"),
        (["global_batch=4096"], "near it fit: 256, 512, 1024"),
        (["steps=10"], "leave out steps and epochs"),
        (["task.total_steps=null"], "give either steps or epochs"),
        (["batch_size=128"], "Use global_batch, samples of a step over all devices together"),
        (["gamma=0"], "task.gamma = 0: "),
    ],
)
def test_what_is_wrong_is_told_in_one_line(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parsed(*overrides)
    (line,) = (str(problem) for problem in raised.value.problems)
    assert told in line


def test_a_run_may_be_bounded_by_rollouts_episodes_or_steps() -> None:
    assert parsed("task.total_steps=null", "epochs=3").epochs == 3
    assert parsed("task.total_steps=null", "steps=30").steps == 30
    episodes = parsed("num_episodes=500").task
    assert isinstance(episodes, CLSTMPPOConfig)
    assert (episodes.num_episodes, episodes.total_steps) == (500, 50_000)


def test_a_samples_is_a_transition_and_only_whole_sequences_are_cut() -> None:
    for overrides, granularity in ([], 128), (["sequence_length=16"], 16):
        task = parsed(*overrides).task
        assert isinstance(task, CLSTMPPOConfig)
        assert (task.granularity, task.rollout_size) == (granularity, 1024)


def test_a_config_survives_the_way_through_its_file() -> None:
    config = parsed("environment.name=gymnasium", "environment.id=CartPole-v1")
    assert parse_config(config.model_dump(mode="json")) == config


def test_every_key_of_every_environment_is_described() -> None:
    for name in NAMES:
        fields = environment_config_class(name).model_fields
        assert [key for key, field in fields.items() if not field.description] == []


def test_an_environment_that_is_not_there_is_found_before_anything_starts() -> None:
    config = parsed("environment.name=gymnasium", "environment.id=CartPool-v1")
    assert config.task is not None
    with pytest.raises(BadInput, match="CartPool-v1 is no environment here"):
        config.task.check()

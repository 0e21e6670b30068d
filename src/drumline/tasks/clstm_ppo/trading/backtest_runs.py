"""A backtest of runs: their policies as their checkpoints have them, each a try of one config."""

from __future__ import annotations

from copy import deepcopy
from typing import cast

from drumline.config import RunConfig
from drumline.errors import BadInput
from drumline.run_directory import RunDirectory
from drumline.tasks.clstm_ppo.config import CLSTMPPOConfig
from drumline.tasks.clstm_ppo.policy import Policy
from drumline.tasks.clstm_ppo.trading.backtest import backtest
from drumline.tasks.clstm_ppo.trading.config import TradingConfig
from drumline.tasks.clstm_ppo.trading.report import Report
from drumline.training.evaluate import open_trained

Runs = list[tuple[RunDirectory, RunConfig]]


def backtest_runs(runs: Runs, which: str = "last") -> Report:
    """Trade with the policy of each run over the days of `evaluated_on`.

    Args:
        runs: With their configs, which may differ in seeds and sizes but not in what is traded.
        which: Checkpoint: "last", "best", or the number of a step.

    Raises:
        BadInput: If a run does not trade, or trades something else than the first.
        CheckpointError: If a checkpoint is damaged.
    """
    environments = [_environment(run, config) for run, config in runs]
    for (run, _), environment in zip(runs, environments, strict=True):
        if environment != environments[0]:
            raise BadInput(
                f"{run.path} trades otherwise than {runs[0][0].path}: their task.environment "
                "differs, so they are no tries of one thing.",
                remedy="Backtest them one after the other.",
            )
    return backtest(environments[0], [_policy(run, config, which) for run, config in runs])


def _environment(run: RunDirectory, config: RunConfig) -> TradingConfig:
    task = config.task
    if not (isinstance(task, CLSTMPPOConfig) and isinstance(task.environment, TradingConfig)):
        raise BadInput(
            f"{run.path} does not trade.", remedy="Name a run with a trading environment."
        )
    return task.environment


def _policy(run: RunDirectory, config: RunConfig, which: str) -> Policy:
    with open_trained(run, config, which) as opened:
        return deepcopy(cast(Policy, opened.model))

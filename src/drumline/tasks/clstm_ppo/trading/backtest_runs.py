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
from drumline.tasks.clstm_ppo.trading.walk_forward import trade_in_turn
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
    environments = [trading_of(str(run.path), config) for run, config in runs]
    for (run, _), environment in zip(runs, environments, strict=True):
        if environment != environments[0]:
            raise BadInput(
                f"{run.path} trades otherwise than {runs[0][0].path}: their task.environment "
                "differs, so they are no tries of one thing.",
                remedy="Backtest them one after the other.",
            )
    return backtest(environments[0], [_policy(run, config, which) for run, config in runs])


def walk_runs(runs: Runs, whole: TradingConfig) -> Report:
    """Let the policies of runs trade in turn, each over its own test days.

    Args:
        runs: One for each period, in order.
        whole: The config whose test days the periods are of.
    """
    parts = [
        (trading_of(str(run.path), config), _policy(run, config, "last")) for run, config in runs
    ]
    return trade_in_turn(parts, whole)


def trading_of(source: str, config: RunConfig) -> TradingConfig:
    """The trading environment of a config.

    Raises:
        BadInput: If it has none.
    """
    task = config.task
    if not (isinstance(task, CLSTMPPOConfig) and isinstance(task.environment, TradingConfig)):
        raise BadInput(f"{source} does not trade.", remedy="Name one with a trading environment.")
    return task.environment


def _policy(run: RunDirectory, config: RunConfig, which: str) -> Policy:
    alone = config.model_copy(update={"devices": "cpu"})
    with open_trained(run, alone, which) as opened:
        return deepcopy(cast(Policy, opened.model))

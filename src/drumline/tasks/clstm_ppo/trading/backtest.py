"""Trading over a whole span of days with a policy, and with what it has to be better than: random
actions, buying once and holding, and equal parts every day.

All pay the same costs over the same days.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.environments.build import build_environments
from drumline.tasks.clstm_ppo.environments.interface import Environments
from drumline.tasks.clstm_ppo.environments.spaces import Box, Discrete
from drumline.tasks.clstm_ppo.environments.tensor_environments import State
from drumline.tasks.clstm_ppo.policy import Policy
from drumline.tasks.clstm_ppo.trading.config import PortfolioConfig, TradingConfig
from drumline.tasks.clstm_ppo.trading.portfolio import Portfolio
from drumline.tasks.clstm_ppo.trading.report import Report, Strategy
from drumline.tasks.clstm_ppo.trading.trading_environments import TradingEnvironments
from drumline.training.noise import uniform

RANDOM_TRIES = 20
Decide = Callable[[Tensor, int], Tensor]
"""From observations [E, F] and the step's number to actions."""

CPU, FP64 = torch.device("cpu"), torch.float64


class Trading:
    """Trading from the first day to the last in all environments at once.

    Args:
        environments: Of one episode over the whole span; each is a try.
        decide: What to do.
        state: Portfolios to go on with, on that first day; None: nothing but cash.

    Attributes:
        values: [n, T + 1], at each close.
        traded: [n, T].
        state: The portfolios on the last day.
    """

    @torch.no_grad()
    def __init__(
        self, environments: TradingEnvironments, decide: Decide, state: State | None = None
    ) -> None:
        environments.reset(torch.arange(environments.count))
        state = environments.state if state is None else state
        values, traded = [environments.value(state)], []
        for step in range(environments.market.span(environments.config.played).steps):
            state, _, _ = environments.advance(state, decide(environments.observe(state), step))
            values.append(environments.value(state))
            traded.append(state["traded"])
        self.state = state
        self.values = torch.stack(values, 1).double().numpy()
        self.traded = torch.stack(traded, 1).double().numpy()


def follow(name: str, environments: TradingEnvironments, decide: Decide) -> Strategy:
    """A strategy from what it decides; see `Trading`."""
    trading = Trading(environments, decide)
    return Strategy(name, trading.values, trading.traded)


def policy_decides(policy: Policy) -> Decide:
    """The likeliest action of a policy, its state carried from day to day."""
    memory: dict[str, State] = {}

    def decide(observations: Tensor, step: int) -> Tensor:
        seen = observations.to(policy.observation_mean)
        starts = torch.full((len(seen),), step == 0, dtype=torch.bool, device=seen.device)
        before = memory.get("state") or policy.initial_state(len(seen))
        acted = policy.act(seen, starts, before)
        memory["state"] = acted.state
        chosen = policy.actions.for_environment(policy.actions.likeliest(acted.outputs))
        return chosen.to(observations.device)

    return decide


def random_decides(environments: Environments, seed: int) -> Decide:
    """Actions spread evenly over all there are, each try with its own."""
    space, seeds = environments.action_space, torch.arange(environments.count)

    def decide(observations: Tensor, step: int) -> Tensor:
        del observations
        if isinstance(space, Discrete):
            return (uniform(seeds, seed, step) * space.options).long()
        box = cast(Box, space)
        low, high = (torch.tensor(side, dtype=FP64) for side in (box.low, box.high))
        return low + (high - low) * uniform(seeds, seed, step, numbers=box.size)

    return decide


def backtest(
    config: TradingConfig, policies: list[Policy], seed: int = 0, random_tries: int = RANDOM_TRIES
) -> Report:
    """Policies of one config, each a try, and the comparisons, over the days of `evaluated_on`.

    Args:
        config: What they trade.
        policies: For example of several seeds; may be empty.
        seed: Of the random actions.
        random_tries: How often those are tried.
    """
    whole = config.for_evaluation()
    strategies = []
    if policies:
        tries = [
            follow("policy", built(whole, 1, policy.observation_mean.dtype), policy_decides(policy))
            for policy in policies
        ]
        strategies.append(_together("policy", tries))
    random = built(whole, random_tries, FP64)
    strategies += [
        follow("random", random, random_decides(random, seed)),
        *comparisons(whole),
    ]
    market, span = random.market, random.market.span(whole.played)
    return Report(
        days=market.days[span.begin : span.end],
        use=whole.played,
        symbols=market.symbols,
        cost=config.cost,
        strategies=tuple(strategies),
        notes=market.notes,
    )


def comparisons(whole: TradingConfig) -> list[Strategy]:
    """Equal parts bought on the first day and held, and equal parts restored every day; the latter
    with the turbulence stop, too, where the policy has it: what the stop alone is worth is not
    the policy's merit.
    """
    keys = {name: getattr(whole, name) for name in TradingConfig.model_fields if name != "name"}
    stopping = _portfolio(keys)
    free = _portfolio(keys | {"turbulence_quantile": None})
    stocks = len(free.market.symbols)
    equal = torch.full((1, stocks), 1 / stocks, dtype=FP64)

    def hold(observations: Tensor, step: int) -> Tensor:
        """The weights that there are."""
        if step == 0:
            return equal
        cash, values = observations[:, :1], observations[:, -stocks:]
        return values / (cash + values.sum(dim=1, keepdim=True))

    found = [
        follow("buy and hold", free, hold),
        follow("equal weight", free, lambda *_: equal),
    ]
    if whole.turbulence_quantile is not None:
        found.append(follow("equal weight, stop", stopping, lambda *_: equal))
    return found


def _portfolio(keys: dict[str, Any]) -> Portfolio:
    config = PortfolioConfig.model_validate(keys | {"actions": "weights"})
    return Portfolio(config, 1, CPU, FP64)


def built(config: TradingConfig, count: int, dtype: torch.dtype) -> TradingEnvironments:
    """Environments of a config on the CPU."""
    return cast(TradingEnvironments, build_environments(config, count, CPU, dtype))


def _together(name: str, tries: list[Strategy]) -> Strategy:
    return Strategy(
        name,
        np.concatenate([one.values for one in tries]),
        np.concatenate([one.traded for one in tries]),
    )

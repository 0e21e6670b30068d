"""A portfolio of stocks and cash as a batched environment.

A step: at the close of a day, whose prices and indicators have been observed, the wanted trades
are made, sells before buys; buys are cut in proportion where the cash does not suffice. Every trade
pays its part of its value, once. The reward is what the portfolio is worth at the next close less
what it was worth before the trades. On a turbulent day all is sold and nothing is bought. Shares
can be held in parts, nothing is sold short and nothing is borrowed, so an episode never terminates:
it is cut off on the last day of its window.

`gymnasium_portfolio` is the same for one environment, in plain numpy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.environments.spaces import Box
from drumline.tasks.clstm_ppo.environments.tensor_environments import State
from drumline.tasks.clstm_ppo.trading.config import PortfolioConfig
from drumline.tasks.clstm_ppo.trading.market import Market
from drumline.tasks.clstm_ppo.trading.trading_environments import TradingEnvironments


class Settled(NamedTuple):
    """After the trades of a day.

    Attributes:
        cash: [E].
        holdings: [E, S], in shares.
        traded: [E], value of all that was sold and bought.
        fees: [E], what that has cost.
    """

    cash: Tensor
    holdings: Tensor
    traded: Tensor
    fees: Tensor


class Portfolio(TradingEnvironments):
    """Observed, in this order: cash, as a part of the first; 1 on a turbulent day; the market's
    features, one after the other, each of all stocks; and the value of each holding, as a part of
    the first cash.
    """

    config: PortfolioConfig

    def __init__(
        self,
        config: PortfolioConfig,
        count: int,
        device: torch.device,
        dtype: torch.dtype,
        market: Market | None = None,
    ) -> None:
        super().__init__(config, count, device, dtype, market)
        stocks = self.closes.size(1)
        size = 1 + self.seen.size(1) + stocks
        self.observation_space = Box((-math.inf,) * size, (math.inf,) * size)
        low = -1.0 if config.actions == "trades" else 0.0
        self.action_space = Box((low,) * stocks, (1.0,) * stocks)

    def no_positions(self, count: int) -> State:
        """No shares, [E, S]."""
        shape = (count, self.closes.size(1))
        return {"holdings": torch.zeros(shape, dtype=self.dtype, device=self.device)}

    def value(self, state: State) -> Tensor:
        """Cash and holdings, [E]."""
        return state["cash"] + (state["holdings"] * self.closes[state["day"]]).sum(dim=1)

    def advance(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """Trade at the close, and wait for the next."""
        settled = self.settle(state, self.wanted(state, actions))
        return self.wait(state, settled)

    def wanted(self, state: State, actions: Tensor) -> Tensor:
        """What an action asks for: shares of each stock to buy, or to sell if negative, [E, S]."""
        actions = actions.to(self.dtype)
        if self.config.actions == "trades":
            return actions.clamp(-1, 1) * self.config.hmax
        weights = actions.clamp(0, 1)
        weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1)
        money = weights * self.value(state).unsqueeze(1)
        return money / self.closes[state["day"]] - state["holdings"]

    def settle(self, state: State, wanted: Tensor) -> Settled:
        """Sell, then buy what the cash allows."""
        prices, holdings = self.closes[state["day"]], state["holdings"]
        stop = self.turbulent[state["day"]].unsqueeze(1)
        sold = torch.where(stop, holdings, torch.minimum((-wanted).clamp(min=0), holdings))
        income = (sold * prices).sum(dim=1)
        cash = state["cash"] + income * (1 - self.config.cost)
        bought = torch.where(stop, 0.0, wanted.clamp(min=0))
        spending = (bought * prices).sum(dim=1)
        dear = spending * (1 + self.config.cost)
        part = torch.where(dear > cash, cash / dear, 1.0)  # 0 / 0 is not chosen
        bought, spending = bought * part.unsqueeze(1), spending * part
        cash = (cash - spending * (1 + self.config.cost)).clamp(min=0)
        traded = income + spending
        return Settled(cash, holdings - sold + bought, traded, traded * self.config.cost)

    def wait(self, state: State, settled: Settled) -> tuple[State, Tensor, Tensor]:
        """The next day, what it has brought, and that the episode goes on."""
        day = state["day"] + 1
        gain = (settled.holdings * (self.closes[day] - self.closes[state["day"]])).sum(dim=1)
        rewards = (gain - settled.fees) * self.config.reward_scale
        following = {
            "day": day,
            "cash": settled.cash,
            "holdings": settled.holdings,
            "traded": settled.traded,
        }
        return following, rewards, torch.zeros_like(day, dtype=torch.bool)

    def observe(self, state: State) -> Tensor:
        """[E, 2 + K * S + S]."""
        value = state["holdings"] * self.closes[state["day"]]
        own = (state["cash"] / self.config.cash).unsqueeze(1)
        return torch.cat([own, self.seen[state["day"]], value / self.config.cash], dim=1)

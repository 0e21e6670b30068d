"""Buying and selling options on stocks as a batched environment.

Each day, at the close: do nothing, buy one kind of option (a stock, call or put, its moneyness and
its expiry), or sell the oldest position whole. A purchase spends a fixed part of the first cash, as
far as there is cash, and takes a free place. Options are marked by Black and Scholes with the
volatility of the last days, held in parts, and paid out on the day of their expiry without a cost.
On a turbulent day all is sold and nothing is bought. An episode terminates when nearly all is lost.

Marks are a model's, not a market's: there are no quotes in the data, hence no smile and no spread
but the cost.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.environments.spaces import Box, Discrete
from drumline.tasks.clstm_ppo.environments.tensor_environments import State
from drumline.tasks.clstm_ppo.trading.black_scholes import option_value
from drumline.tasks.clstm_ppo.trading.config import OptionsConfig
from drumline.tasks.clstm_ppo.trading.indicators import TRADING_DAYS
from drumline.tasks.clstm_ppo.trading.market import Market
from drumline.tasks.clstm_ppo.trading.trading_environments import TradingEnvironments

RUINED = 1e-3
"""Below this part of the first cash an episode is over."""
LEAST_PREMIUM = 1e-3
"""An option that is worth less than this part of its share is not sold by anyone."""


class Order(NamedTuple):
    """What each environment wants to buy, [E] each; without meaning where `buys` is false."""

    buys: Tensor
    stock: Tensor
    call: Tensor
    moneyness: Tensor
    days: Tensor


class Options(TradingEnvironments):
    """Observed: cash, as a part of the first; 1 on a turbulent day; the market's features; of each
    stock its volatility and the value of calls and of puts on it; and of the oldest position its
    value and time to expiry, and how many places are taken. Values are parts of the first cash.

    A position is in any of P places; `amount` 0 means that a place is free.
    """

    config: OptionsConfig

    def __init__(
        self,
        config: OptionsConfig,
        count: int,
        device: torch.device,
        dtype: torch.dtype,
        market: Market | None = None,
    ) -> None:
        super().__init__(config, count, device, dtype, market)
        self.volatility = torch.tensor(self.market.volatility, dtype=dtype, device=device)
        self.moneyness = torch.tensor(config.moneyness, dtype=dtype, device=device)
        self.expiries = torch.tensor(config.expiry_days, device=device)
        stocks = self.closes.size(1)
        self.kinds = stocks * 2 * len(config.moneyness) * len(config.expiry_days)
        self.action_space = Discrete(1 + self.kinds + 1)
        size = 1 + self.seen.size(1) + 3 * stocks + 3
        self.observation_space = Box((-math.inf,) * size, (math.inf,) * size)

    def no_positions(self, count: int) -> State:
        """All places free, [E, P]."""
        whole = torch.zeros((count, self.config.positions), dtype=torch.int64, device=self.device)
        real = whole.to(self.dtype)
        return {
            "stock": whole,
            "call": whole.bool(),
            "expiry": whole,
            "opened": whole,
            "strike": real,
            "amount": real,
        }

    def marks(self, state: State) -> Tensor:
        """Value of each position at the day's close, [E, P]; 0 in free places."""
        day, stock = state["day"].unsqueeze(1), state["stock"]
        value = option_value(
            state["call"],
            self.closes[day, stock],
            state["strike"].clamp(min=1e-8),  # a free place has none
            (state["expiry"] - day).to(self.dtype) / TRADING_DAYS,
            self.config.rate,
            self.volatility[day, stock],
        )
        return torch.where(state["amount"] > 0, value * state["amount"], 0.0)

    def value(self, state: State) -> Tensor:
        """Cash and positions, [E]."""
        return state["cash"] + self.marks(state).sum(dim=1)

    def advance(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """Sell or buy at the close, wait for the next, and pay out what expires there."""
        marks = self.marks(state)
        before = state["cash"] + marks.sum(dim=1)
        sold = self._sold(state, marks, actions)
        bought = self._bought(sold, actions)
        after = self._paid_out(bought | {"day": state["day"] + 1})
        value = self.value(after)
        rewards = (value - before) * self.config.reward_scale
        return after, rewards, value < RUINED * self.config.cash

    def _sold(self, state: State, marks: Tensor, actions: Tensor) -> State:
        """After selling the oldest position, or all on a turbulent day."""
        chosen = self._oldest(state) & (actions == self.kinds + 1).unsqueeze(1)
        chosen = chosen | self.turbulent[state["day"]].unsqueeze(1)
        income = torch.where(chosen, marks, 0.0).sum(dim=1)
        return state | {
            "amount": torch.where(chosen, 0.0, state["amount"]),
            "cash": state["cash"] + income * (1 - self.config.cost),
            "traded": income,
        }

    def _bought(self, state: State, actions: Tensor) -> State:
        """After buying, where there is a free place, cash, and somebody who sells."""
        order = self._order(state, actions)
        spot = self.closes[state["day"], order.stock]
        strike = spot * order.moneyness
        premium = option_value(
            order.call,
            spot,
            strike,
            order.days.to(self.dtype) / TRADING_DAYS,
            self.config.rate,
            self.volatility[state["day"], order.stock],
        )
        free = state["amount"] == 0
        allowed = order.buys & free.any(dim=1) & (premium > LEAST_PREMIUM * spot)
        most = torch.full_like(premium, self.config.stake * self.config.cash)
        spending = torch.minimum(most, state["cash"] / (1 + self.config.cost))
        spending = torch.where(allowed, spending, 0.0)
        place = _first(free) & (spending > 0).unsqueeze(1)
        new = {
            "stock": order.stock,
            "call": order.call,
            "expiry": state["day"] + order.days,
            "opened": state["day"],
            "strike": strike,
            "amount": spending / premium.clamp(min=1e-12),
        }
        put = {name: torch.where(place, v.unsqueeze(1), state[name]) for name, v in new.items()}
        cash = (state["cash"] - spending * (1 + self.config.cost)).clamp(min=0)
        return state | put | {"cash": cash, "traded": state["traded"] + spending}

    def _order(self, state: State, actions: Tensor) -> Order:
        kind = (actions - 1).clamp(min=0, max=self.kinds - 1)
        expiries, moneynesses = len(self.expiries), len(self.moneyness)
        buys = (actions >= 1) & (actions <= self.kinds) & ~self.turbulent[state["day"]]
        return Order(
            buys,
            stock=kind // (2 * moneynesses * expiries),
            call=kind // (moneynesses * expiries) % 2 == 0,
            moneyness=self.moneyness[kind // expiries % moneynesses],
            days=self.expiries[kind % expiries],
        )

    def _paid_out(self, state: State) -> State:
        """Positions whose day has come are cash."""
        due = (state["expiry"] <= state["day"].unsqueeze(1)) & (state["amount"] > 0)
        payment = torch.where(due, self.marks(state), 0.0).sum(dim=1)
        amount = torch.where(due, 0.0, state["amount"])
        return state | {"cash": state["cash"] + payment, "amount": amount}

    def _oldest(self, state: State) -> Tensor:
        """One true in each row with a position: the one opened first, bool [E, P]."""
        taken = state["amount"] > 0
        opened = torch.where(taken, state["opened"], torch.iinfo(torch.int64).max)
        return _first((opened == opened.min(dim=1, keepdim=True).values) & taken)

    def observe(self, state: State) -> Tensor:
        """[E, 2 + K * S + 3 * S + 3]."""
        day, marks = state["day"], self.marks(state) / self.config.cash
        oldest = self._oldest(state)
        left = (state["expiry"] - day.unsqueeze(1)).to(self.dtype) / max(self.config.expiry_days)
        none = marks.new_zeros(len(day), self.closes.size(1))
        parts = [
            (state["cash"] / self.config.cash).unsqueeze(1),
            self.seen[day],
            self.volatility[day],
            none.scatter_add(1, state["stock"], torch.where(state["call"], marks, 0.0)),
            none.scatter_add(1, state["stock"], torch.where(state["call"], 0.0, marks)),
            torch.where(oldest, marks, 0.0).sum(dim=1, keepdim=True),
            torch.where(oldest, left, 0.0).sum(dim=1, keepdim=True),
            (state["amount"] > 0).to(self.dtype).mean(dim=1, keepdim=True),
        ]
        return torch.cat(parts, dim=1)


def _first(flags: Tensor) -> Tensor:
    """Only the first true of each row."""
    return flags & (flags.cumsum(dim=1) == 1)

"""What trading environments have in common: an episode is a window of days of one market.

Prices, features and flags are tables on the device, and an environment is at a row of them.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.environments.tensor_environments import State, TensorEnvironments
from drumline.tasks.clstm_ppo.trading.config import TradingConfig
from drumline.tasks.clstm_ppo.trading.market import Market, load_market


class TradingEnvironments(TensorEnvironments):
    """Episodes begin on a day drawn from the environment's own numbers, with nothing but cash.

    The state has at least `day`, int64 [E]; `cash`, [E]; and `traded`, [E], the value of what the
    last step has sold and bought.

    Attributes:
        market: Whose stocks are traded.
        closes: [D, S].
        turbulent: bool [D].
        seen: [D, 1 + K * S], what is observed of a day whatever the portfolio: whether it is
            turbulent, and the market's features.
        first_day: The earliest day an episode may begin on.
        starts: Number of days it may begin on.
    """

    capturable, draws = True, 1

    def __init__(
        self,
        config: TradingConfig,
        count: int,
        device: torch.device,
        dtype: torch.dtype,
        market: Market | None = None,
    ) -> None:
        self.config = config
        self.market = market = load_market(config) if market is None else market
        span = market.span(config.played)
        steps = span.steps if config.episode_days is None else config.episode_days
        super().__init__(count, device, dtype, steps)
        self.first_day, self.starts = span.begin, span.steps - steps + 1
        self.closes = torch.tensor(market.close, dtype=dtype, device=device)
        self.turbulent = torch.tensor(market.turbulent, device=device)
        features = torch.tensor(market.features, dtype=dtype, device=device).flatten(1)
        self.seen = torch.cat([self.turbulent.to(dtype).unsqueeze(1), features], dim=1)

    def first(self, uniforms: Tensor) -> State:
        """Any day that leaves room for the episode; no positions."""
        place = (uniforms[:, 0] * self.starts).long().clamp(max=self.starts - 1)
        cash = torch.full_like(uniforms[:, 0], self.config.cash)
        common = {
            "day": self.first_day + place,
            "cash": cash,
            "traded": torch.zeros_like(cash),
        }
        return common | self.no_positions(len(cash))

    @abstractmethod
    def no_positions(self, count: int) -> State:
        """The rest of the state at the start of `count` episodes."""

    @abstractmethod
    def value(self, state: State) -> Tensor:
        """What the portfolio is worth at the day's close, cash included, [E]."""

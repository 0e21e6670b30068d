"""What an option is worth by the formula of Black and Scholes (1973), for any number at once."""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_VOLATILITY = 1e-4


def option_value(
    call: Tensor, spot: Tensor, strike: Tensor, years: Tensor, rate: float, volatility: Tensor
) -> Tensor:
    """Value of European options on shares without dividends. All tensors broadcast.

    Args:
        call: bool; false is a put.
        spot: Price of the share, above 0.
        strike: Price it can be bought or sold at, above 0.
        years: Time that is left; at 0 and below the option is worth what exercising it brings.
        rate: Risk-free rate a year, continuously compounded.
        volatility: Standard deviation of log returns, a year; at least `LEAST_VOLATILITY` is taken.
    """
    sign = torch.where(call, 1.0, -1.0).to(spot.dtype)
    over = years <= 0
    time = torch.where(over, torch.ones_like(years), years)
    deviation = volatility.clamp(min=LEAST_VOLATILITY) * time.sqrt()
    discounted = strike * torch.exp(-rate * time)
    first = torch.log(spot / discounted) / deviation + 0.5 * deviation
    second = first - deviation
    alive = sign * (
        spot * torch.special.ndtr(sign * first) - discounted * torch.special.ndtr(sign * second)
    )
    exercised = sign * (spot - strike)
    return torch.where(over, exercised, alive).clamp(min=0)

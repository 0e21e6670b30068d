"""What cuDNN's recurrent layers and torch's fused LSTM cell keep and take, without their values.

cuDNN keeps one reserve for the backward instead of torch's many small tensors. Its size is not
documented; the factors here come from measurements, see benchmarks/memory_estimate.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LSTM_RESERVE = 6
"""Values kept for each unit, step and direction: four gates, the cell, and its tanh."""

GRU_RESERVE = 5
"""Three gates, the candidate's recurrent part, and the state."""


def lstm(
    entered: Tensor,
    hx: list[Tensor],
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, last hidden state and last cell, as torch.lstm."""
    del has_biases, train
    layers = num_layers * (2 if bidirectional else 1)
    kept = LSTM_RESERVE * layers + (layers if dropout else 0)
    out = _run(entered, hx, params, kept, bidirectional=bidirectional, batch_first=batch_first)
    return out[0], out[1], out[2]


def gru(
    entered: Tensor,
    hx: Tensor,
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    """Output and last hidden state, as torch.gru."""
    del has_biases, train
    layers = num_layers * (2 if bidirectional else 1)
    kept = GRU_RESERVE * layers + (layers if dropout else 0)
    out = _run(entered, [hx], params, kept, bidirectional=bidirectional, batch_first=batch_first)
    return out[0], out[1]


def _run(
    entered: Tensor,
    states: list[Tensor],
    params: list[Tensor],
    kept: int,
    *,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        entered, *states = (tensor.to(dtype) for tensor in (entered, *states))
        params = [parameter.to(dtype) for parameter in params]
    if batch_first:
        entered = entered.transpose(0, 1)
    width = states[0].size(-1) * (2 if bidirectional else 1)
    sizes = (width, kept, len(states))
    out: tuple[Tensor, ...] = _CuDNN.apply(sizes, entered, *states, *params)  # type: ignore[no-untyped-call]
    return (out[0].transpose(0, 1), *out[1:]) if batch_first else out


class _CuDNN(torch.autograd.Function):
    """Sequences [time, batch, width]; keeps input, output, states, weights and the reserve."""

    @staticmethod
    def forward(
        ctx: Any, sizes: tuple[int, int, int], entered: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        width, kept, number = sizes
        entered = entered.contiguous()
        states = rest[:number]
        time, batch, _ = entered.shape
        out = entered.new_empty(time, batch, width)
        last = tuple(torch.empty_like(state) for state in states)
        reserve = entered.new_empty(kept, time, batch, states[0].size(-1))
        entered.new_empty(time, batch, 4 * states[0].size(-1))  # its workspace, freed at once
        ctx.save_for_backward(entered, out, reserve, *rest)
        ctx.states = number
        return (out, *last)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        entered, rest = ctx.saved_tensors[0], ctx.saved_tensors[3:]
        states, weights = rest[: ctx.states], rest[ctx.states :]
        hidden = states[0].size(-1)
        workspace = entered.new_empty(*entered.shape[:2], 4 * hidden)
        for_entered = torch.empty_like(entered)
        for_states = [torch.empty_like(state) for state in states]
        flat = entered.new_empty(sum(weight.numel() for weight in weights))
        del workspace
        parts = flat.split([weight.numel() for weight in weights])
        for_weights = [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]
        return None, for_entered, *for_states, *for_weights


def lstm_cell(
    entered: Tensor,
    hx: list[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The next hidden state and cell, by two products and one fused kernel."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        entered, w_ih, w_hh = (tensor.to(dtype) for tensor in (entered, w_ih, w_hh))
        hx = [tensor.to(dtype) for tensor in hx]
    from_input, from_hidden = entered @ w_ih.t(), hx[0] @ w_hh.t()
    biases = [bias for bias in (b_ih, b_hh) if bias is not None]
    out: tuple[Tensor, Tensor] = _Cell.apply(from_input, from_hidden, hx[1], *biases)  # type: ignore[no-untyped-call]
    return out


class _Cell(torch.autograd.Function):
    """Keeps the gates after their functions, and both cells (cuda/RNN.cu)."""

    @staticmethod
    def forward(
        ctx: Any, from_input: Tensor, _: Tensor, cell: Tensor, *biases: Tensor
    ) -> tuple[Tensor, Tensor]:
        after = torch.empty_like(cell)
        ctx.save_for_backward(torch.empty_like(from_input), cell, after)
        ctx.biases = len(biases)
        return torch.empty_like(cell), after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        gates, cell = ctx.saved_tensors[:2]
        for_gates, for_cell = torch.empty_like(gates), torch.empty_like(cell)
        return for_gates, for_gates, for_cell, *(for_gates.sum(0) for _ in range(ctx.biases))

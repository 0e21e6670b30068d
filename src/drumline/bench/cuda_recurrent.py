"""What cuDNN's recurrent layers and torch's fused LSTM cell keep and take, without their values.

cuDNN keeps one reserve for the backward instead of torch's many small tensors, and takes a
workspace in each of its three calls. Neither size is documented. Those of an LSTM are as measured
with cuDNN 9.19: on an H100 with 1024 units (128 steps, 256 sequences, width 1024) in both
precisions; on an H200 with 64 units in float32 (8 steps, 1,024 and 16,384 sequences, width 2), and
packed with 256 units in float16 (65,536 steps in 3,560 to 3,598 sequences, width 2). Other shapes,
several layers, two directions and GRUs are taken to follow the law of the nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LSTM_RESERVE = 5
"""Values kept for each unit, step and direction: four gates and the cell."""

GRU_RESERVE = 5
"""Three gates, the candidate's recurrent part, and the state. Not measured."""

_NARROW_UNITS = 64
"""Layers of no more units take `_NARROW` values for each unit and step instead."""

_NARROW = 22
_STATES_IN_WORKSPACE, _STATES_IN_PACKED = 11, 6
_WORKSPACE_BYTES = 8 * 2**20 + 256
_RESERVE_BYTES = 256


@dataclass(frozen=True)
class _Sizes:
    """Of a recurrent layer's call: gates and values kept of each unit, layers times directions."""

    gates: int
    kept: int
    layers: int
    states: int
    width: int


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
    sizes = _sizes(hx[0], 4, LSTM_RESERVE, 2, num_layers, bidirectional=bidirectional)
    out = _run(entered, hx, params, sizes, dropout=dropout, batch_first=batch_first)
    return out[0], out[1], out[2]


def packed_lstm(
    entered: Tensor,
    batch_sizes: Tensor,
    hx: list[Tensor],
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same over a packed sequence [steps of all, width]."""
    del batch_sizes, has_biases, train
    sizes = _sizes(hx[0], 4, LSTM_RESERVE, 2, num_layers, bidirectional=bidirectional)
    out = _run(entered.unsqueeze(1), hx, params, sizes, dropout=dropout, batch_first=False)
    return out[0].squeeze(1), out[1], out[2]


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
    sizes = _sizes(hx, 3, GRU_RESERVE, 1, num_layers, bidirectional=bidirectional)
    out = _run(entered, [hx], params, sizes, dropout=dropout, batch_first=batch_first)
    return out[0], out[1]


def _sizes(
    state: Tensor, gates: int, kept: int, states: int, layers: int, *, bidirectional: bool
) -> _Sizes:
    directions = 2 if bidirectional else 1
    return _Sizes(gates, kept, layers * directions, states, state.size(-1) * directions)


def _run(
    entered: Tensor,
    states: list[Tensor],
    params: list[Tensor],
    sizes: _Sizes,
    *,
    dropout: float,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    flat = None
    if torch.is_autocast_enabled("cpu"):  # to float16, also where bfloat16 was asked for
        entered, *states = (tensor.to(torch.float16) for tensor in (entered, *states))
        flat = entered.new_empty(sum(parameter.numel() for parameter in params))
    if batch_first:
        entered = entered.transpose(0, 1)
    if dropout:
        sizes = _Sizes(sizes.gates, sizes.kept + 1, sizes.layers, sizes.states, sizes.width)
    out: tuple[Tensor, ...] = _CuDNN.apply(sizes, flat, entered, *states, *params)  # type: ignore[no-untyped-call]
    return (out[0].transpose(0, 1), *out[1:]) if batch_first else out


def _workspace(entered: Tensor, state: Tensor, sizes: _Sizes, params: Sequence[Tensor]) -> Tensor:
    """What one call to cuDNN takes and gives back; it holds the matrices, too."""
    time, batch, width = entered.shape
    _, sequences, units = state.shape
    matrices = sum(parameter.numel() for parameter in params if parameter.dim() > 1)
    if batch != sequences:  # packed
        each, of_state, read, of_sequence = sizes.gates, _STATES_IN_PACKED, 0, 0
    elif units > _NARROW_UNITS:
        each, of_state, read, of_sequence = sizes.gates + 1, _STATES_IN_WORKSPACE, width, 8
    else:
        each, of_state, read, of_sequence = _NARROW, 0, width, 8
    steps = time * batch * (each * units * sizes.layers + read)
    elements = steps + sequences * units * of_state + matrices
    size = elements * entered.element_size() + sequences * of_sequence + _WORKSPACE_BYTES
    return entered.new_empty(size, dtype=torch.uint8)


class _CuDNN(torch.autograd.Function):
    """Sequences [time, batch, width], or packed ones [steps of all, 1, width]; keeps input, output,
    states, weights and the reserve.
    """

    @staticmethod
    def forward(
        ctx: Any, sizes: _Sizes, flat: Tensor | None, entered: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        states, params = rest[: sizes.states], rest[sizes.states :]
        in_order = entered.contiguous()
        time, batch, _ = entered.shape
        units = states[0].size(-1)
        out = entered.new_empty(time, batch, sizes.width)
        last = tuple(torch.empty_like(state) for state in states)
        workspace = _workspace(entered, states[0], sizes, params)
        kept = time * batch * units * sizes.kept * sizes.layers
        reserve = entered.new_empty(
            kept * entered.element_size() + _RESERVE_BYTES, dtype=torch.uint8
        )
        del workspace, in_order
        ctx.save_for_backward(entered, out, reserve, flat, *rest)
        ctx.sizes = sizes
        return (out, *last)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, for_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """The input's gradient in one call, and then those of all weights in one piece."""
        sizes: _Sizes = ctx.sizes
        entered, rest = ctx.saved_tensors[0], ctx.saved_tensors[4:]
        states, weights = rest[: sizes.states], rest[sizes.states :]
        in_order, for_out = entered.contiguous(), for_out.contiguous()
        for_entered = entered.new_empty(entered.shape)
        for_states = [torch.empty_like(state) for state in states]
        workspace = _workspace(entered, states[0], sizes, weights)
        del workspace, for_out, in_order
        in_order = entered.contiguous()
        flat = entered.new_empty(sum(weight.numel() for weight in weights))
        workspace = _workspace(entered, states[0], sizes, weights)
        del workspace, in_order
        parts = flat.split([weight.numel() for weight in weights])
        for_weights = [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]
        return None, None, for_entered, *for_states, *for_weights


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


def fused_cell(
    gates: Tensor,
    _: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel itself, for who calls it by name: hidden state, cell, and the gates it keeps."""
    del input_bias, hidden_bias
    kept = torch.empty_like(gates)
    return torch.empty_like(cell), torch.empty_like(cell), kept


def fused_cell_backward(
    for_hidden: Tensor,
    for_cell: Tensor,
    before: Tensor,
    after: Tensor,
    gates: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the gates, of the cell before, and of a bias (empty without one)."""
    del for_hidden, for_cell, after
    for_gates, for_before = torch.empty_like(gates), torch.empty_like(before)
    return for_gates, for_before, for_gates.sum(0) if has_bias else gates.new_empty(0)

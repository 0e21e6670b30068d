"""An LSTM over sequences that hold parts of several episodes, in two ways that agree.

*Fused*: torch's own LSTM (cuDNN, oneDNN) over stretches without a new episode. On a GPU every
sequence is cut for itself and all pieces go in one packed call; on the CPU, where packed calls are
slow, all sequences are cut together wherever one of them begins an episode. *Loop*: one step after
the other, the state zeroed where an episode begins; its backward multiplies for the weights'
gradient once instead of at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

Way = Literal["auto", "fused", "loop"]


@dataclass(frozen=True)
class Pieces:
    """Sequences cut each for itself into pieces within one episode.

    Attributes:
        order: int64 [L * n], places in the flat [L, n] sequences, in the order of a packed
            sequence: all first steps of pieces, longest piece first, then all second steps, ...
        batch_sizes: int64 [longest], on the CPU: pieces that have a step so far in.
        rows: int64 [pieces], the sequence each piece is of.
        carried: bool [pieces], whether a piece goes on from the sequence's initial state.
    """

    order: Tensor
    batch_sizes: Tensor
    rows: Tensor
    carried: Tensor


@dataclass(frozen=True)
class Cuts:
    """Where sequences are cut.

    Attributes:
        steps: Steps, in ascending order, at which an episode begins in any sequence.
        pieces: For a packed call; None where the stretches between `steps` do.
    """

    steps: tuple[int, ...]
    pieces: Pieces | None = None


def find_cuts(starts: Tensor) -> Cuts:
    """Look where episodes begin. Waits for the device.

    Args:
        starts: bool [L, n], whether a step is the first of an episode.
    """
    steps = tuple(starts.any(dim=1).nonzero().flatten().tolist())
    packed = starts.device.type != "cpu" and any(steps)
    return Cuts(steps, _find_pieces(starts) if packed else None)


def _find_pieces(starts: Tensor) -> Pieces:
    length, count = starts.shape
    begins = starts.clone()
    begins[0] = True
    steps = torch.arange(length, device=starts.device).unsqueeze(1)
    since = steps - torch.where(begins, steps, 0).cummax(dim=0).values
    piece = begins.t().reshape(-1).cumsum(0).sub(1).view(count, length).t()
    sizes = torch.bincount(piece.reshape(-1))
    by_size = sizes.argsort(descending=True, stable=True)
    rank = torch.empty_like(by_size)
    rank[by_size] = torch.arange(len(by_size), device=starts.device)
    order = (since * len(sizes) + rank[piece]).reshape(-1).argsort()
    rows, first_steps = begins.t().nonzero(as_tuple=True)
    carried = (first_steps == 0) & ~starts[0, rows]
    batch_sizes = torch.bincount(since.reshape(-1)).cpu()
    return Pieces(order, batch_sizes, rows[by_size], carried[by_size])


class Recurrent(nn.Module):
    """An LSTM of one or more layers that can go step by step or over whole sequences.

    Args:
        inputs: Size of what it reads.
        hidden: Size of its state and output, H.
        layers: Layers, each reading the one before.
    """

    def __init__(self, inputs: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.hidden, self.layers = hidden, layers
        self.lstm = nn.LSTM(inputs, hidden, layers)
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)

    def initial(self, count: int) -> Tensor:
        """The state before anything was read, [count, layers, 2, H]: hidden and cell."""
        weight = self._weights(0)[0]
        return weight.new_zeros(count, self.layers, 2, self.hidden)

    def step(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: [n, D] and a state [n, layers, 2, H] to outputs [n, H] and the next state."""
        states = []
        for layer in range(self.layers):
            hidden, cell = torch.lstm_cell(
                inputs, (state[:, layer, 0], state[:, layer, 1]), *self._weights(layer)
            )
            states.append(torch.stack([hidden, cell], dim=1))
            inputs = hidden
        return inputs, torch.stack(states, dim=1)

    def forward(
        self, inputs: Tensor, starts: Tensor, state: Tensor, cuts: Cuts, way: Way
    ) -> Tensor:
        """Outputs of whole sequences.

        Args:
            inputs: [L, n, D].
            starts: bool [L, n]: the state is zeroed before these steps.
            state: [n, layers, 2, H] before the first step; no gradient flows into it.
            cuts: `find_cuts(starts)`.
            way: "fused", "loop", or "auto": see `faster_way`.

        Returns:
            [L, n, H].
        """
        if way == "auto":
            way = faster_way(inputs, self.hidden, cuts)
        if way == "loop":
            return self._loop(inputs, starts, state, cuts)
        if cuts.pieces is not None:
            return self._packed(inputs, state, cuts.pieces)
        return self._stretches(inputs, starts, state, cuts)

    def _stretches(self, inputs: Tensor, starts: Tensor, state: Tensor, cuts: Cuts) -> Tensor:
        hidden, cell = (part.contiguous() for part in state.permute(2, 1, 0, 3))
        found, cut_at = [], set(cuts.steps)
        bounds = sorted({0, len(inputs)} | cut_at)
        for begin, end in pairwise(bounds):
            if begin in cut_at:
                keep = (~starts[begin]).view(1, -1, 1)
                hidden, cell = hidden * keep, cell * keep
            outputs, (hidden, cell) = self.lstm(inputs[begin:end], (hidden, cell))
            found.append(outputs)
        return found[0] if len(found) == 1 else torch.cat(found)

    def _packed(self, inputs: Tensor, state: Tensor, pieces: Pieces) -> Tensor:
        length, count, _ = inputs.shape
        hidden, cell = state.permute(2, 1, 0, 3)
        kept = pieces.carried.to(state.dtype).view(1, -1, 1)
        first = (hidden[:, pieces.rows] * kept, cell[:, pieces.rows] * kept)
        flat = inputs.reshape(length * count, -1)[pieces.order]
        packed = self.lstm(PackedSequence(flat, pieces.batch_sizes), first)[0].data
        outputs = torch.empty_like(packed).index_copy(0, pieces.order, packed)
        return outputs.view(length, count, self.hidden)

    def _loop(self, inputs: Tensor, starts: Tensor, state: Tensor, cuts: Cuts) -> Tensor:
        keep, cut = (~starts).unsqueeze(-1), frozenset(cuts.steps)
        for layer in range(self.layers):
            weight, recurrent, bias, recurrent_bias = self._weights(layer)
            gates = nn.functional.linear(inputs, weight, bias + recurrent_bias)
            begin = (state[:, layer, 0], state[:, layer, 1])
            inputs = _masked_loop(gates, recurrent, *begin, keep, cut)
        return inputs

    def _weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        found = [getattr(self.lstm, f"{name}_l{layer}") for name in names]
        return found[0], found[1], found[2], found[3]


def faster_way(inputs: Tensor, hidden: int, cuts: Cuts) -> Way:
    """The fused way, until both were measured side by side."""
    del inputs, hidden, cuts
    return "fused"


class _MaskedLoop(torch.autograd.Function):
    """One LSTM layer over [L, n, 4H] gate inputs (in the order i, f, g, o, as torch has them)."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        weight: Tensor,
        hidden: Tensor,
        cell: Tensor,
        keep: Tensor,
        cut: frozenset[int],
    ) -> Tensor:
        length, count, width = gates.shape
        size = width // 4
        state_dtype = torch.promote_types(gates.dtype, torch.float32)
        recurrent = weight.to(gates.dtype).t()
        active = torch.empty(length, count, width, dtype=state_dtype, device=gates.device)
        cells = active.new_empty(length, count, size)
        befores, hiddens, outputs = (torch.empty_like(cells) for _ in range(3))
        tanhs = torch.empty_like(cells)
        hidden, cell = hidden.to(state_dtype), cell.to(state_dtype)
        for step in range(length):
            if step in cut:
                hidden, cell = hidden * keep[step], cell * keep[step]
            hiddens[step], befores[step] = hidden, cell
            gate = active[step]
            if gates.dtype == state_dtype:
                torch.addmm(gates[step], hidden, recurrent, out=gate)
            else:
                gate.copy_(torch.addmm(gates[step], hidden.to(gates.dtype), recurrent))
            gate[:, : 2 * size].sigmoid_()
            gate[:, 2 * size : 3 * size].tanh_()
            gate[:, 3 * size :].sigmoid_()
            enter, forget, new, leave = gate.chunk(4, dim=1)
            cell = torch.mul(forget, cell, out=cells[step]).addcmul_(enter, new)
            hidden = torch.mul(leave, torch.tanh(cell, out=tanhs[step]), out=outputs[step])
        ctx.save_for_backward(active, befores, tanhs, hiddens, weight, keep)
        ctx.cut, ctx.gate_dtype = cut, gates.dtype
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        active, befores, tanhs, hiddens, weight, keep = ctx.saved_tensors
        length, count, width = active.shape
        size = width // 4
        outgoing = gradients[0].to(active.dtype)
        recurrent = weight.to(ctx.gate_dtype)
        into = torch.empty_like(active)
        d_hidden = active.new_zeros(count, size)
        d_cell = torch.zeros_like(d_hidden)
        for step in reversed(range(length)):
            enter, forget, new, leave = active[step].chunk(4, dim=1)
            d_enter, d_forget, d_new, d_leave = into[step].chunk(4, dim=1)
            tanh = tanhs[step]
            d_hidden = d_hidden + outgoing[step]
            torch.mul(d_hidden * tanh, leave * (1 - leave), out=d_leave)
            d_cell = torch.addcmul(d_cell, d_hidden * leave, 1 - tanh * tanh)
            torch.mul(d_cell * new, enter * (1 - enter), out=d_enter)
            torch.mul(d_cell * befores[step], forget * (1 - forget), out=d_forget)
            torch.mul(d_cell * enter, 1 - new * new, out=d_new)
            d_cell = d_cell * forget
            d_hidden = (into[step].to(ctx.gate_dtype) @ recurrent).to(active.dtype)
            if step in ctx.cut:
                d_hidden, d_cell = d_hidden * keep[step], d_cell * keep[step]
        flat = into.view(-1, width).to(ctx.gate_dtype)
        d_weight = flat.t() @ hiddens.view(-1, size).to(ctx.gate_dtype)
        gates = into.to(ctx.gate_dtype)
        return gates, d_weight.to(weight.dtype), None, None, None, None


_masked_loop: Any = _MaskedLoop.apply

"""One layer of several LSTMs at once as a loop over steps, for sequences in which episodes begin.

The LSTMs (actor and critic) stand side by side: a step is one batched product and one cell for all
of them. What does not need the loop is outside it: the inputs' part of the gates before, and the
weights' gradients after. Which sequences go this way is left to `sequences`; `recorded_loop` takes
the two halves apart, to launch each at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from drumline.distributed.kind import is_gpu

_ALIGNED = 8
"""Inputs are filled up to a multiple of this, which matrix products are fast for."""


class Layer(NamedTuple):
    """Weights of G LSTMs over D inputs with states of H, gates in the order i, f, g, o."""

    weight: Tensor
    """[G, 4H, D]."""
    recurrent: Tensor
    """[G, 4H, H]."""
    bias: Tensor
    """[G, 4H], both biases together."""


class Begun(NamedTuple):
    """Where G LSTMs begin n sequences. No gradient flows into it."""

    hidden: Tensor
    """[G, n, H]."""
    cell: Tensor
    """[G, n, H]."""
    keep: Tensor
    """bool [L, n], false where the state is zeroed before a step."""


class Kept(NamedTuple):
    """What the backward needs, and `outputs` [L, G, n, H]. Lists have one tensor a step."""

    outputs: Tensor
    seen: Tensor
    kept: Tensor
    hiddens: list[Tensor]
    befores: list[Tensor]
    afters: list[Tensor]
    works: list[Tensor]


def masked_loop(
    inputs: Tensor, layer: Layer, begun: Begun, cut: frozenset[int] | None = None
) -> Tensor:
    """Outputs [L, G, n, H].

    Args:
        inputs: [L, G, n, D], or [L, 1, n, D] if all LSTMs read the same.
        layer: The weights.
        begun: Where the sequences begin.
        cut: Steps at which the state is zeroed in any sequence; None: possibly all.
    """
    device = inputs.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else inputs.dtype
    steps = frozenset(range(len(inputs))) if cut is None else cut
    with torch.autocast(device, enabled=False):
        found: Tensor = _MaskedLoop.apply(inputs.to(dtype), *layer, *begun, steps)  # type: ignore[no-untyped-call]
    return found


class _MaskedLoop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, *arguments: Any) -> Tensor:
        layer, begun, cut = Layer(*arguments[:3]), Begun(*arguments[3:6]), arguments[6]
        found = run(inputs, layer, begun, cut)
        lists = (found.hiddens, found.befores, found.afters, found.works)
        ctx.save_for_backward(*layer, found.seen, found.kept, *(t for each in lists for t in each))
        ctx.cut = cut
        return found.outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, recurrent, bias, seen, kept, *saved = ctx.saved_tensors
        length = len(seen)
        lists = [saved[begin : begin + length] for begin in range(0, len(saved), length)]
        found = Kept(gradients[0], seen, kept, *lists)
        layer = Layer(weight, recurrent, bias)
        d_inputs, d_layer = run_back(gradients[0], found, layer, ctx.cut, ctx.needs_input_grad[0])
        return d_inputs, *d_layer, None, None, None, None


def run(inputs: Tensor, layer: Layer, begun: Begun, cut: frozenset[int]) -> Kept:
    """The loop. Products are in the inputs' dtype; gates and states at least in float32."""
    narrow = inputs.dtype
    wide = torch.promote_types(narrow, torch.float32)
    seen = _with_ones(inputs)
    gates = torch.matmul(seen, _with_bias(layer, seen.size(-1)).to(narrow).mT)
    forward = layer.recurrent.to(narrow).mT.contiguous()
    kept = begun.keep.to(wide).unsqueeze(-1)
    hidden, cell = begun.hidden.to(wide).contiguous(), begun.cell.to(wide).contiguous()
    found = Kept(gates, seen, kept, [], [], [], [])
    outputs = []
    for step in range(len(gates)):
        if step in cut:
            hidden, cell = hidden * kept[step], cell * kept[step]
        added = torch.bmm(hidden.to(narrow), forward)
        found.hiddens.append(hidden)
        found.befores.append(cell)
        hidden, cell, work = _cell(gates[step].to(wide), added.to(wide), cell)
        outputs.append(hidden)
        found.afters.append(cell)
        found.works.append(work)
    return found._replace(outputs=torch.stack(outputs))


def run_back(
    outgoing: Tensor, found: Kept, layer: Layer, cut: frozenset[int], with_inputs: bool
) -> tuple[Tensor | None, Layer]:
    """Gradients of the inputs, if wanted, and of the weights.

    Args:
        outgoing: Gradient of the outputs, [L, G, n, H].
        found: What `run` gave.
        layer: The weights.
        cut: As in `run`.
        with_inputs: Whether the inputs' gradient is wanted.
    """
    narrow, length = found.seen.dtype, len(found.seen)
    outgoing, backward = outgoing.to(found.kept.dtype), layer.recurrent.to(narrow)
    into: list[Tensor] = [found.kept] * length
    d_hidden, d_cell = outgoing[-1], torch.zeros_like(found.befores[-1])
    for step in reversed(range(length)):
        into[step], d_cell = _cell_backward(
            d_hidden, d_cell, found.befores[step], found.afters[step], found.works[step]
        )
        if step == 0:
            break
        d_hidden = torch.bmm(into[step].to(narrow), backward).to(outgoing.dtype)
        if step in cut:
            d_cell = d_cell * found.kept[step]
            d_hidden = torch.addcmul(outgoing[step - 1], d_hidden, found.kept[step])
        else:
            d_hidden = d_hidden.add_(outgoing[step - 1])
    d_gates = torch.stack(into, dim=1).flatten(1, 2).to(narrow)  # [G, L * n, 4H]
    read = torch.stack(found.hiddens, dim=1).flatten(1, 2).to(narrow)
    d_recurrent = torch.bmm(d_gates.mT, read).to(layer.recurrent.dtype)
    seen = found.seen.transpose(0, 1).flatten(1, 2)
    d_weight = torch.matmul(d_gates.mT, seen).to(layer.weight.dtype)
    size = layer.weight.size(-1)
    d_inputs = None
    if with_inputs:
        d_inputs = torch.matmul(d_gates, layer.weight.to(narrow))
        d_inputs = d_inputs.view(len(d_gates), length, -1, size).transpose(0, 1)
        d_inputs = d_inputs.sum_to_size(*found.seen.shape[:-1], size)
    return d_inputs, Layer(d_weight[..., :size], d_recurrent, d_weight[..., size])


def _with_ones(inputs: Tensor) -> Tensor:
    """[..., D] to [..., D + 1 or more]: a 1 that the bias belongs to, and zeros."""
    size = inputs.size(-1)
    filled = inputs.new_zeros(*inputs.shape[:-1], -(-(size + 1) // _ALIGNED) * _ALIGNED)
    filled[..., :size] = inputs
    filled[..., size] = 1.0
    return filled


def _with_bias(layer: Layer, width: int) -> Tensor:
    """[G, 4H, width]."""
    size = layer.weight.size(-1)
    filled = layer.weight.new_zeros(*layer.weight.shape[:-1], width)
    filled[..., :size] = layer.weight
    filled[..., size] = layer.bias
    return filled


def _cell(gates: Tensor, added: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden and cell [G, n, H] after a step, and what the backward needs of its gates [G, n, 4H].

    On a GPU it is the kernel of torch's own LSTMCell.
    """
    if is_gpu(gates.device):
        hidden, after, work = torch.ops.aten._thnn_fused_lstm_cell.default(
            gates.flatten(0, 1), added.flatten(0, 1), cell.flatten(0, 1)
        )
        return hidden.view(cell.shape), after.view(cell.shape), work.view(gates.shape)
    enter, forget, new, leave = (gates + added).chunk(4, dim=-1)
    enter, forget, new, leave = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    after = forget * cell + enter * new
    return leave * after.tanh(), after, torch.cat([enter, forget, new, leave], dim=-1)


def _cell_backward(
    d_hidden: Tensor, d_cell: Tensor, before: Tensor, after: Tensor, work: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates [G, n, 4H] and of the cell before the step [G, n, H]."""
    if is_gpu(work.device):
        flat = (each.flatten(0, 1) for each in (d_hidden, d_cell, before, after, work))
        d_gates, d_before, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl.default(
            *flat, False
        )
        return d_gates.view(work.shape), d_before.view(before.shape)
    enter, forget, new, leave = work.chunk(4, dim=-1)
    tanh = after.tanh()
    d_cell = d_cell + d_hidden * leave * (1 - tanh * tanh)
    parts = [
        d_cell * new * enter * (1 - enter),
        d_cell * before * forget * (1 - forget),
        d_cell * enter * (1 - new * new),
        d_hidden * tanh * leave * (1 - leave),
    ]
    return torch.cat(parts, dim=-1), d_cell * forget

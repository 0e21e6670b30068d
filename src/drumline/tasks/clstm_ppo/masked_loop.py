"""One layer of several LSTMs at once as a loop over steps, for sequences in which episodes begin.

The LSTMs (actor and critic) stand side by side: a step is one batched product and one cell for all
of them. What does not need the loop is outside it: the inputs' part of the gates before, and the
weights' gradients after. Which sequences go this way is left to `sequences`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Layer(NamedTuple):
    """Weights of G LSTMs over D inputs with states of H, gates in the order i, f, g, o."""

    weight: Tensor
    """[G, 4H, D]."""
    recurrent: Tensor
    """[G, 4H, H]."""
    bias: Tensor
    """[G, 4H], both biases together."""


def masked_loop(
    inputs: Tensor, layer: Layer, hidden: Tensor, cell: Tensor, keep: Tensor, cut: frozenset[int]
) -> Tensor:
    """Outputs [L, G, n, H].

    Args:
        inputs: [L, G, n, D], or [L, 1, n, D] if all LSTMs read the same.
        layer: The weights.
        hidden: [G, n, H], before the first step. No gradient flows into it, nor into `cell`.
        cell: [G, n, H].
        keep: bool [L, n], false where the state is zeroed before a step.
        cut: Steps at which it is in any sequence.
    """
    device = inputs.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else inputs.dtype
    with torch.autocast(device, enabled=False):
        found: Tensor = _MaskedLoop.apply(inputs.to(dtype), *layer, hidden, cell, keep, cut)  # type: ignore[no-untyped-call]
    return found


class _MaskedLoop(torch.autograd.Function):
    """Products are in the inputs' dtype; gates and states at least in float32."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        recurrent: Tensor,
        bias: Tensor,
        hidden: Tensor,
        cell: Tensor,
        keep: Tensor,
        cut: frozenset[int],
    ) -> Tensor:
        narrow = inputs.dtype
        wide = torch.promote_types(narrow, torch.float32)
        gates = torch.matmul(inputs, weight.to(narrow).mT).add_(bias.unsqueeze(1))
        forward = recurrent.to(narrow).mT.contiguous()
        kept = keep.to(wide).unsqueeze(-1)
        hidden, cell = hidden.to(wide).contiguous(), cell.to(wide).contiguous()
        hiddens, befores, afters, works, outputs = [], [], [], [], []
        for step in range(len(gates)):
            if step in cut:
                hidden, cell = hidden * kept[step], cell * kept[step]
            added = torch.bmm(hidden.to(narrow), forward)
            hiddens.append(hidden)
            befores.append(cell)
            hidden, cell, work = _cell(gates[step].to(wide), added.to(wide), cell)
            outputs.append(hidden)
            afters.append(cell)
            works.append(work)
        ctx.save_for_backward(inputs, weight, recurrent, kept, *hiddens, *befores, *afters, *works)
        ctx.cut = cut
        return torch.stack(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, recurrent, kept, *saved = ctx.saved_tensors
        narrow, length = inputs.dtype, len(inputs)
        hiddens, befores, afters, works = (
            saved[begin : begin + length] for begin in range(0, len(saved), length)
        )
        outgoing, backward = gradients[0].to(kept.dtype), recurrent.to(narrow)
        into: list[Tensor] = [kept] * length
        d_hidden, d_cell = outgoing[-1], torch.zeros_like(befores[-1])
        for step in reversed(range(length)):
            into[step], d_cell = _cell_backward(
                d_hidden, d_cell, befores[step], afters[step], works[step]
            )
            if step == 0:
                break
            d_hidden = torch.bmm(into[step].to(narrow), backward).to(kept.dtype)
            if step in ctx.cut:
                d_cell = d_cell * kept[step]
                d_hidden = torch.addcmul(outgoing[step - 1], d_hidden, kept[step])
            else:
                d_hidden = d_hidden.add_(outgoing[step - 1])
        d_gates = torch.stack(into, dim=1).flatten(1, 2)  # [G, L * n, 4H]
        from_gates = d_gates.to(narrow)
        read = torch.stack(hiddens, dim=1).flatten(1, 2).to(narrow)
        seen = inputs.transpose(0, 1).flatten(1, 2)
        d_inputs = None
        if ctx.needs_input_grad[0]:
            d_inputs = torch.matmul(from_gates, weight.to(narrow))
            d_inputs = d_inputs.view(len(weight), length, *inputs.shape[2:]).transpose(0, 1)
            d_inputs = d_inputs.sum_to_size(inputs.shape)
        d_weight = torch.matmul(from_gates.mT, seen).to(weight.dtype)
        d_recurrent = torch.bmm(from_gates.mT, read).to(recurrent.dtype)
        return d_inputs, d_weight, d_recurrent, d_gates.sum(dim=1), None, None, None, None


def _cell(gates: Tensor, added: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden and cell [G, n, H] after a step, and what the backward needs of its gates [G, n, 4H].

    On a GPU it is the kernel of torch's own LSTMCell.
    """
    if gates.device.type == "cuda":
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
    if work.device.type == "cuda":
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

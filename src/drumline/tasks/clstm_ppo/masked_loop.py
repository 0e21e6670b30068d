"""One LSTM layer as a loop over steps, for sequences in which episodes begin.

A step's products and gates are written in place, and the backward multiplies for the weights'
gradient once instead of at every step. Which sequences go this way is left to `sequences`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class MaskedLoop(torch.autograd.Function):
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
        """Outputs [L, n, H].

        Args:
            ctx: For the backward.
            gates: What the inputs add to the gates, [L, n, 4H].
            weight: The recurrent weights, [4H, H].
            hidden: [n, H], before the first step. No gradient flows into it, nor into `cell`.
            cell: [n, H].
            keep: bool [L, n, 1], false where the state is zeroed before a step.
            cut: Steps at which it is in any sequence.
        """
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
        """Gradients of `gates` and `weight`."""
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


masked_loop: Any = MaskedLoop.apply

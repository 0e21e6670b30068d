"""An LSTM over sequences that hold parts of several episodes, in two ways that agree.

*Fused*: torch's own LSTM (cuDNN, oneDNN) over what lies between two starts of episodes; `pieces`
says how it is cut. *Loop*: one step after the other, the state zeroed where an episode begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from drumline.tasks.clstm_ppo.masked_loop import Begun, Layer, masked_loop
from drumline.tasks.clstm_ppo.pieces import Bucket, Cuts, Pieces, find_cuts, places_in

Way = Literal["auto", "fused", "loop"]
Loop = Callable[[Tensor, Layer, Begun], Tensor]
"""Inputs [L, G or 1, n, D] through one layer of G LSTMs to outputs [L, G, n, H]."""


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
        weight = self.weights(0)[0]
        return weight.new_zeros(count, self.layers, 2, self.hidden)

    def step(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: [n, D] and a state [n, layers, 2, H] to outputs [n, H] and the next state."""
        states = []
        for layer in range(self.layers):
            hidden, cell = torch.lstm_cell(
                inputs, (state[:, layer, 0], state[:, layer, 1]), *self.weights(layer)
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
            way: "fused", "loop", or "auto", which is fused: with the cuts that `find_cuts` chooses
                it was faster than a loop that is launched step by step at every number of sequences
                and of cuts, on a CPU and on a GPU (benchmarks/sequence_ways.py).

        Returns:
            [L, n, H].
        """
        if way == "loop":
            loops = [partial(masked_loop, cut=frozenset(cuts.steps))] * self.layers
            return loop_together([self], inputs, starts, [state], loops)[0]
        if cuts.pieces is None:
            return self._stretches(inputs, starts, state, cuts)
        if cuts.buckets:
            return self._padded(inputs, state, cuts.pieces, cuts.buckets)
        return self._packed(inputs, state, cuts.pieces)

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
        first = _begun(state, pieces)
        flat = inputs.reshape(length * count, -1)[pieces.order]
        weights = [weight for layer in range(self.layers) for weight in self.weights(layer)]
        # As nn.LSTM does, which would read a number of `batch_sizes`: without values there is none.
        shape = (True, self.layers, 0.0, self.training, False)
        packed = torch.lstm(flat, pieces.batch_sizes, first, weights, *shape)[0]
        outputs = torch.empty_like(packed).index_copy(0, pieces.order, packed)
        return outputs.view(length, count, self.hidden)

    def _padded(
        self, inputs: Tensor, state: Tensor, pieces: Pieces, buckets: tuple[Bucket, ...]
    ) -> Tensor:
        length, count, width = inputs.shape
        hidden, cell = _begun(state, pieces)
        flat, found, places = inputs.reshape(length * count, width), [], []
        for bucket in buckets:
            these = slice(bucket.begin, bucket.end)
            place = places_in(bucket, pieces, length, count)
            read = flat.index_select(0, place.clamp(max=length * count - 1).reshape(-1))
            begun = (hidden[:, these].contiguous(), cell[:, these].contiguous())
            outputs = self.lstm(read.view(*place.shape, width), begun)[0]
            found.append(outputs.reshape(-1, self.hidden))
            places.append(place.reshape(-1))
        together = torch.cat(found)
        outputs = together.new_empty(length * count + 1, self.hidden)
        outputs = outputs.index_copy(0, torch.cat(places), together)[:-1]
        return outputs.view(length, count, self.hidden)

    def weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of a layer: [4H, D] for what it reads, [4H, H] for its state, and two biases [4H]."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        found = [getattr(self.lstm, f"{name}_l{layer}") for name in names]
        return found[0], found[1], found[2], found[3]


def through_each(
    lstms: Sequence[Recurrent],
    inputs: Tensor,
    starts: Tensor,
    states: Sequence[Tensor],
    way: Way,
) -> tuple[Tensor, ...]:
    """Outputs of several LSTMs of one size that read the same: [L, n, H] each.

    Args:
        lstms: G of them.
        inputs: [L, n, D].
        starts: bool [L, n]: the state is zeroed before these steps.
        states: Before the first step, [n, layers, 2, H] each.
        way: "loop" goes through all together, "fused" and "auto" through one after the other.
    """
    cuts = find_cuts(starts)
    if way == "loop":
        loops = [partial(masked_loop, cut=frozenset(cuts.steps))] * lstms[0].layers
        return loop_together(lstms, inputs, starts, states, loops)
    return tuple(
        lstm(inputs, starts, state, cuts, way) for lstm, state in zip(lstms, states, strict=True)
    )


def loop_together(
    lstms: Sequence[Recurrent],
    inputs: Tensor,
    starts: Tensor,
    states: Sequence[Tensor],
    loops: Sequence[Loop],
) -> tuple[Tensor, ...]:
    """Outputs of several LSTMs of one size that read the same, in one loop over the steps.

    Args:
        lstms: G of them.
        inputs: [L, n, D].
        starts: bool [L, n]: the state is zeroed before these steps.
        states: Before the first step, [n, layers, 2, H] each.
        loops: What goes through each layer: `masked_loop`, or a `RecordedLoop` each.

    Returns:
        [L, n, H] each.
    """
    read = inputs.unsqueeze(1)
    for number, loop in zip(range(lstms[0].layers), loops, strict=True):
        each = [lstm.weights(number) for lstm in lstms]
        weight, recurrent = (torch.stack([some[part] for some in each]) for part in range(2))
        # Added before they are stacked: the gradients of both would else be views of one tensor,
        # and what is summed over ranks in place would be summed twice.
        layer = Layer(weight, recurrent, torch.stack([some[2] + some[3] for some in each]))
        hidden, cell = torch.stack([state[:, number] for state in states]).unbind(dim=2)
        read = loop(read, layer, Begun(hidden, cell, ~starts))
    return read.unbind(dim=1)


def _begun(state: Tensor, pieces: Pieces) -> tuple[Tensor, Tensor]:
    """Hidden and cell, each [layers, pieces, H], that pieces begin with."""
    hidden, cell = state.permute(2, 1, 0, 3)
    kept = pieces.carried.to(state.dtype).view(1, -1, 1)
    return hidden[:, pieces.rows] * kept, cell[:, pieces.rows] * kept

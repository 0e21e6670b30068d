"""The loop over steps of `masked_loop`, launched as two CUDA graphs: forward and backward.

On a GPU the loop is thousands of kernels of a few microseconds, and takes as long as their launches
do, not as long as they do. A graph takes the same shapes every time, so episodes may begin at any
step: nothing about them has to be known on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.graphs import Recorder
from drumline.tasks.clstm_ppo.masked_loop import Begun, Layer, masked_loop, run, run_back

Key = tuple[Any, ...]


class RecordedLoop:
    """`masked_loop` with state: what it has recorded. One forward at a time: its outputs and what
    its backward needs are overwritten by the next.

    What has one shape twice in a row is recorded; anything else goes step by step. Only one record
    is held, as it holds its memory.

    Args:
        recorder: Makes a recorder for graphs that share memory.
    """

    def __init__(self, recorder: Callable[[], Recorder]) -> None:
        self.recorder = recorder
        self._latest: Key | None = None
        self._record: _Record | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordedLoop:
        return RecordedLoop(self.recorder)  # graphs belong to one set of weights and addresses

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordedLoop, (self.recorder,)

    def __call__(self, inputs: Tensor, layer: Layer, begun: Begun) -> Tensor:
        """Outputs [L, G, n, H]; see `masked_loop`."""
        key = (inputs.shape, inputs.dtype, inputs.requires_grad, layer.recurrent.shape)
        again, self._latest = key == self._latest, key
        if self._record is not None and self._record.key != key:
            smaller = inputs.numel() < self._record.inputs.numel()
            if again or smaller:  # smaller: memory was short, so that held here is wanted back
                self._record = None
        if self._record is None and again:
            self._record = _Record(key, inputs, layer, begun, self.recorder())
        if self._record is None or self._record.key != key:
            return masked_loop(inputs, layer, begun)
        found: Tensor = _Replay.apply(self._record, inputs, *layer, *begun)  # type: ignore[no-untyped-call]
        return found


class _Record:
    """Fixed tensors, and two graphs over them."""

    def __init__(
        self, key: Key, inputs: Tensor, layer: Layer, begun: Begun, record: Recorder
    ) -> None:
        self.key, self.turn = key, 0
        self.inputs = inputs.detach().clone()
        self.layer = Layer(*(each.detach().clone() for each in layer))
        self.begun = Begun(*(each.detach().clone() for each in begun))
        cut = frozenset(range(len(inputs)))

        def forward() -> None:
            self.found = run(self.inputs, self.layer, self.begun, cut)

        def backward() -> None:
            self.gradients = run_back(
                self.outgoing, self.found, self.layer, cut, inputs.requires_grad
            )

        with torch.no_grad():
            self.forward = record(forward)
            self.outgoing = torch.zeros_like(self.found.outputs)
            self.backward = record(backward)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, record: _Record, *arguments: Tensor) -> Tensor:
        for fixed, given in zip(
            (record.inputs, *record.layer, *record.begun), arguments, strict=True
        ):
            fixed.copy_(given)
        record.turn += 1
        ctx.record, ctx.turn = record, record.turn
        record.forward()
        return record.found.outputs.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        record = ctx.record
        if ctx.turn != record.turn:
            raise RuntimeError("a recorded loop went forward again before it went backward")
        record.outgoing.copy_(gradients[0])
        record.backward()
        d_inputs, d_layer = record.gradients
        d_inputs = None if d_inputs is None else d_inputs.clone()
        return None, d_inputs, *(each.clone() for each in d_layer), None, None, None

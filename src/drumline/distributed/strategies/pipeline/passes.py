"""What a stage does with one micro-batch, between torch's receiving and sending.

The buffers that activations travel in have one size. A micro-batch with fewer samples is filled up
with zeros on its way and cut again before a stage sees it, so that no stage computes on anything
but true samples; one with none passes by the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_leaves

from drumline.errors import BadInput

ScaledLoss = Callable[[nn.Module, int], Tensor]
ONE_CALL = "With mesh.pipeline a loss function calls the model once, on all samples it is given."


@dataclass(frozen=True)
class Passes:
    """What one step sends through a pipeline; equal on all its ranks.

    Attributes:
        sizes: Samples of each micro-batch.
        layout: Shapes and dtypes of the batch but for the number of samples.
        loss: The scaled loss of a micro-batch, a scalar, from a model to call and its number.
        around: Within it a stage runs for a micro-batch (number, stage); seeds and autocasts.
            Stage None is what the loss function does besides calling the model.
    """

    sizes: Sequence[int]
    layout: Hashable
    loss: ScaledLoss
    around: Callable[[int, int | None], AbstractContextManager[None]]


@dataclass(frozen=True)
class Activation:
    """A tensor that one stage gives to the next: shape without the samples in dim 0."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def zeros(self, samples: int, device: torch.device) -> Tensor:
        """So many samples of it."""
        return torch.zeros((samples, *self.shape), dtype=self.dtype, device=device)

    def example(self, samples: int) -> Tensor:
        """For torch, which sees shape, dtype and that it has a gradient."""
        shape = (samples, *self.shape)
        return torch.empty(shape, dtype=self.dtype, device="meta", requires_grad=True)


LOSS = torch.float64
"""What the scaled loss is handed to torch in, whatever its own dtype: the buffers' dtype is fixed.
"""


class StagePass(nn.Module):
    """One stage, as torch's schedules call it.

    Args:
        stage: What the model's declaration gives.
        number: Its place.
        count: Of all stages.
        held: All stages of this rank.
        device: Where it runs.

    Attributes:
        passes: What is under way.
        gives: What the stage sends on; known once the pipeline is measured.
        samples: The most samples of a micro-batch.
        split_backward: Whether torch takes gradients of weights after those of activations. It
            then detaches in place what was sent on, which a view cannot be.
    """

    passes: Passes
    gives: tuple[Activation, ...] = ()
    samples: int = 0
    split_backward: bool = False

    def __init__(
        self,
        stage: nn.Module,
        number: int,
        count: int,
        held: Sequence[nn.Module],
        device: torch.device,
    ) -> None:
        super().__init__()
        self.stage, self.number, self.device = stage, number, device
        self.is_first, self.is_last = number == 0, number == count - 1
        self._stand_in = (_StandIn(held),)  # in a tuple, so that it is no part of this module
        self._apart = False

    def forward(self, *received: Tensor, number: Tensor) -> Tensor | tuple[Tensor, ...]:
        """What is sent on for a micro-batch; from the last stage its scaled loss.

        Args:
            received: What the stage before gives; nothing for the first.
            number: Of the micro-batch, int64 [1], on the CPU.
        """
        place = int(number)
        size = self.passes.sizes[place] if place < len(self.passes.sizes) else 0
        if not size:
            return _one_or_all(self._idle(received))
        true = tuple(t if len(t) == size else t.narrow(0, 0, size) for t in received)
        if self.is_last:
            given: tuple[Tensor, ...] = (self._loss(place, true).to(LOSS),)
        else:
            outputs = zip(self._outputs(place, true), self.gives, strict=True)
            given = tuple(self._sent(tensor, size, each) for tensor, each in outputs)
        if self._apart:
            given = _linked(given, received, self.device)
        return _one_or_all(given)

    def measure(self, received: Sequence[Activation]) -> list[Activation]:
        """What the stage gives for the first micro-batch, found by trying."""
        size = self.passes.sizes[0]
        inputs = [each.zeros(size, self.device).requires_grad_() for each in received]
        alone = self.split_backward and not self.is_first
        with _each_called_once(self.stage) if alone else nullcontext():
            outputs = self._outputs(0, tuple(inputs))
        found = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
        if not self.is_last:
            for tensor in outputs:
                self._check(tensor, size)
        bound = [tensor for tensor in found if tensor.requires_grad]
        enough = bound if self.is_last else len(bound) == len(found)
        self._apart = not (enough and _reach(bound, inputs))
        return [Activation(tuple(tensor.shape[1:]), tensor.dtype) for tensor in found]

    def _outputs(self, place: int, received: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        arguments: tuple[Any, ...] = received
        options: dict[str, Any] = {}
        if self.is_first:
            with self.passes.around(place, None):
                arguments, options = self._stand_in[0].asked(self.passes.loss, place)
        with self.passes.around(place, self.number):
            outputs = self.stage(*arguments, **options)
        return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)

    def _loss(self, place: int, received: tuple[Tensor, ...]) -> Tensor:
        def call() -> Any:
            with self.passes.around(place, self.number):
                return self.stage(*received)

        with self.passes.around(place, None):
            return self._stand_in[0].answering(call, self.passes.loss, place)

    def _sent(self, tensor: Tensor, size: int, each: Activation) -> Tensor:
        """Filled up with zeros to the size of the buffers."""
        self._check(tensor, size)
        if (tuple(tensor.shape[1:]), tensor.dtype) != (each.shape, each.dtype):
            raise BadInput(
                f"Pipeline stage {self.number} gives {tuple(tensor.shape[1:])} of {tensor.dtype} a "
                f"sample, and gave {each.shape} of {each.dtype} for a batch of the same shapes.",
                remedy="Let shapes depend on the batch's shapes only.",
            )
        missing = self.samples - size
        if missing:
            tensor = torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))])
        tensor = tensor.contiguous()
        return tensor.clone() if self.split_backward and tensor._is_view() else tensor

    def _idle(self, received: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Zeros, through which zeros go back."""
        zeros = [each.zeros(self.samples, self.device) for each in self.gives]
        if self.is_last:
            zeros = [torch.zeros((), dtype=LOSS, device=self.device)]
        return _linked(tuple(zeros), received, self.device)

    def _check(self, tensor: Any, size: int) -> None:
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dim():
            if len(tensor) == size:
                return
            what = f"a tensor of shape {tuple(tensor.shape)} for {size} samples"
        else:
            what = f"a {type(tensor).__name__}"
            what += f" of {tensor.dtype}" if isinstance(tensor, Tensor) else ""
        raise BadInput(
            f"Pipeline stage {self.number} gives {what}.",
            remedy="Let stages give floating-point tensors with the samples in dim 0.",
        )


@contextmanager
def _each_called_once(stage: nn.Module) -> Iterator[None]:
    """Refuse what torch cannot split a backward of."""
    seen: set[str] = set()

    def note(name: str) -> None:
        if name in seen:
            raise BadInput(
                f"{name} is called twice in one pipeline stage, which zero_bubble cannot do.",
                remedy="Set distributed.pipeline.schedule=1f1b.",
            )
        seen.add(name)

    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: note(name))
        for name, module in stage.named_modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Asked(BaseException):
    """What a loss function calls the model with. No Exception, so that nobody catches it."""


class _StandIn(nn.Module):
    """What a loss function is given for a model. Its parameters are those of this rank's stages."""

    def __init__(self, held: Sequence[nn.Module]) -> None:
        super().__init__()
        self.held = nn.ModuleList(held)
        self._answer: Callable[[], Any] | None = None
        self._calls = 0

    def asked(self, loss: ScaledLoss, place: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the loss function calls the model with; it comes no further than that."""
        self._answer = None
        try:
            loss(self, place)
        except _Asked as asked:
            return asked.args[0], asked.args[1]
        raise BadInput("The loss function did not call the model.", remedy=ONE_CALL)

    def answering(self, call: Callable[[], Any], loss: ScaledLoss, place: int) -> Tensor:
        """The loss, with what `call` gives for the model's answer."""
        self._answer, self._calls = call, 0
        value = loss(self, place)
        if self._calls != 1:
            raise BadInput("The loss function did not call the model.", remedy=ONE_CALL)
        return value

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """The model's answer, or none yet."""
        if self._answer is None:
            raise _Asked(arguments, options)
        self._calls += 1
        if self._calls > 1:
            raise BadInput("The loss function called the model twice.", remedy=ONE_CALL)
        return self._answer()


class _Link(torch.autograd.Function):
    """Lets a gradient, of zeros, come to what a stage received and did not use, or froze: torch
    sends one back for every tensor that was received.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, count: int, *tensors: Tensor) -> Any:
        del anchor
        ctx.received = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors[count:]]
        return tuple(tensor.clone() for tensor in tensors[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        zeros = [torch.zeros(s, dtype=d, device=device) for s, d, device in ctx.received]
        return None, None, *gradients, *zeros


def _linked(
    given: tuple[Tensor, ...], received: Sequence[Tensor], device: torch.device
) -> tuple[Tensor, ...]:
    anchor = torch.zeros((), device=device, requires_grad=True)
    linked = _Link.apply(anchor, len(given), *given, *received)  # type: ignore[no-untyped-call]
    return tuple(linked)


def _reach(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """Whether a backward from the outputs comes to every input."""
    left = {id(tensor) for tensor in inputs}
    nodes = [tensor.grad_fn for tensor in outputs]
    seen = set()
    while nodes and left:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left.discard(id(getattr(node, "variable", None)))
            nodes += [following for following, _ in node.next_functions]
    return not left


def _one_or_all(tensors: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return tensors[0] if len(tensors) == 1 else tensors

"""What the Trainer may ask of a mode. It calls this interface and never asks which mode it is.

Gradients are sums over ranks, never means: the loss was already divided by the global count, so
unequal shares and short batches are exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from drumline.config import Mode
from drumline.distributed.strategies.optimizer_state import load_state, plain_name, state_by_name
from drumline.distributed.strategies.pieces import local, piece_like
from drumline.distributed.synchronised_norm import SynchronisedBatchNorm

MakeOptimizer = Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True)
class Split:
    """How a task says its model may be cut.

    Attributes:
        units: Modules whose parameters are gathered together, in the order of the forward; each
            is called through its forward. None: found by `units.find_units`.
        tensor_plan: For tensor parallelism, as in torch's `parallelize_module`: styles by module
            name. None: the model cannot be cut so.
        stages: For a pipeline: modules of the model, or of its parts, each of which takes what the
            one before gives. None: the model cannot be cut so.
    """

    units: Sequence[nn.Module] | None = None
    tensor_plan: Mapping[str, Any] | None = None
    stages: Sequence[nn.Module] | None = None


UNCUT = Split()
"""A task that says nothing."""


class HasState(Protocol):
    """What a checkpoint's weights are written from."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors by name."""


class Strategy(ABC):
    """How one model is spread.

    Attributes:
        mode: The mode's name.
        lockstep: Whether ranks wait for each other in every forward and backward. Unless the model
            is in stages, all of them must then run the same number of those.
        overlaps: Whether the last backward of a step may reduce gradients while it runs.
        rewraps: Whether weights may change their layout in memory; see `rewrap`.
        primes: Whether a pass that sends gradients must come before the first that does not.
        stages: How many stages the model must be cut into, over all ranks. More than one: what
            `wrap` gives is a `Conveyor`, which is run and not called.
    """

    mode: ClassVar[Mode]
    lockstep: bool = False
    overlaps: bool = True
    rewraps: bool = False
    primes: bool = False
    stages: int = 1
    model: nn.Module

    def check(self, model: nn.Module, split: Split) -> None:
        """Refuse, on this rank alone and before anything is changed, what cannot work.

        Raises:
            BadInput: If the mode does not fit the model or the world.
        """
        del model, split

    def place(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """Bring a new model to where it is initialised and loaded, before it is wrapped."""
        return model.to(device, dtype)

    @abstractmethod
    def wrap(self, model: nn.Module, split: Split = UNCUT) -> nn.Module:
        """The model to call in a step. The model itself may be changed in place.

        Parameters must be equal on all ranks, except where the mode sends rank 0's.
        """

    def rewrap(self) -> nn.Module:
        """Wrap the model anew after its weights have changed their layout in memory.

        Only where `rewraps`; all ranks call it together, between steps. Gives what a step calls
        from now on.
        """
        raise NotImplementedError(f"mode {self.mode.value} fixes the layout of weights")

    def shares(self, shares: tuple[int, ...]) -> tuple[int, ...]:
        """What each rank works on, from the shares that were planned."""
        return shares

    def build_optimizer(
        self, kind: MakeOptimizer, parameters: list[nn.Parameter], options: dict[str, Any]
    ) -> torch.optim.Optimizer:
        """An optimizer over the wrapped model's parameters."""
        return kind(parameters, **options)

    @abstractmethod
    def accumulate(self) -> AbstractContextManager[None]:
        """Within it, a backward adds to the local gradients and no gradient is sent."""

    @abstractmethod
    def reduce_gradients(self) -> None:
        """Sum the local gradients over ranks, after backwards that were all accumulated.

        A rank whose share was empty takes part with zeros.
        """

    def absent(self) -> None:
        """A rank whose share is empty says so instead of a forward, where forwards of the others
        are about to exchange something.
        """

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Within it a pass only keeps step with the other ranks: no buffer is changed by it."""
        norms = [m for m in self.model.modules() if isinstance(m, SynchronisedBatchNorm)]
        theirs = {id(buffer) for norm in norms for buffer in norm.buffers()}
        kept = [(b, b.clone()) for b in self.model.buffers() if id(b) not in theirs]
        for norm in norms:
            norm.idle = True
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in kept:
                    buffer.copy_(before)
            for norm in norms:
                norm.idle = False

    def parameters(self) -> list[nn.Parameter]:
        """Parameters that are trained, in the model's order, each once."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def gradients(self) -> list[Tensor]:
        """This rank's pieces of all gradients, to be changed in place."""
        return [local(p.grad) for p in self.parameters() if p.grad is not None]

    @abstractmethod
    def gradient_norm(self) -> Tensor:
        """The L2 norm of the whole gradient, a scalar equal on all ranks."""

    @abstractmethod
    def clip(self, max_norm: float, norm: Tensor) -> None:
        """Scale gradients in place so that their norm, now `norm`, is at most `max_norm`."""

    @abstractmethod
    def first_bad_gradient(self) -> str | None:
        """Name of the first parameter whose gradient is not finite. All ranks ask together."""

    def gathered(self) -> AbstractContextManager[None]:
        """Within it every rank holds all weights, to read and to call, each at its own pace."""
        return nullcontext()

    def weights(self) -> HasState:
        """Whole weights by the names of the model as it was built, to be saved by rank 0.

        All ranks must call this together.
        """
        return self.model

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take this rank's part of whole weights, as `weights` gave them in any mode.

        Args:
            weights: By name; tensors that are shared have one of their names.
        """
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            saved = weights.get(plain_name(name))
            if saved is not None:
                local(tensor).copy_(local(piece_like(saved, tensor)))

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's whole state, keyed by parameter name, to be saved by rank 0.

        Equal in all modes and on any number of ranks. All ranks must call this together.
        """
        return state_by_name(optimizer, self.model)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Take this rank's part of what `optimizer_state` gave in any mode.

        Raises:
            CheckpointError: If it is of other parameters.
        """
        load_state(optimizer, self.model, state)

    @abstractmethod
    def teardown(self) -> None:
        """Give back what `wrap` took, if it came so far."""


class WholeModel(Strategy):
    """What modes with a whole model on every rank have in common."""

    def gradient_norm(self) -> Tensor:
        """The norm of the gradients here: they are the whole once they are reduced."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        return nn.utils.get_total_norm(gradients)

    def clip(self, max_norm: float, norm: Tensor) -> None:
        """As torch does."""
        nn.utils.clip_grads_with_norm_(self.parameters(), max_norm, norm)

    def first_bad_gradient(self) -> str | None:
        """Looked for here: every rank has the same gradients."""
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                return name
        return None

    def teardown(self) -> None:
        """Let go of the model."""
        self.__dict__.pop("model", None)

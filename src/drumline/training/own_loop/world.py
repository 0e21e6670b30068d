"""The World of a loop that stays the user's own.

The loop says what a step is; this makes the step one of all ranks: the model spread, the data cut,
gradients summed and divided by the true number of samples, one decision whether a step is taken,
means weighted by what each rank saw, and one checkpoint for all. On one device it does the same
with nobody to talk to. Decisions about *when* anything happens stay with the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from drumline.config import ClusterEnvironment, DistributedConfig, Mode, RunConfig
from drumline.distributed import Strategy, World, is_communication_failure
from drumline.distributed import open_world as open_plain_world
from drumline.errors import BadInput
from drumline.training.own_loop.loader import CutLoader, InHand, PreparedLoader
from drumline.training.own_loop.saving import LoopState, load_loop, save_loop
from drumline.training.own_loop.streams import OwnPartLoader, StreamLoader


@dataclass
class _Spread:
    """A prepared model and how it is spread."""

    model: nn.Module
    strategy: Strategy


@dataclass
class _Loop:
    """What the calls of a loop leave for each other.

    `pending` is this rank's samples whose gradients were added up here and not yet summed over
    ranks; None if there are none.
    """

    models: list[_Spread] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    loaders: list[PreparedLoader] = field(default_factory=list)
    hand: InHand = field(default_factory=InHand)
    pending: Tensor | None = None
    accumulating: bool = False
    steps: int = 0


@dataclass(frozen=True)
class OwnLoop(World):
    """A world with what a loop needs. Built by `drumline.open_world`.

    Every method must be called by all ranks in the same order, except `count` and `device_stats`.
    """

    seed: int = 0
    _loop: _Loop = field(default_factory=_Loop, repr=False, compare=False)

    @property
    def count(self) -> int:
        """This rank's true samples in the batch in hand; 0 if it is padding.

        Per-sample values cut as `values[: world.count]` never hold padding.

        Raises:
            BadInput: Outside a loop over a prepared loader, or if the batch does not say.
        """
        batch = self._loop.hand.batch
        if batch is None or batch.count is None:
            raise BadInput(
                "How many samples this is for is not known here.",
                remedy="Give count=, or call it within a loop over a prepared loader.",
            )
        return batch.count

    def prepare(self, *things: Any, own_part: bool = False) -> Any:
        """Make models, optimizers and loaders part of this world.

        A model goes to this rank's device and is spread as the config says. An optimizer follows
        the parameters of the models, which must be given before or with it. A DataLoader is cut
        among ranks: **its batch_size is that of all ranks together**.

        Args:
            things: Modules, optimizers and DataLoaders, in any order.
            own_part: The loaders (any iterables of batches) give each rank data of its own, with
                a batch size of its own; they are left as they are and only kept in step.

        Returns:
            As many things in the same order; one alone not in a tuple.

        Raises:
            BadInput: For a thing that cannot be prepared, or a loader that cannot be cut.
        """
        made: dict[int, Any] = {}
        for thing in things:
            if isinstance(thing, nn.Module):
                optimizers = [t for t in things if isinstance(t, torch.optim.Optimizer)]
                made[id(thing)] = self._spread(thing, [*self._loop.optimizers, *optimizers])
        for thing in things:
            if isinstance(thing, torch.optim.Optimizer):
                self._loop.optimizers.append(thing)
                made[id(thing)] = thing
            elif id(thing) not in made:
                made[id(thing)] = self._cut(thing, own_part)
        prepared = tuple(made[id(thing)] for thing in things)
        return prepared if len(prepared) != 1 else prepared[0]

    @contextmanager
    def accumulate(self, enabled: bool = True) -> Iterator[None]:
        """Within it, forward and backward of a micro-batch add to this rank's gradients only.

        For all micro-batches of a step but the last: the last one's `backward`, outside, sums over
        ranks and divides by the samples of all of them. Forward must be inside, too.
        """
        with ExitStack() as stack:
            if enabled:
                for spread in self._loop.models:
                    stack.enter_context(spread.strategy.accumulate())
            before, self._loop.accumulating = self._loop.accumulating, enabled
            try:
                yield
            finally:
                self._loop.accumulating = before

    def backward(self, loss: Tensor, count: float | Tensor | None = None) -> None:
        """Gradients of the mean loss over the samples of all ranks, in `.grad` on every rank.

        Args:
            loss: The *sum* over this rank's samples, or a tensor with one value a sample.
            count: This rank's samples, or whatever the loss is a sum over (tokens, say); by
                default the values in `loss`, or the samples of the batch in hand.

        Raises:
            BadInput: If the count is not known, or gradients of an earlier step are still there.
        """
        batch = self._loop.hand.batch
        padding = batch is not None and batch.padding
        if count is None:
            count = loss.numel() if loss.dim() else self.count
        own = torch.as_tensor(0 if padding else count, dtype=torch.float64, device=self.device)
        if self._loop.pending is not None:
            own = own + self._loop.pending
        else:
            self._check_fresh()
        torch.autograd.backward(loss.sum() * 0.0 if padding else loss.sum())
        if self._loop.accumulating:
            self._loop.pending = own
            return
        self._loop.pending = None
        self._divide(self.all_reduce(own.clone()).item())

    def step(self, optimizer: torch.optim.Optimizer, clip_norm: float | None = None) -> bool:
        """Take the optimizer's step if the gradient is finite on all ranks, then drop gradients.

        Args:
            optimizer: One that was prepared.
            clip_norm: Bound on the L2 norm of the gradient of the optimizer's models.

        Returns:
            Whether the step was taken, the same on all ranks.

        Raises:
            BadInput: If it was not prepared, or gradients were not summed.
        """
        if not any(optimizer is prepared for prepared in self._loop.optimizers):
            raise BadInput(
                f"{type(optimizer).__name__} was not prepared.",
                remedy="Give it to world.prepare() with its model.",
            )
        if self._loop.pending is not None:
            raise BadInput(
                "The gradients of this step were not summed over ranks.",
                remedy="Leave the last micro-batch of a step outside world.accumulate().",
            )
        spreads = [spread.strategy for spread in self._models_of(optimizer)]
        norms = [strategy.gradient_norm() for strategy in spreads]
        norm = torch.stack(norms).norm() if norms else torch.zeros((), device=self.device)
        bad = self.all_reduce((~torch.isfinite(norm)).to(torch.int32), "max")
        taken = not bool(bad.item())
        if taken:
            if clip_norm is not None:
                for strategy in spreads:
                    strategy.clip(clip_norm, norm)
            optimizer.step()
            self._loop.steps += 1
        optimizer.zero_grad(set_to_none=True)
        return taken

    def reduce(
        self, metrics: Mapping[str, float | Tensor], count: float | Tensor | None = None
    ) -> dict[str, float]:
        """Means over the samples of all ranks, from each rank's means over its own.

        Args:
            metrics: This rank's means, numbers or tensors of one element. A name may be missing
                on a rank; what it has then counts nothing.
            count: The samples they are means over; by default those of the batch in hand. With
                a padding batch in hand it counts as 0.

        Returns:
            The means by name, the same on all ranks; NaN where no rank counted anything.
        """
        batch = self._loop.hand.batch
        padding = batch is not None and batch.padding
        weight = 0.0 if padding else _number(self.count if count is None else count)
        own = {name: _number(value) for name, value in metrics.items()} if weight else {}
        ranks = self.control.gather((own, weight, list(metrics)))
        names = dict.fromkeys(name for _, _, known in ranks for name in known)
        return {
            name: _mean([(own[name], w) for own, w, _ in ranks if name in own]) for name in names
        }

    def save(self, path: str | Path, **parts: Any) -> None:
        """Write all that was prepared into the folder `path`, whole or not at all.

        Models, optimizers, where the loaders stand, and the random states of all ranks. It is in
        the format of the Trainer's checkpoints; the weights are `model.safetensors`.

        Args:
            path: The folder; one that is there is exchanged.
            parts: What else belongs to it: objects with a `state_dict` (a scheduler), or plain
                values and tensors.

        Raises:
            CheckpointError: On all ranks, if it could not be written.
        """
        save_loop(Path(path), self, self._state(), parts)

    def load(self, path: str | Path, **parts: Any) -> dict[str, Any]:
        """Take all of it back, on any number of ranks; the next pass of a loader goes on there.

        Args:
            path: The folder.
            parts: Objects with a `load_state_dict`, by the names they were saved under.

        Returns:
            The plain values that were saved.

        Raises:
            CheckpointError: On all ranks, if it is missing, damaged or does not fit.
        """
        state = self._state()
        values = load_loop(Path(path), self, state, parts)
        self._loop.steps = state.steps
        return values

    def _state(self) -> LoopState:
        loop = self._loop
        models = [spread.model for spread in loop.models]
        return LoopState(models, loop.optimizers, loop.loaders, loop.steps)

    def _spread(self, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> nn.Module:
        names = {parameter: name for name, parameter in model.named_parameters()}
        strategy = self.strategy()
        if strategy.mode not in (Mode.NONE, Mode.DISTRIBUTED):
            raise BadInput(
                f"A loop of your own has replicas of the model, not mode {strategy.mode.value}.",
                remedy="Use distributed.mode auto or distributed, or the Trainer.",
            )
        wrapped = strategy.wrap(model.to(self.device))
        self._loop.models.append(_Spread(model, strategy))
        now = dict(model.named_parameters())
        for optimizer in optimizers:
            for group in optimizer.param_groups:  # a strategy may have exchanged parameters
                group["params"] = [now[names[p]] if p in names else p for p in group["params"]]
            if optimizer.state:
                optimizer.load_state_dict(optimizer.state_dict())  # moves it to the device
        return wrapped

    def _cut(self, loader: Any, own_part: bool) -> PreparedLoader:
        kind: type[Any] = OwnPartLoader
        if not own_part:
            if not isinstance(loader, DataLoader):
                raise BadInput(
                    f"{type(loader).__name__} is not a module, an optimizer or a DataLoader.",
                    remedy="An iterable that gives each rank its own data: prepare(own_part=True).",
                )
            kind = StreamLoader if isinstance(loader.dataset, IterableDataset) else CutLoader
        prepared: PreparedLoader = kind(loader, self, self._loop.hand, self.seed)
        self._loop.loaders.append(prepared)
        return prepared

    def _models_of(self, optimizer: torch.optim.Optimizer) -> list[_Spread]:
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [s for s in self._loop.models if any(id(p) in own for p in s.model.parameters())]

    def _trained(self) -> Iterator[nn.Parameter]:
        """Parameters of the prepared models that need gradients."""
        for spread in self._loop.models:
            yield from (p for p in spread.model.parameters() if p.requires_grad)

    def _check_fresh(self) -> None:
        if any(parameter.grad is not None for parameter in self._trained()):
            raise BadInput(
                "Gradients of an earlier backward are still there, already summed over ranks.",
                remedy="End a step with world.step() or optimizer.zero_grad(); for several "
                "backwards in one step, put all but the last inside world.accumulate().",
            )

    def _divide(self, total: float) -> None:
        """Divide gradients by the samples of all ranks; drop those that no optimizer uses."""
        groups = [group for o in self._loop.optimizers for group in o.param_groups]
        used = {id(parameter) for group in groups for parameter in group["params"]}
        gradients = []
        for parameter in self._trained():
            if used and id(parameter) not in used:
                parameter.grad = None
            elif parameter.grad is not None:
                gradients.append(parameter.grad)
        if gradients:
            torch._foreach_mul_(gradients, 1.0 / total if total else 0.0)

    def _close(self) -> None:
        for spread in self._loop.models:
            spread.strategy.teardown()


@contextmanager
def open_world(
    config: RunConfig | DistributedConfig | None = None,
    environment: ClusterEnvironment | None = None,
) -> Iterator[OwnLoop]:
    """Open the world that the environment describes, for a loop of one's own.

    Works alone, under `drumline run`, torchrun, srun and mpirun. Of a `RunConfig` it takes the
    seed, the devices and how the run is spread; batch sizes and steps are the loop's.

    Raises:
        DeviceError: If there are fewer devices than ranks on this machine.
        RankFailure: If ranks lost contact, naming the one that is missing.
    """
    seed = config.seed if isinstance(config, RunConfig) else 0
    with open_plain_world(config, environment) as world:
        known = {item.name: getattr(world, item.name) for item in fields(World)}
        loop = OwnLoop(**known, seed=seed)
        try:
            yield loop
            loop.barrier("end of the loop")
        except RuntimeError as error:
            if not is_communication_failure(error):
                raise
            raise world.control.missing("collective", error) from error
        finally:
            loop._close()


def _number(value: float | Tensor) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def _mean(pairs: list[tuple[float, float]]) -> float:
    whole = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / whole if whole else float("nan")

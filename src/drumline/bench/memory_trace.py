"""Traces the memory of real optimizer steps without a GPU: `python -m drumline.bench.memory_trace`.

The real task's model, loss, optimizer and step run under fake tensors, which have shapes and no
values, while every allocation is written down. Reads requests on stdin, a line of JSON each, and
answers each with a `MemoryTrace` and the sources that it comes from. Left out, and said so:
initialisation from data, evaluation, checkpoints.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.tensor import DTensor

from drumline.bench.allocation_recorder import AllocationRecorder
from drumline.bench.cuda_graphs import cuda_graphs
from drumline.bench.cuda_operators import cuda_operators
from drumline.bench.fake_model import give_fake_weights, see_model
from drumline.bench.sample_batch import enlarged, sample
from drumline.bench.sources import loaded_sources
from drumline.bench.traced_world import group_of_nobody, traced_strategy, traced_world
from drumline.config import Mode, RunConfig
from drumline.config.load import parse_config
from drumline.config.section import import_object
from drumline.distributed import Split, Strategy, local
from drumline.distributed.kind import standing_for_gpu
from drumline.errors import BadInput, DrumlineError
from drumline.events import EventLog
from drumline.planning.memory_trace import MemoryTrace
from drumline.planning.plan import shares_among, spread
from drumline.training.optimizer import build_optimizer
from drumline.training.own_model import LossFunction, OwnModelTask
from drumline.training.precision import Arithmetic
from drumline.training.source import Cursor, MapDataset, ShareOfStep, Source, StepBatch
from drumline.training.step import CAREFUL_STEPS, StandardStep, StepParts
from drumline.training.task import Setup, Task

ESTIMATED_MODES = (Mode.AUTO, Mode.NONE, Mode.DISTRIBUTED, Mode.SHARDED, Mode.HYBRID)
CUTTING = (Mode.SHARDED, Mode.HYBRID)
UNTRACED = ("initialisation from the data, evaluation and checkpoints are not traced",)
CONVOLUTIONS = "convolution workspaces: cuDNN chooses them on the card"


MICRO_BATCHES = 4
"""Full micro-batches traced in a step, besides a last short one; more repeat what these did."""

RISING_STEPS, RISE = 2, 0.03
"""Steps more that are traced where something is selected, and by how much more in each."""


def trace_task(
    task: Task,
    config: RunConfig,
    *,
    world_size: int = 1,
    micro_batch: int | None = None,
    selected: float | Sequence[float] = 0.0,
    on_gpu: bool = True,
) -> MemoryTrace:
    """Trace the steps of one rank of a run, the one with the largest share.

    Args:
        task: What is trained; it is used up.
        config: The run. Its devices do not matter.
        world_size: Ranks; with more than one, the memory of DDP or FSDP2 is counted.
        micro_batch: Samples one forward holds; by default the config's, else the share.
        selected: Part of the elements that masks and `nonzero` are taken to select: in each step,
            or one that is reached in the last. A size that changes from step to step leaves
            blocks behind that do not fit the next one.
        on_gpu: Whether it does what it does on a GPU (recording CUDA graphs, say), where it asks.

    Raises:
        BadInput: If the task does something that needs values.
    """
    share = max(spread(config, shares_among(config, world_size)))
    micro_batch = min(micro_batch or config.micro_batch or share, share)
    steps = CAREFUL_STEPS + (2 if world_size > 1 else 0)  # one summed backward, one after it
    parts = _by_step(selected, steps)
    recorder = AllocationRecorder(selected=parts[0])
    cut = config.distributed.mode in CUTTING
    with (
        tempfile.TemporaryDirectory() as folder,
        _event_log(folder) as events,
        group_of_nobody(world_size) if cut else nullcontext(),
        standing_for_gpu() if on_gpu else nullcontext(),
        cuda_graphs(recorder),
    ):
        setup = Setup(config, traced_world(config, world_size), events)
        try:
            _run(task, setup, recorder, (share, micro_batch, parts))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise _untraceable(error) from error
    return MemoryTrace(
        micro_batch=micro_batch,
        share=share,
        world_size=world_size,
        steps=len(parts),
        sizes=tuple(recorder.sizes),
        categories=tuple(recorder.categories),
        workspaces=recorder.workspaces,
        events=tuple(recorder.events),
        selections=tuple(sorted(recorder.selections)),
        streams=recorder.streams,
        held=tuple(recorder.held),
        selected=max(parts),
        untraced=(*UNTRACED, *((CONVOLUTIONS,) if recorder.convolutions else ())),
    )


def trace_own_model(
    model: Callable[[], nn.Module],
    data: MapDataset,
    loss: LossFunction,
    config: RunConfig,
    **options: Any,
) -> MemoryTrace:
    """As `trace_task`, for a model builder, a data set and a loss; see `OwnModelTask`."""
    return trace_task(OwnModelTask(model, data, loss), config, **options)


def _by_step(selected: float | Sequence[float], steps: int) -> list[float]:
    """The part that is selected in each step, at least `steps` of them."""
    if not isinstance(selected, float | int):
        return [*selected, *[selected[-1]] * (steps - len(selected))]
    if selected == 0:
        return [0.0] * steps
    count = steps + RISING_STEPS
    return [selected * (1 - RISE * (count - 1 - step)) for step in range(count)]


@contextmanager
def _event_log(folder: str) -> Iterator[EventLog]:
    """An event log that nobody reads."""
    events = EventLog(Path(folder) / "events.jsonl")
    try:
        yield events
    finally:
        events.close()


def _run(
    task: Task, setup: Setup, recorder: AllocationRecorder, sizes: tuple[int, int, list[float]]
) -> None:
    config, world = setup.config, setup.world
    share, micro_batch, selected = sizes
    most = MICRO_BATCHES * micro_batch + share % micro_batch
    arithmetic = Arithmetic(config.precision, world.device)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    task.setup(setup)
    with fake, AllocationRecorder(kernels=False):
        torch.manual_seed(config.seed)
        model = task.build_model()
        give_fake_weights(model, arithmetic.weights, fake)
    source = task.build_source()
    read = None if type(source).shapes is not Source.shapes else sample(source)
    strategy = traced_strategy(config, world, recorder, arithmetic.autocast_dtype)
    with fake, cuda_operators(), _wrapping(strategy, model, task, recorder) as wrapped:
        optimizer = build_optimizer(config.optimizer, model, strategy.build_optimizer)
        parts = StepParts(
            task=task,
            model=model,
            wrapped=wrapped,
            optimizer=optimizer,
            strategy=strategy,
            world=world,
            arithmetic=arithmetic,
            scaler=arithmetic.scaler(),
            events=setup.events,
            seed=config.seed,
            micro_batch=micro_batch,
            clip_norm=config.clip_norm,
        )
        step = task.build_step(parts) or _AgreeingStep(parts)
        _watch(optimizer, model, recorder)
        batches = (
            _on_device(source, setup)
            if read is None
            else _from_host(read, share, (min(share, most),) * world.data_size)
        )
        for index, part in enumerate(selected):
            recorder.selected = part
            delivered = recorder.recording("batches") if read is not None else nullcontext()
            with recorder.within("batch"), delivered:  # copies are made in a stream of their own
                batch = _next(batches, recorder)
            step.take(batch, index)
            del batch
        recorder.stop()
        strategy.teardown()


class _AgreeingStep(StandardStep):
    """A step whose ranks find all losses and gradients finite: without values none can know."""

    def _agree(self, *_: Any, **__: Any) -> tuple[float, float, bool]:
        """Mean loss, gradient norm, and whether all was finite."""
        return 1.0, 1.0, True


@contextmanager
def _wrapping(
    strategy: Strategy, model: nn.Module, task: Task, recorder: AllocationRecorder
) -> Iterator[nn.Module]:
    """The wrapped model, and the recorder at work. What is cut before it goes to the device is
    only seen once it is cut.
    """
    split = Split(task.shard_units(model), task.tensor_plan(model))
    wrapped = strategy.wrap(model, split) if strategy.mode in CUTTING else None
    with recorder:
        see_model(recorder, model, task)
        yield wrapped or strategy.wrap(model, split)


def _watch(
    optimizer: torch.optim.Optimizer, model: nn.Module, recorder: AllocationRecorder
) -> None:
    """Tell gradients and the optimizer's state from what passes."""

    def gradient_made(parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            recorder.label([local(parameter.grad)], "gradients", only="temporaries")

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(gradient_made)  # type: ignore[no-untyped-call]

    def before(*_: Any) -> None:
        if any(isinstance(p, DTensor) for p in model.parameters()):  # FSDP2 sets them itself
            pieces = (local(p.grad) for p in model.parameters() if p.grad is not None)
            recorder.label(pieces, "gradients")
        recorder.category = "temporaries"

    def after(*_: Any) -> None:
        recorder.category = "activations"
        recorder.label(_state(optimizer), "optimizer")

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def _on_device(source: Source, setup: Setup) -> Iterator[StepBatch]:
    """Batches of a source that works on the device itself."""
    config, ranks = setup.config, setup.world.data_size
    granularity = config.task.granularity if config.task else 1
    share = ShareOfStep(0, spread(config, ranks), config.global_batch, granularity)
    found = source.shapes(share)
    assert found is not None
    return found


def _from_host(read: tuple[Any, int], share: int, counts: tuple[int, ...]) -> Iterator[StepBatch]:
    """Batches of `share` samples that come to the device as they were put together on the host."""
    while True:
        yield StepBatch(enlarged(*read, share), counts[0], sum(counts), counts, 0, Cursor(), 0)


def _next(batches: Iterator[StepBatch], recorder: AllocationRecorder) -> StepBatch:
    """One batch. What is asked while one is made (whether an episode has ended, say) is answered
    with yes: on a GPU nobody looks, and all of it is done.
    """
    recorder.truth = True
    try:
        return next(batches)
    finally:
        recorder.truth = False


def _state(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        yield from (local(value) for value in state.values() if isinstance(value, Tensor))


def _untraceable(error: Exception) -> BadInput:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return BadInput(
        f"The training step cannot be traced without values: {first}",
        remedy="Its memory is only known by running it; start with a small micro_batch.",
    )


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The trace of a config's task, or the error that kept it from being made."""
    try:
        config = parse_config(request["config"])
        if config.task is None:
            raise BadInput(
                "The config names no task, so there is nothing to trace.",
                remedy="Set task.name, or call trace_own_model from the script.",
            )
        pipeline = config.distributed.pipeline_size > 1
        if pipeline or config.distributed.mode not in ESTIMATED_MODES:
            what = "with mesh.pipeline" if pipeline else f"in mode {config.distributed.mode.value}"
            raise BadInput(
                f"Memory is not estimated {what}.",
                remedy="Start with a small micro_batch.",
            )
        task: Task = import_object(config.task.implementation)()
        return {"trace": trace_task(task, config, **request["options"]).as_dict()}
    except DrumlineError as error:
        return {"error": error.as_dict(), "bad_input": isinstance(error, BadInput)}


def main() -> None:
    """Answer the requests on stdin, a line of JSON each, with a line each on stdout."""
    with redirect_stdout(sys.stderr):  # what libraries print must not stand among answers
        for line in sys.stdin:
            found = {**answer(json.loads(line)), "sources": loaded_sources()}
            print(json.dumps(found), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()

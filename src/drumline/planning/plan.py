"""From a config and a machine to a Plan: every decision, each with its reason, before a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from drumline.config import Mode, RunConfig
from drumline.errors import BadInput
from drumline.hardware import Machine
from drumline.planning.availability import gib
from drumline.planning.cost_model import Candidate, choose, predict
from drumline.planning.cut_cost import cutting_of, predict_cut
from drumline.planning.devices import PlannedDevice, choose_devices
from drumline.planning.memory_fit import (
    KindMemory,
    MemoryQuestions,
    Needed,
    kinds,
    needed_memory,
    within,
)
from drumline.planning.shares import (
    PASSES_PER_STAGE,
    cut_micro_batches,
    cut_shares,
    pipeline_bubble,
)
from drumline.planning.speed import Speed


@dataclass(frozen=True)
class Plan:
    """Every decision made before a run.

    Attributes:
        mode: How the model is spread; never `auto`.
        backend: Data plane: "nccl", "gloo", or "none" for one process.
        devices: One for each rank, in rank order.
        global_batch: Samples of a step over all ranks.
        shares: Samples of a full step for each rank; they sum to `global_batch`.
        micro_batch: The most samples one forward holds on any rank.
        reasons: Why each automatic choice was made, in words.
        candidates: Ways to spread the run with their predicted step times, where a speed is known.
        memory: What the run needs on each kind of device that is there, those of the plan first;
            empty where it was not estimated.
    """

    mode: Mode
    backend: str
    devices: tuple[PlannedDevice, ...]
    global_batch: int
    shares: tuple[int, ...]
    micro_batch: int
    reasons: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    memory: tuple[KindMemory, ...] = ()

    @property
    def world_size(self) -> int:
        """Number of ranks: one for each device, but in mode dataparallel one for all."""
        return 1 if self.mode is Mode.DATAPARALLEL else len(self.devices)

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data, for plan.json."""
        plain = asdict(replace(self, memory=()))
        memory = [kind.as_dict() for kind in self.memory]
        named = {"mode": self.mode.value, "world_size": self.world_size, "memory": memory}
        return plain | named


def plan(
    config: RunConfig,
    machine: Machine,
    occupied: Collection[str] = (),
    speed: Speed | None = None,
    memory: MemoryQuestions | None = None,
) -> Plan:
    """Decide everything that is decided before a run.

    Args:
        config: A checked config.
        machine: What is there.
        occupied: UUIDs of devices that somebody else holds.
        speed: What such a device can do. With it mode `auto`, and with devices `auto` their
            number, go by predicted step time; without it, or where it has gaps, by the number of
            devices.
        memory: Estimates of what the config needs. With them only devices are taken that hold it.

    Raises:
        DeviceError: If the devices asked for are not there, not free or too small.
        BadInput: If the config cannot be spread over them.
    """
    granularity = config.task.granularity if config.task else 1
    most = _most_devices(config, granularity)
    needed = None if memory is None else needed_memory(config, machine, occupied, most, memory)
    devices, reasons = choose_devices(
        config.devices, machine, occupied, most, None if needed is None else needed.each
    )
    size = shares_among(config, len(devices))
    fixed = config.distributed.fixed_shares
    if fixed is not None and len(fixed) != size:
        raise BadInput(
            f"distributed.shares has {len(fixed)} entries for {size} devices.",
            remedy="Give one share for each device.",
        )
    mode, why = _choose_mode(config.distributed.mode, size, () if speed is None else speed.gaps)
    shares = spread(config, size)
    candidates = () if speed is None else compare(config, size, speed)
    if memory is not None and config.distributed.mode is not Mode.HYBRID:  # a mesh has one size
        candidates = tuple(within(each, machine, devices, memory) for each in candidates)
    if needed is not None and needed.too_large is not None:
        mode, why = Mode.SHARDED, _why_sharded(needed, size)
        candidates = tuple(
            replace(each, note="chosen: a replica fits no device") if each.mode == mode else each
            for each in candidates
        )
    elif speed is not None and not speed.gaps and config.distributed.mode is Mode.AUTO:
        best, why = choose(candidates)
        mode, shares, devices = Mode(best.mode), best.shares, devices[: best.devices]
    return Plan(
        mode=mode,
        backend=_choose_backend(config, devices),
        devices=tuple(devices),
        global_batch=config.global_batch,
        shares=shares,
        micro_batch=micro_batch_of(config, shares, config.distributed.pipeline_size),
        reasons=(
            *reasons,
            why,
            *_about_shares(config, len(shares)),
            *_pipeline_reason(config, shares),
        ),
        candidates=candidates,
        memory=() if needed is None else kinds(machine, devices, needed.questions),
    )


def compare(config: RunConfig, size: int, speed: Speed) -> tuple[Candidate, ...]:
    """Every way to spread a run over at most `size` devices, with its predicted step time.

    Fewer devices are candidates only where the config leaves their number open.
    """
    is_open = config.devices.strip() == "auto" and config.distributed.fixed_shares is None
    counts = sorted({1, *(2**power for power in range(size.bit_length())), size})
    found = []
    for count in counts:
        shares = spread(config, count) if count == size else _equal_shares(config, count)
        mode = Mode.NONE if count == 1 else Mode.DISTRIBUTED
        candidate = predict(speed, mode.value, shares, micro_batch_of(config, shares))
        if count != size and not is_open:
            asked = f"{size} devices were asked for"
            candidate = replace(candidate, selectable=False, note=asked)
        found.append(candidate)
    if size > 1:
        shares = found[-1].shares
        found.append(predict(speed, "dataparallel", shares, micro_batch_of(config, shares)))
    return (*found, *_cut_candidates(config, size, speed))


def predict_mode(config: RunConfig, mode: Mode, size: int, speed: Speed) -> Candidate:
    """The step time of a mode with equal shares, or the config's own.

    Raises:
        BadInput: If the shares or the mesh do not fit so many ranks.
    """
    shares = spread(config, size)
    micro_batch = micro_batch_of(config, shares)
    if mode not in (Mode.SHARDED, Mode.HYBRID):
        return predict(speed, mode.value, shares, micro_batch)
    cutting = cutting_of(config, mode, size)
    if cutting is None:
        note = "step time not predicted with a tensor or pipeline axis"
        return Candidate(mode.value, size, selectable=False, note=note)
    return predict_cut(speed, mode, shares, micro_batch, cutting)


def _cut_candidates(config: RunConfig, size: int, speed: Speed) -> list[Candidate]:
    """Mode sharded, and the config's own mesh; `auto` takes neither for its speed."""
    asked, note = config.distributed.mode, "taken by auto where a replica fits no device"
    found = []
    for mode in (Mode.SHARDED, Mode.HYBRID):
        if mode is Mode.HYBRID and asked is not mode:
            mesh = "name a mesh to use it"
            found.append(Candidate(mode.value, size, selectable=False, note=mesh))
        elif size > 1 or asked is mode:
            made = predict_mode(config, mode, size, speed)
            said = made.note if asked is mode else "; ".join(filter(None, (note, made.note)))
            found.append(replace(made, selectable=False, note=said))
    return found


def _why_sharded(needed: Needed, size: int) -> str:
    assert needed.too_large is not None and needed.each is not None
    return (
        f"mode sharded: a replica fits no device, even one sample at a time "
        f"({needed.too_large.message.rstrip('.')}); cut among {size}, a rank needs "
        f"{gib(needed.each)}"
    )


def micro_batch_of(config: RunConfig, shares: Sequence[int], pipeline: int = 1) -> int:
    """The most samples that one forward holds on any rank with these shares.

    Args:
        config: If it has no `micro_batch`, a forward holds a whole share; in a pipeline, which
            works on several micro-batches at once, a part of one.
        shares: Samples of each data rank.
        pipeline: Ranks along the pipeline axis.
    """
    granularity = config.task.granularity if config.task else 1
    most = max(shares)
    default = most if pipeline == 1 else -(-most // (PASSES_PER_STAGE * pipeline))
    return max(min(config.micro_batch or default, most), min(granularity, most))


def spread(config: RunConfig, world_size: int) -> tuple[int, ...]:
    """The shares of a full step on `world_size` ranks.

    Raises:
        BadInput: If some rank would get nothing, with the nearest numbers that work.
    """
    granularity = config.task.granularity if config.task else 1
    fixed = config.distributed.fixed_shares
    shares = cut_shares(config.global_batch, fixed or (1,) * world_size, granularity)
    if 0 in shares and fixed is None:
        groups = config.global_batch // granularity
        in_groups = f" in groups of {granularity}" if granularity > 1 else ""
        raise BadInput(
            f"global_batch {config.global_batch}{in_groups} cannot be shared by {world_size} "
            f"devices: only {max(groups, 1)} would have work.",
            remedy=f"Use at most {max(groups, 1)} devices, or global_batch="
            f"{world_size * granularity} or more.",
        )
    if fixed is not None and list(shares) != fixed:
        raise BadInput(
            f"distributed.shares {fixed} are not whole groups of {granularity} samples, as the "
            "task needs.",
            remedy=f"The nearest that fit are {list(shares)}.",
        )
    return shares


def _about_shares(config: RunConfig, ranks: int) -> Sequence[str]:
    if config.distributed.shares != "measured" or ranks < 2:
        return ()
    return ("shares: equal to begin with, then in proportion to the speeds that ranks measure",)


def _equal_shares(config: RunConfig, count: int) -> tuple[int, ...]:
    granularity = config.task.granularity if config.task else 1
    return cut_shares(config.global_batch, (1,) * count, granularity)


def shares_among(config: RunConfig, devices: int) -> int:
    """Number of shares a step is cut into: fewer than devices where some work on the same."""
    mode = config.distributed.mode
    if mode is Mode.DATAPARALLEL:
        return 1
    if mode is Mode.HYBRID:
        shape = config.distributed.mesh.shape(devices)
        return shape.data * shape.shard
    return devices


def _most_devices(config: RunConfig, granularity: int) -> int:
    """More than this many devices would have no work, or are not what the config is made for."""
    if config.distributed.mode is Mode.NONE:
        return 1
    tensor = config.distributed.mesh.tensor if config.distributed.mode is Mode.HYBRID else 1
    together = max(1, tensor) * config.distributed.pipeline_size
    if config.distributed.fixed_shares is not None:
        return len(config.distributed.fixed_shares) * together
    return max(1, config.global_batch // granularity) * together


def _pipeline_reason(config: RunConfig, shares: Sequence[int]) -> tuple[str, ...]:
    """How long ranks of a pipeline wait, with the arithmetic."""
    ranks, options = config.distributed.pipeline_size, config.distributed.pipeline
    if ranks == 1:
        return ()
    granularity = config.task.granularity if config.task else 1
    size = micro_batch_of(config, shares, ranks)
    passes = len(cut_micro_batches(max(shares), size, granularity))
    waits = pipeline_bubble(ranks, passes, options.stages)
    work = f"{options.stages} x {passes}" if options.stages > 1 else f"{passes}"
    arithmetic = f"{ranks - 1} / ({work} + {ranks - 1}) = {waits:.0%}"
    at_most = "at most " if options.schedule == "zero_bubble" else ""
    return (
        f"pipeline of {ranks} ranks, {options.schedule}: {passes} micro-batches of {size} samples, "
        f"so with equal stages a rank waits {at_most}{arithmetic} of a step",
    )


def _choose_mode(mode: Mode, size: int, gaps: Sequence[str]) -> tuple[Mode, str]:
    if mode is Mode.NONE and size > 1:
        raise BadInput(
            f"distributed.mode none is for one device, and {size} were chosen.",
            remedy="Use mode auto or distributed, or devices=1.",
        )
    if mode is Mode.AUTO and size == 1:
        return Mode.NONE, "mode none: there is one device"
    if mode is Mode.AUTO:
        unknown = ", ".join(gaps) or "their speed"
        return Mode.DISTRIBUTED, (
            f"mode distributed: the model is replicated on {size} devices; by their number, for "
            f"it is not known: {unknown}"
        )
    return mode, f"mode {mode.value}: as the config says"


def _choose_backend(config: RunConfig, devices: list[PlannedDevice]) -> str:
    mode = config.distributed.mode
    if mode is Mode.DATAPARALLEL or (len(devices) == 1 and not mode.needs_group):
        return "none"
    backend = config.distributed.backend
    on_gpus = devices[0].kind != "cpu"  # torch calls AMD's RCCL nccl, too
    if backend == "auto":
        return "nccl" if on_gpus else "gloo"
    if backend == "nccl" and not on_gpus:
        raise BadInput(
            "distributed.backend nccl needs GPUs, and the devices chosen are CPU processes.",
            remedy="Use backend auto or gloo.",
        )
    return backend

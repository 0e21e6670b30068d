"""Predicted step time where parameters are cut among ranks: modes `sharded` and `hybrid`.

FSDP2 puts each unit's weights together before its forward, and again before its backward, on a
stream beside the computing: while one unit computes, the next one's weights come. Its gradients are
summed and cut after its backward, while the next unit's is under way. All of it goes over one link,
one after the other. So what is not hidden is the first unit's weights, whatever a unit computes for
too short a time to hide, and the last unit's gradients (Zhao et al. 2023, arXiv 2304.11277). On the
CPU nothing is hidden.

Gathering or cutting n bytes on w ranks takes latency + (w - 1) / w n / bus bandwidth, half of an
all-reduce. Replicas of shards (HSDP) then sum their pieces: n / w bytes each.

Left out: what copying in and out of the buffers takes, and what communication takes from kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drumline.config import Mode, Precision, RunConfig
from drumline.planning.cost_model import Candidate, all_reduce_s, control, reading, waited_for
from drumline.planning.profile import AllReduce
from drumline.planning.profiled_speed import BACKWARD
from drumline.planning.quantities import data, data_rate, span
from drumline.planning.speed import Part, Speed
from drumline.planning.workload import Exchange

NORM_BYTES = 8
"""The gradient norm is a sum over the ranks' pieces, in float64."""

_BYTES = {Precision.FP64: 8, Precision.FP32: 4, Precision.TF32: 4}
_HALF = 2


@dataclass(frozen=True)
class Cutting:
    """How parameters are cut, and what is sent of them.

    Attributes:
        shards: Ranks that share out one replica.
        replicas: Of those groups.
        reshards: Whether gathered weights are freed between forward and backward.
        gathered: Bytes sent for each byte of weights.
        reduced: Bytes sent for each byte of gradients.
    """

    shards: int
    replicas: int = 1
    reshards: bool = True
    gathered: float = 1.0
    reduced: float = 1.0


def cutting_of(config: RunConfig, mode: Mode, ranks: int) -> Cutting | None:
    """How a config cuts parameters among so many ranks; None where layers or stages are split,
    whose messages are activations, which no trace counts.

    Raises:
        BadInput: If its mesh does not fit them.
    """
    shards, replicas = ranks, 1
    if mode is Mode.HYBRID:
        mesh = config.distributed.mesh
        if mesh.tensor != 1 or mesh.pipeline != 1:
            return None
        shape = mesh.shape(ranks)
        shards, replicas = shape.shard, shape.data
    options = config.distributed.sharded
    whole = _BYTES.get(config.precision, 4)
    narrow = options.gather_dtype == "precision" and config.precision not in _BYTES
    return Cutting(
        shards,
        replicas,
        options.reshard_after_forward and shards > 1,
        _HALF / whole if narrow else 1.0,
        _HALF / whole if options.reduce_dtype == "bf16" else 1.0,
    )


def predict_cut(
    speed: Speed, mode: Mode, shares: Sequence[int], micro_batch: int, cutting: Cutting
) -> Candidate:
    """The step time with these shares, one for each rank."""
    size, share = len(shares), max(shares)
    passes = max(1, -(-share // max(1, micro_batch)))
    work = speed.work(mode.value, share, micro_batch, size, 1 / cutting.shards)
    (link, note), (outer, other) = speed.links(cutting.shards), speed.links(cutting.replicas)
    if size == 1 or (link or outer) is None:
        sent = Part("weights and gradients", 0.0, "nothing is sent" if size == 1 else note)
    else:
        sent = _sent(speed, (link, outer), cutting, work.seconds / passes, passes)
    norm = Exchange((), (*speed.exchange.blocking_bytes, NORM_BYTES))
    waited = waited_for(norm, speed.links(size)[0] if size > 1 else None, size)
    step = (*work.parts, sent, waited, *reading(work, sent.seconds + waited.seconds))
    parts = (*step, *control(speed, size, sum(part.seconds for part in step)))
    notes = dict.fromkeys(text for text in (note, other) if text and size > 1)
    total = sum(part.seconds for part in parts)
    return Candidate(mode.value, size, tuple(shares), total, parts, note="; ".join(notes))


def _sent(
    speed: Speed,
    links: tuple[AllReduce | None, AllReduce | None],
    cutting: Cutting,
    pass_s: float,
    passes: int,
) -> Part:
    """Weights and gradients, as far as computing does not hide them."""
    units = speed.exchange.units
    gathers = [_half_ring_s(links[0], cutting.shards, size * cutting.gathered) for size in units]
    scatters = [_summed_s(links, cutting, size * cutting.reduced) for size in units]
    times = 2 if cutting.reshards else 1
    # The last unit is what belongs to the whole model, and stays between forward and backward.
    again = [*gathers[:-1], 0.0] if cutting.reshards else [0.0] * len(units)
    wire = passes * (sum(gathers) + sum(again)) + sum(scatters)
    if speed.overlaps:
        none, total = [0.0] * len(units), sum(units)
        parts = [pass_s * size / total if total else 0.0 for size in units]
        forward = [(1 - BACKWARD) * part for part in parts]
        backward = [BACKWARD * part for part in parts]
        ahead = forward_s(gathers, forward)
        back = (passes - 1) * backward_s(again, backward, none)
        back += backward_s(again, backward, scatters)
        exposed = max(0.0, passes * ahead + back - passes * pass_s)
    else:
        exposed = wire
    return Part(
        "weights and gradients", exposed, _line(links, cutting, units, times, wire, exposed)
    )


def forward_s(gathers: Sequence[float], compute: Sequence[float]) -> float:
    """Time of a forward whose units' weights come one after the other, one unit ahead.

    Args:
        gathers: How long each unit's weights take; those of the whole model last, needed first.
        compute: How long each computes.
    """
    order = [len(gathers) - 1, *range(len(gathers) - 1)]
    wire = done = done_before = 0.0
    for unit in order:
        wire = max(wire, done_before) + gathers[unit]
        done_before, done = done, max(done, wire) + compute[unit]
    return done


def backward_s(
    gathers: Sequence[float], compute: Sequence[float], scatters: Sequence[float]
) -> float:
    """Time of a backward, from the last unit to the first and then what is in none: the next
    unit's weights come while one computes, and its gradients go out after that.
    """
    order = [*reversed(range(len(gathers) - 1)), len(gathers) - 1]
    wire = there = gathers[order[0]]
    done = 0.0
    for place, unit in enumerate(order):
        start, mine = max(done, there), unit
        if place + 1 < len(order):
            wire = max(wire, start) + gathers[order[place + 1]]
            there = wire
        done = start + compute[mine]
        wire = max(wire, done) + scatters[mine] if scatters[mine] else wire
    return max(done, wire)


def _half_ring_s(link: AllReduce | None, ranks: int, size: float) -> float:
    """Gathering, or summing and cutting, `size` bytes in all."""
    if ranks == 1 or link is None or not size:
        return 0.0
    return (link.latency_s or 0.0) + (ranks - 1) / ranks * size / link.bus_bytes_per_s


def _summed_s(
    links: tuple[AllReduce | None, AllReduce | None], cutting: Cutting, size: float
) -> float:
    """A unit's gradients: summed and cut among shards, then each piece summed over replicas."""
    within = _half_ring_s(links[0], cutting.shards, size)
    outer = links[1]
    if cutting.replicas == 1 or outer is None or not size:
        return within
    return within + all_reduce_s(outer, cutting.replicas, [int(size / cutting.shards)])


def _line(
    links: tuple[AllReduce | None, AllReduce | None],
    cutting: Cutting,
    units: Sequence[int],
    times: int,
    wire: float,
    exposed: float,
) -> str:
    total, shards, replicas = sum(units), cutting.shards, cutting.replicas
    said = []
    if shards > 1 and links[0] is not None:
        said.append(
            f"{len(units)} units of {data(total)} in all, gathered {times} × a micro-batch and cut "
            f"once among {shards}: each {shards - 1}/{shards} × "
            f"{data(cutting.gathered * total)} / {data_rate(links[0].bus_bytes_per_s)}"
        )
    if replicas > 1 and links[1] is not None:
        piece = data(cutting.reduced * total / shards)
        rate = data_rate(links[1].bus_bytes_per_s)
        said.append(f"pieces of {piece} summed over {replicas} replicas at {rate}")
    return f"{'; '.join(said)}: {span(wire)} on the wire, of which {span(exposed)} not hidden"

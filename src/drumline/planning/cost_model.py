"""Predicted step time of each way to spread a run, so that the fastest can be chosen.

The time of a step is the work of the rank with the largest share, plus what it waits for:

- Gradients. All-reduce of n bytes on w ranks takes latency + 2 (w - 1) / w n / bus bandwidth
  (Patarasuk and Yuan 2009). DDP sends a bucket once its last gradient is there, one bucket after
  the other, while the backward goes on; only what is sent after the backward's end costs time, at
  the least the last bucket (Li et al. 2020, arXiv 2006.15704). On the CPU nothing is hidden.
- Small sums that a step waits for, each a latency more.
- Reading samples, which runs beside all of that as far as it did when it was timed: a step takes
  the longer of the two, so that exchanges are free where devices wait for samples anyway.
- The control plane: a vote beside the step costs what is longer than the step; metrics are
  gathered every so many steps.
- What communication takes from the kernels it runs beside, and ranks that wait for each other
  because no two steps take the same time: known only where a calibration took real steps on
  several devices, as what those took beyond all of the above. Left out otherwise, so that real
  steps are slower than predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drumline.planning.profile import AllReduce
from drumline.planning.quantities import data, data_rate, span
from drumline.planning.speed import Part, Speed, Work
from drumline.planning.workload import Exchange

WORTH = 0.05
"""More devices are taken only where they save at least this part of the time: the accuracy that
the model aims at.
"""

ROUNDING = 1e-9
"""Below this part of a step a difference is that of floating-point sums."""


@dataclass(frozen=True)
class Candidate:
    """One way to spread a run.

    Attributes:
        mode: How the model is spread.
        devices: How many are used.
        shares: Samples of each.
        step_s: Predicted time of a step; None where there is no prediction.
        parts: What the time is made of, each with its arithmetic.
        selectable: Whether `auto` may choose it.
        note: Why not, or what the prediction lacks.
    """

    mode: str
    devices: int
    shares: tuple[int, ...] = ()
    step_s: float | None = None
    parts: tuple[Part, ...] = ()
    selectable: bool = True
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The candidate as plain data."""
        return asdict(self)


def predict(speed: Speed, mode: str, shares: Sequence[int], micro_batch: int) -> Candidate:
    """The step time of mode `none`, `distributed` or `dataparallel` with these shares."""
    size = len(shares)
    work = speed.work(mode, max(shares), micro_batch, size)
    if size == 1:
        parts = (*work.parts, *reading(work, 0.0))
        return Candidate(mode, 1, tuple(shares), _sum(parts), parts)
    link, note = speed.links(size)
    if mode == "dataparallel":
        weights = _scatter_gather(speed.exchange, link, size)
        parts = (*work.parts, weights, *reading(work, weights.seconds))
        return Candidate(
            mode, size, tuple(shares), _sum(parts), parts, False, "offered, never chosen by auto"
        )
    sent = _gradients(speed, link, size, work.remaining_s)
    waited = waited_for(speed.exchange, link, size)
    step = (*work.parts, sent, waited, *reading(work, sent.seconds + waited.seconds))
    parts = (*step, *control(speed, size, _sum(step)), *speed.together(size))
    return Candidate(mode, size, tuple(shares), _sum(parts), parts, note=note)


def choose(candidates: Sequence[Candidate]) -> tuple[Candidate, str]:
    """The winner and why it won: the fastest, or fewer devices if they are nearly as fast.

    Raises:
        ValueError: If none can be chosen.
    """
    able = [c for c in candidates if c.selectable and c.step_s is not None]
    if not able:
        raise ValueError("no candidate can be chosen")
    able.sort(key=lambda c: (c.devices, c.step_s))
    best = able[0]
    for other in able[1:]:
        assert best.step_s is not None and other.step_s is not None
        if other.step_s < best.step_s * (1 - WORTH):
            best = other
    fastest = min(able, key=lambda c: c.step_s or 0.0)
    return best, _why(best, fastest, able)


def all_reduce_s(link: AllReduce, size: int, sizes: Sequence[int]) -> float:
    """Time of all-reduces after each other, one for each of `sizes` in bytes."""
    moved = 2 * (size - 1) / size * sum(sizes)
    return len(sizes) * (link.latency_s or 0.0) + moved / link.bus_bytes_per_s


def exposed_s(
    exchange: Exchange, link: AllReduce, size: int, remaining_s: Sequence[float]
) -> float:
    """How long the exchange of gradients goes on after the backward's end.

    Args:
        exchange: What is sent.
        link: Over what.
        size: Number of ranks.
        remaining_s: For each gradient, how long the backward still runs once it is there; where
            nothing is said, the gradient comes at the end.
    """
    clock = float("-inf")  # of the wire; the backward ends at 0
    for bucket in exchange.buckets():
        ready = max(-remaining_s[i] if i < len(remaining_s) else 0.0 for i in bucket)
        duration = all_reduce_s(link, size, [exchange.gradient_bytes[i] for i in bucket])
        clock = max(clock, ready) + duration
    return max(0.0, clock)


def _gradients(
    speed: Speed, link: AllReduce | None, size: int, remaining_s: Sequence[float]
) -> Part:
    exchange = speed.exchange
    if link is None:
        return Part("gradients", 0.0, f"{data(exchange.total_bytes)} of gradients; no link known")
    whole = all_reduce_s(link, size, exchange.gradient_bytes)
    exposed = exposed_s(exchange, link, size, remaining_s if speed.overlaps else ())
    line = (
        f"2 × {size - 1}/{size} × {data(exchange.total_bytes)} / "
        f"{data_rate(link.bus_bytes_per_s)} + {len(exchange.gradient_bytes)} × "
        f"{span(link.latency_s or 0.0)} = {span(whole)}, of which {span(exposed)} after the "
        f"backward ({len(exchange.buckets())} buckets)"
    )
    return Part("gradients", exposed, line)


def waited_for(exchange: Exchange, link: AllReduce | None, size: int) -> Part:
    """The small sums that a step waits for."""
    if link is None:
        return Part("sums", 0.0, "no link known")
    seconds = all_reduce_s(link, size, exchange.blocking_bytes)
    line = (
        f"{len(exchange.blocking_bytes)} sums of {data(sum(exchange.blocking_bytes))}, waited "
        f"for: {span(seconds)}"
    )
    return Part("sums", seconds, line)


def reading(work: Work, exchanged_s: float) -> tuple[Part, ...]:
    """What reading samples adds to a step that also exchanges for `exchanged_s`."""
    if work.pipeline is None:
        return ()
    pipeline, busy_s = work.pipeline, work.seconds + exchanged_s
    added = max(0.0, pipeline.step_s(exchanged_s) - busy_s)
    if added < ROUNDING * busy_s:
        added = 0.0
    line = (
        f"{span(pipeline.data_s)} to read the samples beside {span(busy_s)} of all that is above, "
        f"{pipeline.hidden:.0%} of the shorter hidden, and {span(pipeline.rest_s)} not explained: "
        f"{span(added)} more"
    )
    return (Part("data", added, line),)


def control(speed: Speed, size: int, step_s: float) -> tuple[Part, ...]:
    """What the votes and metrics of a step of `step_s` cost, where that is known."""
    times = speed.control(size)
    if times is None:
        return ()
    vote = max(0.0, times.vote_s - step_s)
    gathered = times.gather_s / max(1, times.every_steps)
    line = (
        f"vote {span(times.vote_s)} beside a step of {span(step_s)} costs {span(vote)}; metrics "
        f"{span(times.gather_s)} every {times.every_steps} steps cost {span(gathered)}"
    )
    return (Part("control", vote + gathered, line),)


def _scatter_gather(exchange: Exchange, link: AllReduce | None, size: int) -> Part:
    """One process sends all weights and takes all gradients over the first device's link."""
    if link is None:
        return Part("weights and gradients", 0.0, "no link known")
    total = 2 * (size - 1) * exchange.total_bytes
    seconds = total / link.bus_bytes_per_s
    line = (
        f"2 × {size - 1} × {data(exchange.total_bytes)} over one device's link / "
        f"{data_rate(link.bus_bytes_per_s)} = {span(seconds)}"
    )
    return Part("weights and gradients", seconds, line)


def _why(best: Candidate, fastest: Candidate, able: Sequence[Candidate]) -> str:
    assert best.step_s is not None and fastest.step_s is not None
    said = f"mode {best.mode} on {best.devices}: {span(best.step_s)} a step is predicted"
    if fastest is not best:
        gain = 1 - fastest.step_s / best.step_s
        saved = f"{fastest.devices} devices would save {gain:.1%} of it"
        return f"{said}; {saved}, and less than {WORTH:.0%} is not worth them"
    others = [c for c in able if c is not best and c.step_s is not None]
    if not others:
        return said
    second = min(others, key=lambda c: c.step_s or 0.0)
    assert second.step_s is not None
    return f"{said}, against {span(second.step_s)} for {second.mode} on {second.devices}"


def _sum(parts: Sequence[Part]) -> float:
    return sum(part.seconds for part in parts)

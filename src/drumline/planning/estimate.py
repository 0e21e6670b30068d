"""Speed and cost of a run on several numbers of devices, each number with its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drumline.config import Mode, RunConfig
from drumline.errors import BadInput
from drumline.planning.cost_model import Candidate
from drumline.planning.plan import predict_mode, spread
from drumline.planning.prices import PriceList
from drumline.planning.quantities import span
from drumline.planning.speed import Speed

SCHEMA_VERSION = 1
CUT = (Mode.SHARDED, Mode.HYBRID)
"""Modes that are estimated as the config names them; for all others replicas are."""


@dataclass(frozen=True)
class Estimate:
    """A run on one number of devices.

    Attributes:
        devices: How many.
        mode: "none" on one, else "distributed", or the config's "sharded" or "hybrid".
        shares: Samples of each.
        step_s: Time of a step.
        samples_per_s: Throughput of all devices.
        speedup: Against one device, with the same global batch.
        efficiency: `speedup` over `devices`.
        finish_s: Time of all steps; start, evaluation and checkpoints come on top.
        device_hours: Devices times hours.
        cost: Price of it; None where the price is missing.
        lines: The arithmetic.
    """

    devices: int
    mode: str
    shares: tuple[int, ...]
    step_s: float
    samples_per_s: float
    speedup: float
    efficiency: float
    finish_s: float
    device_hours: float
    cost: float | None
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Estimates:
    """Estimates of one config, and where they come from."""

    device: str
    source: str
    global_batch: int
    steps: int
    currency: str
    price_note: str
    rows: tuple[Estimate, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The estimates as plain data, with the version of their schema."""
        return {"version": SCHEMA_VERSION, **asdict(self)}


def estimate(
    config: RunConfig,
    counts: Sequence[int],
    speed: Speed,
    prices: PriceList,
) -> Estimates:
    """Estimate a run on each number of devices.

    Args:
        config: The run.
        counts: Numbers of devices.
        speed: What a device can do.
        prices: Prices an hour.

    Raises:
        BadInput: If the global batch cannot be shared by that many devices.
    """
    check_counts(config, counts)
    one = _predicted(config, 1, speed)
    price = prices.of(*speed.names)
    per_hour = None if price is None else price.per_hour
    found = [_predicted(config, count, speed) for count in sorted(set(counts))]
    return Estimates(
        device=speed.device,
        source=speed.source,
        global_batch=config.global_batch,
        steps=speed.steps,
        currency=prices.currency,
        price_note=f"the price of {speed.device} is missing from the price list: no cost"
        if price is None
        else f"{price.per_hour:g} {prices.currency} a device and hour: {price.vendor}, "
        f"{price.source}, read {price.date}",
        rows=tuple(_row(candidate, one, speed.steps, per_hour) for candidate in found),
        notes=_notes(speed, found),
    )


def check_counts(config: RunConfig, counts: Sequence[int]) -> None:
    """Refuse numbers of devices that a run cannot be shared by.

    Raises:
        BadInput: With the nearest numbers that work.
    """
    if not counts or min(counts) < 1:
        raise BadInput(
            "An estimate needs at least one number of devices, each 1 or more.",
            remedy="For example: --gpus 1,2,4,8",
        )
    for count in counts:
        spread(_without_shares(config, count), count)


def _predicted(config: RunConfig, count: int, speed: Speed) -> Candidate:
    asked = config.distributed.mode
    mode = Mode.NONE if count == 1 else asked if asked in CUT else Mode.DISTRIBUTED
    found = predict_mode(_without_shares(config, count), mode, count, speed)
    if found.step_s is None:
        raise BadInput(
            "The step time of a mesh with a tensor or pipeline axis is not predicted.",
            remedy="Ask about distributed.mode=distributed or sharded.",
        )
    return found


def _without_shares(config: RunConfig, count: int) -> RunConfig:
    """The config, its own shares kept only for the number of devices they are made for."""
    shares = config.distributed.fixed_shares
    if shares is None or len(shares) == count:
        return config
    equal = config.distributed.model_copy(update={"shares": "equal"})
    return config.model_copy(update={"distributed": equal})


def _notes(speed: Speed, found: Sequence[Candidate]) -> tuple[str, ...]:
    """What the numbers lack, each said once."""
    gaps = [f"not known, and counted as nothing: {', '.join(speed.gaps)}"] if speed.gaps else []
    return (*gaps, *dict.fromkeys(candidate.note for candidate in found if candidate.note))


def _row(candidate: Candidate, one: Candidate, steps: int, per_hour: float | None) -> Estimate:
    assert candidate.step_s is not None and one.step_s is not None
    count, step_s, samples = candidate.devices, candidate.step_s, sum(candidate.shares)
    rate = samples / step_s if step_s else float("inf")
    speedup = one.step_s / step_s if step_s else 1.0
    finish_s = steps * step_s
    hours = count * finish_s / 3600
    cost = None if per_hour is None else hours * per_hour
    lines = [f"{part.name}: {part.line}" for part in candidate.parts]
    summed = " + ".join(span(part.seconds) for part in candidate.parts if part.seconds)
    lines += [
        f"step: {summed or '0 s'} = {span(step_s)}",
        f"throughput: {samples:,} samples / {span(step_s)} = {rate:,.0f} samples/s",
        f"speedup: {span(one.step_s)} / {span(step_s)} = {speedup:.2f}; / {count} = "
        f"{speedup / count:.0%} efficiency",
        f"time: {steps:,} steps × {span(step_s)} = {span(finish_s)}",
        f"device-hours: {count} × {span(finish_s)} / 3600 s = {hours:.4g} h",
    ]
    if cost is not None:
        lines.append(f"cost: {hours:.4g} h × {per_hour:g} = {cost:.4g}")
    return Estimate(
        count,
        candidate.mode,
        candidate.shares,
        step_s,
        rate,
        speedup,
        speedup / count,
        finish_s,
        hours,
        cost,
        tuple(lines),
    )

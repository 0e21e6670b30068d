from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.planning.memory import MemoryEstimate, estimate, fits, largest_micro_batch
from drumline.planning.memory_constants import DeviceConstants
from drumline.planning.memory_trace import MemoryTrace, replay

MIB = 2**20
CARD = DeviceConstants(cublas_workspace=8 * MIB, context=400 * MIB, nccl=100 * MIB)


def trace_of(*allocations: tuple[str, int], free: tuple[int, ...] = ()) -> MemoryTrace:
    """All allocations in order, then some frees; a size of 0 is a cuBLAS workspace."""
    sizes = tuple(size for _, size in allocations)
    return MemoryTrace(
        micro_batch=4,
        share=4,
        world_size=1,
        steps=2,
        sizes=sizes,
        categories=tuple(category for category, _ in allocations),
        workspaces={n: "cublas:main" for n, size in enumerate(sizes) if not size},
        events=(*range(1, len(sizes) + 1), *(-(n + 1) for n in free)),
    )


def test_parts_are_those_of_the_moment_when_most_is_in_use() -> None:
    trace = trace_of(
        ("parameters", 40 * MIB), ("activations", 60 * MIB), ("gradients", 40 * MIB), free=(1,)
    )
    trace = replace(
        trace,
        sizes=(*trace.sizes, 50 * MIB),
        categories=(*trace.categories, "optimizer"),
        events=(*trace.events, 4),
    )
    found = estimate(trace, constants=CARD)
    parts = found.parameters, found.gradients, found.activations, found.optimizer
    assert parts == (40 * MIB, 40 * MIB, 60 * MIB, 0)  # 140 then, 130 later
    assert found.allocated_peak == 140 * MIB


def test_a_workspace_has_the_size_of_the_device() -> None:
    trace = trace_of(("parameters", 20 * MIB), ("workspace", 0))
    found = estimate(trace, constants=CARD)
    assert (found.workspace, found.allocated_peak) == (8 * MIB, 28 * MIB)
    assert found.reserved_peak == 20 * MIB + 20 * MIB  # 8 MiB lie in a 20 MiB segment
    assert estimate(trace).workspace == 0  # no device


def test_the_context_lies_outside_and_nccl_needs_peers() -> None:
    trace = trace_of(("parameters", 20 * MIB))
    alone = estimate(trace, constants=CARD)
    paired = estimate(replace(trace, world_size=2), constants=CARD)
    assert (alone.context, paired.context) == (400 * MIB, 500 * MIB)
    assert alone.total == alone.reserved_peak + 400 * MIB


def test_more_selected_raises_only_the_upper_end() -> None:
    usual = replace(trace_of(("activations", 30 * MIB)), selections=("nonzero",))
    more = replace(trace_of(("activations", 90 * MIB)), selected=0.1)
    found = estimate(usual, constants=CARD, more=more)
    assert (found.reserved_peak, found.low, found.high) == (30 * MIB, 30 * MIB, 90 * MIB)
    assert any("nonzero" in line and "10%" in line for line in found.unknown)


def test_explanations_add_up() -> None:
    trace = trace_of(("parameters", 3 * MIB + 100), ("gradients", 5 * MIB), ("workspace", 0))
    found = estimate(trace, constants=CARD)
    text = "\n".join(found.explain())
    assert "3.0 MiB + 5.0 MiB + 0.0 MiB + 0.0 MiB + 0.0 MiB + 8.0 MiB = 16.0 MiB" in text
    assert f"{found.reserved_peak / MIB:,.1f} MiB + 400.0 MiB = {found.total / MIB:,.1f}" in text


def test_a_trace_survives_json() -> None:
    trace = replace(trace_of(("parameters", 7), ("workspace", 0), free=(0,)), selections=("x",))
    trace = replace(trace, events=(*trace.events, 0, 0), held=((), (1, 2)), streams={1: 2})
    assert MemoryTrace.from_dict(json.loads(json.dumps(trace.as_dict()))) == trace


def test_fits_says_how_much_is_short() -> None:
    found = estimate(trace_of(("parameters", 20 * MIB)), constants=CARD)
    assert fits(found, 420 * MIB).fits
    short = fits(found, 419 * MIB)
    assert (short.fits, short.left) == (False, -MIB)


@given(st.lists(st.integers(1, 200 * MIB), min_size=1, max_size=20))
def test_reserved_is_never_below_allocated_nor_below_the_sum(sizes: list[int]) -> None:
    played = replay(trace_of(*(("activations", size) for size in sizes)), lambda _: 0)
    assert sum(sizes) <= played.allocated_peak <= played.reserved_peak
    assert played.at_peak["activations"] == sum(sizes)


def needs(fixed: int, each: int, bend: int = 0):  # type: ignore[no-untyped-def]
    """Estimates that grow with the micro-batch, with a step every 7 samples."""

    def at(size: int) -> MemoryEstimate:
        reserved = fixed + each * size + bend * (size // 7)
        empty = estimate(trace_of(), constants=DeviceConstants(0, 0, 0))
        return replace(empty, micro_batch=size, reserved_peak=reserved)

    return at


@given(
    fixed=st.integers(0, 1000),
    each=st.integers(1, 50),
    bend=st.integers(0, 100),
    capacity=st.integers(1, 100_000),
    share=st.integers(1, 5000),
    granularity=st.sampled_from([1, 4, 64]),
)
def test_the_largest_micro_batch_fits_and_the_next_does_not(
    *, fixed: int, each: int, bend: int, capacity: int, share: int, granularity: int
) -> None:
    at = needs(fixed, each, bend)
    found, made = largest_micro_batch(at, capacity, share, granularity)
    least = min(share, granularity)
    if found is None:
        assert not fits(at(least), capacity).fits
        return
    assert found in made and fits(found, capacity).fits
    assert found.micro_batch == share or found.micro_batch % granularity == 0
    if found.micro_batch < share:
        groups = found.micro_batch // granularity
        beyond = (groups + max(1, groups // 64)) * granularity
        assert not fits(at(min(beyond, share)), capacity).fits
    assert len(made) < 40


@pytest.mark.parametrize("capacity", [10_000, 50_000, 99_000])
def test_a_line_is_met_in_few_estimates(capacity: int) -> None:
    _, made = largest_micro_batch(needs(1000, 10), capacity, 100_000)
    assert len(made) <= 8


@given(st.integers(1, 50_000), st.integers(1, 50_000))
def test_more_memory_never_gives_a_smaller_micro_batch(one: int, other: int) -> None:
    at = needs(100, 10, 30)
    sizes = []
    for capacity in sorted((one, other)):
        found, _ = largest_micro_batch(at, capacity, 64)  # up to 64 the answer is exact
        sizes.append(found.micro_batch if found else 0)
    assert sizes[0] <= sizes[1]

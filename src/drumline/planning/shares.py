"""Cutting a global batch into shares and micro-batches: whole multiples of a granularity."""

from __future__ import annotations

from collections.abc import Sequence

PASSES_PER_STAGE = 4
"""Micro-batches for each rank of a pipeline where the config does not say: its bubble is then below
a fifth (Huang et al. 2019, "GPipe", arXiv 1811.06965, find it negligible from there on).
"""


def cut_shares(total: int, weights: Sequence[int | float], granularity: int = 1) -> tuple[int, ...]:
    """Shares of `total` samples, one for each weight, that sum to `total`.

    Whole groups of `granularity` samples are dealt by the largest remainder, ties to the lower
    rank; samples that fill no whole group go to the last rank that has any share. With equal
    weights the shares differ by at most one group.

    Raises:
        ValueError: If there is no positive weight, or a negative one.
    """
    if not weights or min(weights) < 0 or sum(weights) <= 0:
        raise ValueError(f"weights must not be negative, and not all zero: {list(weights)}")
    groups, rest = divmod(total, granularity)
    whole = sum(weights)
    exact = [groups * weight / whole for weight in weights]
    dealt = [int(share) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda rank: (dealt[rank] - exact[rank], rank))
    for rank in by_remainder[: groups - sum(dealt)]:
        dealt[rank] += 1
    shares = [share * granularity for share in dealt]
    if rest:
        holders = [rank for rank, share in enumerate(shares) if share] or [
            next(rank for rank, weight in enumerate(weights) if weight)
        ]
        shares[holders[-1]] += rest
    return tuple(shares)


def cut_micro_batches(count: int, micro_batch: int, granularity: int = 1) -> list[int]:
    """Sizes of the micro-batches of a share: as large as allowed, whole groups, the rest last."""
    size = max(granularity, micro_batch - micro_batch % granularity)
    return [min(size, count - start) for start in range(0, count, size)]


def pipeline_bubble(ranks: int, micro_batches: int, stages_per_rank: int = 1) -> float:
    """The part of a step that a rank of a pipeline waits, if all stages take equally long:
    (P-1) / (v M + P-1) for P ranks of v stages each and M micro-batches (Narayanan et al. 2021,
    arXiv 2104.04473). Zero-bubble schedules wait less.
    """
    return (ranks - 1) / (stages_per_rank * micro_batches + ranks - 1)

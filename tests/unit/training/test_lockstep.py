"""What a rank runs while others work."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from single_process import world
from torch import Tensor

from drumline.distributed import LocalControl
from drumline.training import Cursor, StepBatch
from drumline.training.lockstep import Company


@dataclass
class Others(LocalControl):
    """A control plane on which rank 1 offers something."""

    theirs: Any = None
    asked: list[Any] = field(default_factory=list)

    def gather(self, value: Any) -> list[Any]:
        self.asked.append(value)
        return [value, self.theirs]


def batch(data: Tensor | None, *counts: int) -> StepBatch:
    """A step's batch on rank 0."""
    return StepBatch(data, counts[0], sum(counts), counts, 0, Cursor(), 0)


def company(granularity: int = 1, theirs: Any = None) -> tuple[Company, Others]:
    control = Others(theirs=theirs)
    return Company(replace(world(), size=2, control=control), granularity), control


def test_all_ranks_run_as_many_passes_as_the_busiest_needs() -> None:
    ours, _ = company()
    assert ours.passes(batch(None, 0, 7), micro_batch=3) == 3
    assert ours.passes(batch(None, 6, 1), micro_batch=3) == 2
    grouped, _ = company(granularity=4)
    assert grouped.passes(batch(None, 16, 8), micro_batch=4) == 4


def test_a_rank_keeps_samples_of_its_own_and_asks_nobody() -> None:
    ours, control = company()
    first, second = torch.arange(4.0), torch.arange(4.0, 6.0)
    ours.follow(batch(first, 4, 4), first)
    assert ours.filler.tolist() == [0.0, 1.0]
    ours.follow(batch(second, 2, 1), second)
    assert ours.filler.tolist() == [4.0, 5.0]
    ours.follow(batch(None, 0, 1), None)
    assert ours.filler.tolist() == [4.0, 5.0]
    assert control.asked == []


def test_a_rank_that_never_had_any_borrows_once() -> None:
    ours, control = company(theirs=[torch.tensor([7.0, 8.0]), "label"])
    ours.follow(batch(None, 0, 2), None)
    ours.follow(batch(None, 0, 2), None)
    assert ours.filler[0].tolist() == [7.0, 8.0]
    assert control.asked == [None]


def test_a_rank_that_has_some_lends_copies_to_one_that_has_not() -> None:
    ours, control = company(granularity=3)
    data = torch.arange(100.0)
    ours.follow(batch(data, 100, 0), data)
    (lent,) = control.asked
    assert lent.tolist() == [0.0, 1.0, 2.0]
    assert lent.untyped_storage().nbytes() == 3 * lent.element_size()

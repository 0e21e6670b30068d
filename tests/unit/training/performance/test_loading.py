"""Ways of reading: tried only where steps wait, kept only if they read the same and help."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from counted_work import Clock, Repeating, loader, loss, rules
from torch.utils.data import DataLoader, Dataset

from drumline.distributed import LocalControl
from drumline.training.performance import Outcome, Row, loading
from drumline.training.performance.loader_feed import LoaderFeed
from drumline.training.performance.loading import Feed, Reading, equal, tune
from drumline.training.performance.workload import LoopWorkload

CPU = torch.device("cpu")


class Timed(Feed):
    """A feed whose reading takes, beside a step of one second, what a function says."""

    def __init__(self, clock: Clock, seconds: Any, batches: int = 1000) -> None:
        self.clock, self.seconds = clock, seconds
        self.reading, self.batches = Reading(), batches
        self.random_by: set[int] = set()
        self.opened: list[Reading] = []

    def open(self, reading: Reading) -> Iterator[Any]:
        self.opened.append(reading)
        for number in range(self.batches):
            self.clock.now += self.seconds(reading)
            yield torch.tensor(
                [number, reading.workers if reading.workers in self.random_by else 0]
            )

    def train_on(self, batch: Any) -> None:
        self.clock.now += 1.0

    def use(self, reading: Reading) -> None:
        self.reading = reading


def tuned(feed: Timed) -> Row:
    return tune(feed, LocalControl(), rules(feed.clock), lambda: None)


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "cpus_of_a_rank", lambda ranks: 8)


def shared_out(reading: Reading) -> float:
    """Eight seconds of reading a batch, shared by workers; no gain from more than four."""
    return 8.0 / min(4, max(1, reading.workers))


def test_workers_are_added_while_that_helps() -> None:
    """One alone is no faster than the process itself, which is not the end of it."""
    feed = Timed(Clock(), shared_out)
    row = tuned(feed)
    assert feed.reading == Reading(workers=4)
    assert (row.outcome, row.before_s, row.after_s) == (Outcome.APPLIED, 9.0, 3.0)
    assert row.gain == pytest.approx(2 / 3)
    assert [round(each["gain"], 3) for each in row.details["tried"]] == [0.0, 0.444, 0.4, 0.0]


def test_fewer_workers_where_they_only_cost() -> None:
    feed = Timed(Clock(), lambda reading: 0.5 * reading.workers)
    feed.reading = Reading(workers=2)
    assert tuned(feed).outcome is Outcome.APPLIED
    assert feed.reading.workers == 0


def test_nothing_is_tried_where_no_step_waits() -> None:
    feed = Timed(Clock(), lambda reading: 0.01)
    row = tuned(feed)
    assert (row.outcome, row.reason) == (
        Outcome.NOT_APPLICABLE, "reading takes 1.0% of a step: nothing to gain",
    )  # fmt: skip
    assert len(feed.opened) == 1


def test_a_data_set_that_draws_at_random_in_its_workers_keeps_its_setting() -> None:
    feed = Timed(Clock(), shared_out)
    feed.random_by = {1, 2, 4, 8}
    row = tuned(feed)
    assert row.outcome is Outcome.UNDONE
    assert feed.reading == Reading()
    assert "draws at random" in row.details["tried"][0]["reason"]


def test_too_few_batches_to_measure_on() -> None:
    feed = Timed(Clock(), shared_out, batches=6)
    row = tuned(feed)
    assert row.outcome is Outcome.UNDONE
    assert "6 batches are too few" in row.details["tried"][0]["reason"]


def test_what_fails_is_reported() -> None:
    def broken(reading: Reading) -> float:
        if reading.workers:
            raise OSError("no more processes")
        return 8.0

    row = tuned(Timed(Clock(), broken))
    assert (row.outcome, row.reason) == (Outcome.UNDONE, "it failed: OSError: no more processes")


class Drawing(Dataset[float]):
    """Draws at random for every sample."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> float:
        return random.random()


def feed_of(given: Any, ranks: int = 1, rank: int = 0) -> LoaderFeed:
    return LoaderFeed(given, (rank, [1] * ranks), CPU)


@pytest.mark.parametrize("seeded", [True, False])
def test_a_loader_is_read_aside(seeded: bool) -> None:
    """The batches are those of the next pass, which is the same afterwards."""
    given = loader(generator=torch.Generator().manual_seed(2) if seeded else None)
    torch.manual_seed(9)
    feed = feed_of(given)
    first = [batch[2].tolist() for batch in feed.first(3)]
    assert [batch[2].tolist() for batch in feed.first(3)] == first
    workers = feed.open(Reading(workers=1))
    assert [next(workers)[2].tolist() for _ in range(3)] == first
    feed.first(1)
    torch.manual_seed(9)
    assert [batch[2].tolist() for batch in given][:3] == first


def test_each_rank_reads_its_part_of_a_batch() -> None:
    given = loader(shuffle=False)
    parts = [next(feed_of(given, 3, rank).open(Reading()))[2].tolist() for rank in range(3)]
    assert parts == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_draws_in_the_process_and_in_a_worker_differ_and_are_found() -> None:
    feed = feed_of(DataLoader(Drawing(), 8))
    assert equal(feed.first(2), feed.first(2))
    both = [next(feed.open(reading)) for reading in (Reading(), Reading(workers=1))]
    assert not equal(*both)


def test_the_users_loader_is_changed_in_place() -> None:
    given = loader(num_workers=2, prefetch_factor=3)
    feed = feed_of(given)
    assert feed.reading == Reading(2, 3, False)
    feed.use(Reading(workers=0))
    assert (given.num_workers, given.prefetch_factor) == (0, None)
    assert len(list(given)) == len(given) == 6


def test_a_real_loader_is_tuned_on_real_steps() -> None:
    """With a clock that stands still every way is as fast: the loader keeps its own."""
    clock = Clock()
    model = Repeating(clock)
    given = loader()
    feed = feed_of(given)
    batches = feed.first(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feed.workload = LoopWorkload(model, optimizer, loss, batches, CPU)
    row = tune(feed, LocalControl(), rules(clock), lambda: None)
    assert row.outcome is Outcome.NOT_APPLICABLE
    assert given.num_workers == 0

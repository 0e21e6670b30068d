"""Metrics and events that trainings report, on both engines."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from drumline.hardware import Machine
from drumline.jobs.errors import LeaseLost
from drumline.jobs.reports import Batch, Event, Point, Value, forget_some
from queue_cases import DONE, Service, service_at

MACHINE = Machine.probe(simulate="1xH100")


@pytest.fixture
def service(database_url: str) -> Iterator[Service]:
    with service_at(database_url) as made:
        made.add_host(MACHINE)
        yield made


def running(service: Service) -> tuple[str, str]:
    """The id and token of a training."""
    training_id = service.ask()
    claim = service.leases.claim("h", MACHINE)
    assert claim is not None
    service.outcomes.starting(claim.token)
    return training_id, claim.token


def test_a_batch_that_comes_twice_changes_nothing(service: Service) -> None:
    training_id, token = running(service)
    reports = service.trainings.reports
    batch = Batch(
        (Value("loss", 1, 10, 2.0), Value("loss", 2, 20, 1.5)),
        (Event(0, 10, "started", {"a": 1}), Event(40, 20, "saved", {"step": 2})),
        offset=80,
        step=2,
        steps=8,
    )
    reports.write(token, batch)
    once = (reports.metrics(training_id), reports.events(training_id))
    reports.write(token, batch)
    assert (reports.metrics(training_id), reports.events(training_id)) == once
    training = service.trainings.get(training_id)
    assert (training.events_offset, training.step, training.steps) == (80, 2, 8)
    assert training.progress_ms == service.clock.now


def test_an_older_batch_that_comes_late_does_not_set_the_place_back(service: Service) -> None:
    training_id, token = running(service)
    service.trainings.reports.write(token, Batch(offset=80))
    service.trainings.reports.write(token, Batch(offset=40))
    assert service.trainings.get(training_id).events_offset == 80


def test_a_step_reported_again_replaces_the_older(service: Service) -> None:
    training_id, token = running(service)
    reports = service.trainings.reports
    reports.write(token, Batch((Value("loss", 5, 10, 2.0), Value("loss", 5, 11, 3.0))))
    reports.write(token, Batch((Value("loss", 5, 30, 1.0),)))
    assert reports.metrics(training_id) == {"loss": [Point(5, 30, 1.0, 1.0, 1.0, 1, 0)]}


def test_a_long_range_is_thinned_to_means_and_extremes(service: Service) -> None:
    """Steps 1 to 10 in stretches of four: means 2.5, 6.5 and 9.5."""
    training_id, token = running(service)
    reports = service.trainings.reports
    values = tuple(Value("loss", step, step * 10, float(step)) for step in range(1, 11))
    reports.write(token, Batch((*values, Value("lr", 4, 40, 0.5))))
    thinned = reports.metrics(training_id, points=3)
    assert thinned["loss"] == [
        Point(4, 40, 2.5, 1.0, 4.0, 4, 0),
        Point(8, 80, 6.5, 5.0, 8.0, 4, 0),
        Point(10, 100, 9.5, 9.0, 10.0, 2, 0),
    ]
    assert thinned["lr"] == [Point(4, 40, 0.5, 0.5, 0.5, 1, 0)]
    part = reports.metrics(training_id, ["loss"], from_step=3, to_step=5)
    assert [point.step for point in part["loss"]] == [3, 4, 5]
    assert set(part) == {"loss"}
    assert reports.metrics(training_id, ["nothing"]) == {}
    assert reports.metrics("nobody") == {}


def test_what_is_not_finite_is_counted_and_not_averaged(service: Service) -> None:
    training_id, token = running(service)
    reports = service.trainings.reports
    bad = [math.nan, math.inf, -math.inf]
    values = [Value("loss", step, step, value) for step, value in enumerate([1.0, 3.0, *bad])]
    reports.write(token, Batch(tuple(values)))
    assert reports.metrics(training_id, points=1)["loss"] == [Point(4, 4, 2.0, 1.0, 3.0, 2, 3)]
    assert reports.latest(training_id) == {"loss": Value("loss", 4, 4, None)}
    assert reports.latest("nobody") == {}


def test_events_come_in_order_and_in_parts(service: Service) -> None:
    training_id, token = running(service)
    reports = service.trainings.reports
    kinds = ("attempt", "metrics", "saved", "metrics")
    events = tuple(Event(n * 10, n, kind, {"n": n}) for n, kind in enumerate(kinds))
    reports.write(token, Batch(events=events[::-1]))
    first = reports.events(training_id, limit=3)
    assert [event.offset for event in first] == [0, 10, 20]
    assert reports.events(training_id, after=first[-1].offset) == [events[3]]
    assert [event.event["n"] for event in reports.events(training_id, kinds=["metrics"])] == [1, 3]


def test_nothing_is_reported_after_the_end(service: Service) -> None:
    training_id, token = running(service)
    service.outcomes.finish(token, DONE)
    with pytest.raises(LeaseLost):
        service.trainings.reports.write(token, Batch((Value("loss", 1, 1, 1.0),), step=1))
    assert service.trainings.reports.metrics(training_id) == {}
    assert service.trainings.get(training_id).step is None


def test_many_reports_are_forgotten_in_several_transactions(service: Service) -> None:
    training_id, token = running(service)
    values = [Value(name, step, 0, 1.0) for name in ("a", "b") for step in range(30)]
    service.trainings.reports.write(token, Batch(tuple(values)))
    rounds = 0
    more = True
    while more:
        with service.database.writing() as connection:
            more = forget_some(connection, training_id, most=25)
        rounds += 1
    assert rounds == 3
    assert service.trainings.reports.metrics(training_id) == {}

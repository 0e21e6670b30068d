"""The order of the queue, backfill and holding back, on plain data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.jobs.queue import Host, Rules, Slot, Waiting, decide, in_order

MINUTE = 60_000
RULES = Rules(hold_back_ms=MINUTE, overdue_ms=60 * MINUTE)


def first_fit(job: Waiting, allowed: Collection[str]) -> tuple[str, ...] | None:
    """All devices alike: the first ones allowed."""
    ordered = list(allowed)
    if job.gpu_ids:
        return job.gpu_ids if set(job.gpu_ids) <= set(ordered) else None
    if job.gpus == 0:
        return ()
    if job.gpus == "auto":
        return tuple(ordered) or None
    assert isinstance(job.gpus, int)
    return tuple(ordered[: job.gpus]) if len(ordered) >= job.gpus else None


def host(*slots: Slot, name: str = "h", elsewhere: Collection[str] = ()) -> Host:
    return Host(name, slots, first_fit, frozenset(elsewhere))


def job(name: str, gpus: int = 1, **keys: object) -> Waiting:
    values = {"owner": "o", "priority": 0, "queued_ms": 0, **keys}
    return Waiting(id=name, gpus=gpus, **values)  # type: ignore[arg-type]


FREE = [Slot(f"g{i}") for i in range(4)]


def test_priority_then_fair_share_then_age() -> None:
    waiting = [
        job("old", owner="busy", queued_ms=1),
        job("young", owner="idle", queued_ms=5),
        job("middle", owner="idle", queued_ms=3),
        job("urgent", owner="busy", queued_ms=9, priority=1),
    ]
    ordered = in_order(waiting, {"busy": 10}, 100, RULES)
    assert [each.id for each in ordered] == ["urgent", "middle", "young", "old"]


def test_who_has_waited_too_long_comes_first_of_its_priority() -> None:
    waiting = [
        job("overdue", owner="busy", queued_ms=0),
        job("share", owner="idle", queued_ms=59 * MINUTE),
        job("urgent", owner="busy", queued_ms=59 * MINUTE, priority=1),
    ]
    ordered = in_order(waiting, {"busy": 10}, 60 * MINUTE, RULES)
    assert [each.id for each in ordered] == ["urgent", "overdue", "share"]
    both = [job("longer", owner="busy", queued_ms=0), job("shorter", owner="idle", queued_ms=1)]
    ordered = in_order(both, {"busy": 10}, 61 * MINUTE, RULES)
    assert [each.id for each in ordered] == ["longer", "shorter"]


def test_a_small_one_fills_the_gap_only_if_it_is_out_in_time() -> None:
    """Two of four devices come free in ten minutes, when the big one can start."""
    there = host(*FREE[:2], *(Slot(f"g{i}", "leased", "x", 10 * MINUTE) for i in (2, 3)))
    big = job("big", 4)
    for minutes, starts in ((10, "short"), (11, None)):
        short = job("short", 1, expected_ms=minutes * MINUTE)
        decision = decide(there, [big, short], 0, RULES)
        assert decision.held is not None
        assert (decision.held.training, decision.held.start_ms) == ("big", 10 * MINUTE)
        assert (decision.start and decision.start.id) == starts
    unpredicted = decide(there, [big, job("unpredicted")], 0, RULES)
    assert unpredicted.start is None


def test_a_small_one_may_always_have_what_the_big_one_does_not_need() -> None:
    there = host(*FREE[:3], Slot("g3", "leased", "x", 10 * MINUTE))
    named = job("named", 2, gpu_ids=("g0", "g3"))
    decision = decide(there, [named, job("small", 2)], 0, RULES)
    assert decision.devices == ("g1", "g2")


def test_without_predictions_devices_are_held_back_after_a_bounded_wait() -> None:
    there = host(*FREE[:3], Slot("g3", "leased", "x"))
    big, small = job("big", 4), job("small")
    before = decide(there, [big, small], MINUTE - 1, RULES)
    assert before.start == small
    after = decide(there, [big, small], MINUTE, RULES)
    assert after.start is None
    assert after.held is not None
    assert after.held.firm
    assert set(after.held.devices) == {"g0", "g1", "g2", "g3"}
    assert after.held.start_ms is None


def test_a_time_that_is_over_predicts_nothing() -> None:
    there = host(*FREE[:3], Slot("g3", "leased", "x", 10))
    decision = decide(there, [job("big", 4), job("small", expected_ms=1)], 11, RULES)
    assert decision.held is not None
    assert decision.held.start_ms is None
    assert decision.start is not None  # not firm before the bound
    late = decide(there, [job("big", 4), job("small", expected_ms=1)], MINUTE, RULES)
    assert late.start is None


def test_nothing_is_held_back_beside_a_process_outside_the_queue() -> None:
    """It may run for ever; once it has gone, or others suffice, devices are held back."""
    slots = [*FREE[:2], Slot("g2", "busy", reason="process 7"), Slot("g3", "leased", "x")]
    waiting = [job("big", 4), job("small")]
    assert decide(host(*slots), waiting, 5 * MINUTE, RULES).start == waiting[1]
    three = decide(host(*slots), [job("big", 3), job("small")], 5 * MINUTE, RULES)
    assert three.start is None
    assert three.held is not None
    assert set(three.held.devices) == {"g0", "g1", "g3"}


def test_what_never_fits_holds_nothing_back() -> None:
    there = host(*FREE[:1], Slot("g1", "out", reason="lost"))
    decision = decide(there, [job("huge", 2), job("small")], 5 * MINUTE, RULES)
    assert decision.held is None
    assert decision.devices == ("g0",)


def test_another_host_holds_back_for_it_already() -> None:
    there = host(*FREE[:1], Slot("g1", "leased", "x"), elsewhere={"big"})
    decision = decide(there, [job("big", 2), job("small")], 5 * MINUTE, RULES)
    assert decision.held is None
    assert decision.start == job("small")


def test_a_training_for_another_host_is_passed_over() -> None:
    decision = decide(host(*FREE), [job("there", host="other"), job("here")], 0, RULES)
    assert decision.start == job("here")


@dataclass
class Running:
    """A training that has devices until a time."""

    job: Waiting
    devices: tuple[str, ...]
    begun_ms: int
    ends_ms: int


JOBS = st.builds(
    Waiting,
    id=st.uuids().map(str),
    owner=st.sampled_from(["ann", "bob", "eve"]),
    priority=st.integers(0, 2),
    queued_ms=st.integers(0, 120 * MINUTE),
    gpus=st.integers(1, 6),
    expected_ms=st.one_of(st.none(), st.integers(1, 60 * MINUTE)),
)


Case = tuple[list[Waiting], dict[str, int], list[int]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Trainings, how long each really takes (whatever was predicted), and the devices of hosts."""
    jobs = draw(st.lists(JOBS, max_size=12, unique_by=lambda each: each.id))
    lengths = {each.id: draw(st.integers(1, 90 * MINUTE)) for each in jobs}
    return jobs, lengths, draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))


class Play:
    """Hosts that look whenever something comes or ends; what one holds back, the others know.

    Checks at every start that no device has two trainings.
    """

    def __init__(self, jobs: list[Waiting], lengths: dict[str, int], counts: list[int]) -> None:
        self.jobs, self.lengths = jobs, lengths
        self.counts = {f"h{n}": count for n, count in enumerate(counts)}
        self.running: dict[str, list[Running]] = {name: [] for name in self.counts}
        self.reserved: dict[str, str] = {}
        self.started: dict[str, int] = {}
        self.used: dict[str, int] = {}

    def to_the_end(self) -> dict[str, int]:
        """When each training starts."""
        now = 0
        while True:
            for name, running in self.running.items():
                self.running[name] = [each for each in running if each.ends_ms > now]
            for name in self.counts:
                while self.look(name, now):
                    pass
            ends = [each.ends_ms for running in self.running.values() for each in running]
            ahead = [*ends, *(each.queued_ms for each in self.jobs if each.queued_ms > now)]
            if not ahead:
                return self.started
            now = min(ahead)

    def look(self, name: str, now: int) -> bool:
        """One look of a host; whether something started."""
        running = self.running[name]
        waiting = [e for e in self.jobs if e.queued_ms <= now and e.id not in self.started]
        elsewhere = {job for other, job in self.reserved.items() if other != name}
        there = host(*slots(running, self.counts[name]), name=name, elsewhere=elsewhere)
        decision = decide(there, in_order(waiting, self.used, now, RULES), now, RULES)
        self.reserved.pop(name, None)
        if decision.held is not None and decision.held.firm:
            self.reserved[name] = decision.held.training
        begun = decision.start
        if begun is None:
            return False
        busy = {uuid for each in running for uuid in each.devices}
        assert not busy & set(decision.devices)
        assert len(set(decision.devices)) == begun.gpus
        self.started[begun.id] = now
        length = self.lengths[begun.id]
        running.append(Running(begun, decision.devices, now, now + length))
        self.used[begun.owner] = self.used.get(begun.owner, 0) + length * len(decision.devices)
        for other in [key for key, job in self.reserved.items() if job == begun.id]:
            del self.reserved[other]
        return True


def play(jobs: list[Waiting], lengths: dict[str, int], counts: list[int]) -> dict[str, int]:
    return Play(jobs, lengths, counts).to_the_end()


def slots(running: list[Running], count: int) -> list[Slot]:
    holders = {uuid: each for each in running for uuid in each.devices}
    return [
        Slot(uuid)
        if (held := holders.get(uuid)) is None
        else Slot(uuid, "leased", held.job.id, predicted_end(held))
        for uuid in (f"g{i}" for i in range(count))
    ]


def predicted_end(running: Running) -> int | None:
    """As predicted, which may be wrong."""
    expected = running.job.expected_ms
    return None if expected is None else running.begun_ms + expected


@settings(max_examples=150, deadline=None)
@given(cases())
def test_every_training_that_fits_starts(case: Case) -> None:
    jobs, lengths, counts = case
    started = play(jobs, lengths, counts)
    most = max(counts)
    assert set(started) == {each.id for each in jobs if each.gpus <= most}  # type: ignore[operator]


@settings(max_examples=100, deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_the_same_queue_in_another_order_gives_the_same(case: Case, random: Random) -> None:
    jobs, lengths, counts = case
    shuffled = list(jobs)
    random.shuffle(shuffled)
    assert play(jobs, lengths, counts) == play(shuffled, lengths, counts)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_equal_trainings_start_by_priority(case: Case) -> None:
    """All wait from the beginning, and ask for the same."""
    jobs, lengths, counts = case
    alike = [replace(e, queued_ms=0, gpus=1, expected_ms=None) for e in jobs]
    started = play(alike, lengths, counts)
    for one in alike:
        for other in alike:
            if one.priority > other.priority:
                assert started[one.id] <= started[other.id]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.integers(1, 30),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
)
def test_a_stream_of_small_ones_does_not_starve_a_big_one(
    counts: list[int], every: int, length: int, predicted: bool, same_owner: bool
) -> None:
    """Each small one takes `length` minutes, and one comes every so often, without end."""
    big = job("big", max(counts), queued_ms=MINUTE // 2, owner="small" if same_owner else "big")
    small = [
        job(
            f"s{i:03}",
            queued_ms=i * every * MINUTE // 4,
            owner="small",
            expected_ms=length * MINUTE if predicted else None,
        )
        for i in range(200)
    ]
    lengths = {each.id: length * MINUTE for each in [big, *small]}
    started = play([big, *small], lengths, counts)
    assert started["big"] <= big.queued_ms + RULES.overdue_ms + RULES.hold_back_ms + length * MINUTE

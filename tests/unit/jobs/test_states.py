"""The states of a training and what may follow what."""

from __future__ import annotations

from itertools import pairwise

import pytest

from drumline.jobs.states import ACTIVE, ENDED, TRANSITIONS, State, before


def reachable(start: State, without: frozenset[State] = frozenset()) -> set[State]:
    """All states that can follow `start`, in any number of steps."""
    seen: set[State] = set()
    front = [start]
    while front:
        for state in TRANSITIONS[front.pop()] - seen - without:
            seen.add(state)
            front.append(state)
    return seen


def test_the_way_of_a_training_that_goes_well() -> None:
    way = ["draft", "queued", "leased", "starting", "running", "succeeded"]
    for earlier, later in pairwise(way):
        assert State(later) in TRANSITIONS[State(earlier)]


def test_every_state_says_what_may_follow() -> None:
    assert set(TRANSITIONS) == set(State)
    assert reachable(State.DRAFT) == set(State) - {State.DRAFT}


def test_success_is_final_and_nothing_becomes_a_draft() -> None:
    assert TRANSITIONS[State.SUCCEEDED] == frozenset()
    assert before(State.DRAFT) == frozenset()


def test_devices_are_taken_only_from_the_queue() -> None:
    for active in ACTIVE:
        assert before(active) <= ACTIVE | {State.QUEUED}
    assert before(State.LEASED) == {State.QUEUED}


@pytest.mark.parametrize("state", sorted(ENDED))
def test_what_has_ended_runs_again_only_through_the_queue(state: State) -> None:
    assert TRANSITIONS[state] <= {State.QUEUED}


@pytest.mark.parametrize("state", sorted(set(State) - ENDED))
def test_whatever_has_not_ended_can_be_cancelled(state: State) -> None:
    assert State.CANCELLED in TRANSITIONS[state]


def test_before_is_the_other_way_round() -> None:
    for state in State:
        for earlier in State:
            assert (state in TRANSITIONS[earlier]) == (earlier in before(state))

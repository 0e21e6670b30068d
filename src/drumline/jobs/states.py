"""The states of a training, and which may follow which: the one place that says so.

    draft → queued → leased → starting → running → succeeded | failed | cancelled
               ↑                            ↓
               └──────── paused ←──────── pausing

A lease that ran out leads back to `queued`. Who may write a state, and how it is guarded, is
`jobs.moves`.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a training is in its life."""

    DRAFT = "draft"  # written down, not asked to run
    QUEUED = "queued"  # waits for devices
    LEASED = "leased"  # devices are taken for it
    STARTING = "starting"  # its supervisor is there
    RUNNING = "running"  # its ranks are there
    PAUSING = "pausing"  # asked to save and stop
    PAUSED = "paused"  # stopped on request, holds no device, goes on when told
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDS = frozenset({State.FAILED, State.CANCELLED})

TRANSITIONS: dict[State, frozenset[State]] = {
    State.DRAFT: frozenset({State.QUEUED, State.CANCELLED}),
    State.QUEUED: frozenset({State.LEASED, State.PAUSED, State.CANCELLED}),
    State.LEASED: frozenset({State.STARTING, State.PAUSED, State.QUEUED, *_ENDS}),
    State.STARTING: frozenset(
        {State.RUNNING, State.PAUSING, State.PAUSED, State.QUEUED, State.SUCCEEDED, *_ENDS}
    ),
    State.RUNNING: frozenset({State.PAUSING, State.PAUSED, State.QUEUED, State.SUCCEEDED, *_ENDS}),
    State.PAUSING: frozenset({State.PAUSED, State.QUEUED, State.SUCCEEDED, *_ENDS}),
    State.PAUSED: frozenset({State.QUEUED, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset({State.QUEUED}),
    State.CANCELLED: frozenset({State.QUEUED}),
}
"""What may follow each state. Only a user's resume or retry leaves `failed` and `cancelled`."""

ACTIVE = frozenset({State.LEASED, State.STARTING, State.RUNNING, State.PAUSING})
"""States with an attempt: they hold devices."""

ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
"""States in which nothing more happens by itself."""


def before(state: State) -> frozenset[State]:
    """The states that `state` may follow."""
    return frozenset(earlier for earlier, later in TRANSITIONS.items() if state in later)

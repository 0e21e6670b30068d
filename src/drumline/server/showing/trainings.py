"""Trainings, attempts and waits as the API shows them. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drumline.events import finite
from drumline.jobs.reports import Event, Point, Value
from drumline.jobs.states import State
from drumline.jobs.training import Attempt, Training
from drumline.jobs.waits import Wait
from drumline.server.views import trainings as views
from drumline.server.views.common import shown, shown_if


def training(one: Training, gpu_ids: Sequence[str]) -> views.Training:
    """A training, with the devices it holds now."""
    return views.Training(**_fields(one, gpu_ids))


def detail(
    one: Training,
    gpu_ids: Sequence[str],
    attempts: Sequence[Attempt],
    metrics: Mapping[str, Value],
    waits: Wait | None,
) -> views.TrainingDetail:
    """A training with all that is known of it."""
    return views.TrainingDetail(
        **_fields(one, gpu_ids),
        config=finite(one.config),
        attempt_list=[attempt(each) for each in attempts],
        metrics={
            name: views.MetricValue(step=v.step, time=shown(v.time_ms), value=v.value)
            for name, v in metrics.items()
        },
        wait=None if waits is None else wait(one, waits),
    )


def wait(one: Training, told: Wait) -> views.Wait:
    """Why a training waits."""
    return views.Wait(
        training_id=one.id,
        name=one.name,
        owner=one.owner,
        priority=one.priority,
        queued=shown(one.queued_ms or one.created_ms),
        position=told.position,
        code=told.code,
        reason=told.reason,
        may_start=shown_if(told.may_start_ms),
        unknown=told.unknown,
        host=told.host,
    )


def attempt(one: Attempt) -> views.Attempt:
    """One attempt; its token is not shown."""
    return views.Attempt(
        number=one.number,
        host=one.host_id,
        gpu_ids=list(one.gpu_ids),
        claimed=shown(one.claimed_ms),
        running=shown_if(one.running_ms),
        ended=shown_if(one.ended_ms),
        released=shown_if(one.released_ms),
        lease_until=shown(one.lease_until_ms),
        exit_cause=one.exit_cause,
        exit_code=one.exit_code,
        verdict=one.verdict,
    )


def point(one: Point) -> views.MetricPoint:
    """A metric over a stretch of steps."""
    return views.MetricPoint(
        step=one.step,
        time=shown(one.time_ms),
        mean=one.mean,
        least=one.least,
        most=one.most,
        count=one.count,
        not_finite=one.not_finite,
    )


def event(one: Event) -> views.Event:
    """A line of the event log."""
    return views.Event(
        offset=one.offset, time=shown(one.time_ms), kind=one.kind, event=finite(dict(one.event))
    )


def _fields(one: Training, gpu_ids: Sequence[str]) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "task": one.task,
        "state": one.state,
        "owner": one.owner,
        "priority": one.priority,
        "by_hand": one.by_hand,
        "cloned_from": one.cloned_from,
        "asked_gpu_ids": list(one.gpu_ids),
        "asked_gpus": one.gpus,
        "asked_host": one.asked_host,
        "memory_bytes": one.memory_bytes,
        "expected_s": one.expected_s,
        "distributed": one.distributed,
        "host": one.host_id,
        "gpu_ids": list(gpu_ids),
        "world_size": one.world_size,
        "run_dir": one.run_dir,
        "attempts": one.attempts_made,
        "max_attempts": one.max_attempts,
        "stop_request": one.stop_request,
        "step": one.step,
        "steps": one.steps,
        "progress": _progress(one),
        "verdict": one.verdict,
        "archived": one.archived_ms is not None,
        "created": shown(one.created_ms),
        "queued": shown_if(one.queued_ms),
        "started": shown_if(one.started_ms),
        "ended": shown_if(one.ended_ms),
        "changed": shown(one.changed_ms),
    }


def _progress(one: Training) -> float | None:
    if one.state is State.SUCCEEDED:
        return 1.0
    if one.step is None or not one.steps:
        return None
    return min(1.0, one.step / one.steps)

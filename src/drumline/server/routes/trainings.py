"""Trainings: made, listed, looked at, changed, stopped, gone on with, copied, put away, deleted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from drumline.jobs.listing import MOST_PER_PAGE, Filter
from drumline.jobs.newest import newest_metrics
from drumline.jobs.states import State
from drumline.jobs.training import Training as TrainingRow
from drumline.server.asking import config_of, gpus_of, request_of
from drumline.server.availability import Availability, only_host
from drumline.server.config_rules import permitted
from drumline.server.problems import documented
from drumline.server.queue_view import look
from drumline.server.services import Given, Services, Who
from drumline.server.showing.trainings import detail, training
from drumline.server.views.common import Plain
from drumline.server.views.plans import Plan
from drumline.server.views.trainings import (
    ChangeTraining,
    CloneTraining,
    CreateTraining,
    PlanTraining,
    Training,
    TrainingDetail,
    Trainings,
)

router = APIRouter(prefix="/trainings", tags=["trainings"])

ABSENT = documented(404)
WRONG_STATE = documented(404, 409)
Text = Annotated[Plain | None, Query(max_length=255)]


@router.get("")
def list_trainings(
    given: Given,
    state: Annotated[list[State] | None, Query(description="Only in these states.")] = None,
    owner: Text = None,
    task: Text = None,
    host: Text = None,
    text: Annotated[
        Plain | None,
        Query(max_length=255, description="Found in name, id or run directory, in any case."),
    ] = None,
    archived: Annotated[bool, Query(description="Those put away, in place of the others.")] = False,
    limit: Annotated[int, Query(ge=1, le=MOST_PER_PAGE, description="How many at most.")] = 50,
    cursor: Annotated[
        str | None, Query(max_length=200, description="`next_cursor` of the part before.")
    ] = None,
) -> Trainings:
    """Trainings, the newest first."""
    wanted = Filter(tuple(state or ()), owner, task, host, text, archived)
    page = given.trainings.list(wanted, limit=limit, cursor=cursor)
    held = _held(given)
    items = [training(one, held.get(one.id, ())) for one in page.items]
    return Trainings(items=items, next_cursor=page.next_cursor)


@router.post("", status_code=201, responses=documented(409))
def create_training(
    body: CreateTraining,
    given: Given,
    who: Who,
    response: Response,
    idempotency_key: Annotated[
        Plain | None,
        Header(max_length=255, description="A second request with this key makes nothing new."),
    ] = None,
) -> Training:
    """Queue a training. Without `gpu_ids` its devices are chosen when it starts."""
    made = given.trainings.create(request_of(body, who.name, idempotency_key, given))
    given.wake()
    response.headers["Location"] = f"/api/v1/trainings/{made.id}"
    return _shown(made, given)


@router.post("/plan", responses=documented(404, 504))
def plan_training(body: PlanTraining, given: Given) -> Plan:
    """What a run would do on the devices that are free now, and why. Nothing is made. It takes
    seconds, as the task's step is traced for the memory it needs.
    """
    availability = Availability(given)
    view = only_host(availability.hosts_there(body.host))
    gpus, devices = gpus_of(body), None
    if body.gpu_ids:
        devices = ",".join(view.machine.device(one).uuid for one in body.gpu_ids) + ","
    elif gpus is not None:
        devices = "cpu" if gpus == 0 else str(gpus)
    config = config_of(body, body.config, given, devices)
    occupied = set().union(*availability.taken())
    made = given.planner.plan(config, view.machine, occupied)
    return Plan.model_validate({"host": view.id, **made})


@router.get("/{training_id}", responses=ABSENT)
def get_training(training_id: str, given: Given) -> TrainingDetail:
    """One training with all that is known of it, and if it waits, why."""
    one = given.trainings.get(training_id)
    waits = look(given).waits.get(one.id) if one.state is State.QUEUED else None
    with given.database.reading() as connection:
        newest = newest_metrics(connection, [one.id]).get(one.id, {})
    return detail(
        one,
        _held(given).get(one.id, ()),
        given.trainings.attempts(one.id),
        newest,
        waits,
    )


@router.patch("/{training_id}", responses=WRONG_STATE)
def change_training(training_id: str, body: ChangeTraining, given: Given) -> Training:
    """Change its name or its priority."""
    changed = given.trainings.change(training_id, name=body.name, priority=body.priority)
    given.wake()
    return _shown(changed, given)


@router.delete("/{training_id}", status_code=204, responses=WRONG_STATE)
def delete_training(training_id: str, given: Given) -> None:
    """Forget one that has ended, or a draft, with all it reported. Its files stay."""
    given.trainings.delete(training_id)


@router.post("/{training_id}/enqueue", responses=WRONG_STATE)
def enqueue_training(training_id: str, given: Given) -> Training:
    """Queue a draft."""
    return _woken(given.trainings.enqueue(training_id), given)


@router.post("/{training_id}/cancel", responses=WRONG_STATE)
def cancel_training(training_id: str, given: Given) -> Training:
    """Cancel: at once where it does not run; else it is asked to save and stop."""
    return _woken(given.trainings.cancel(training_id), given)


@router.post("/{training_id}/pause", responses=WRONG_STATE)
def pause_training(training_id: str, given: Given) -> Training:
    """Take it out of the queue, or have it save and stop, to be resumed later."""
    return _woken(given.trainings.pause(training_id), given)


@router.post("/{training_id}/resume", responses=WRONG_STATE)
def resume_training(training_id: str, given: Given) -> Training:
    """Queue one that was paused, failed or was cancelled, to go on from its last checkpoint."""
    return _woken(given.trainings.resume(training_id), given)


@router.post("/{training_id}/retry", responses=WRONG_STATE)
def retry_training(training_id: str, given: Given) -> Training:
    """Queue one that failed or was cancelled, to begin anew in a new run directory."""
    return _woken(given.trainings.retry(training_id), given)


@router.post("/{training_id}/clone", status_code=201, responses=ABSENT)
def clone_training(training_id: str, body: CloneTraining, given: Given, who: Who) -> Training:
    """Make a new one like it, with what is given changed."""
    changes = body.model_dump(exclude_none=True) | {"owner": who.name}
    source = given.trainings.get(training_id)
    changes["config"] = permitted(body.config or _portable(source), given.settings)
    return _woken(given.trainings.clone(training_id, **changes), given)


@router.post("/{training_id}/archive", responses=WRONG_STATE)
def archive_training(training_id: str, given: Given) -> Training:
    """Take one that has ended out of lists."""
    return _shown(given.trainings.archive(training_id), given)


@router.post("/{training_id}/unarchive", responses=WRONG_STATE)
def unarchive_training(training_id: str, given: Given) -> Training:
    """Put it back into lists."""
    return _shown(given.trainings.archive(training_id, archived=False), given)


def _woken(one: TrainingRow, given: Services) -> Training:
    given.wake()
    return _shown(one, given)


def _shown(one: TrainingRow, given: Services) -> Training:
    return training(one, _held(given).get(one.id, ()))


def _held(given: Services) -> dict[str, list[str]]:
    """UUIDs of leased devices by the training that holds them."""
    found: dict[str, list[str]] = {}
    for uuid, device in given.leases.held().items():
        found.setdefault(device.training_id, []).append(uuid)
    return found


def _portable(source: TrainingRow) -> dict[str, object]:
    """The config of a training without where it ran."""
    return {
        key: value for key, value in source.config.items() if key not in ("run_dir", "runs_dir")
    }

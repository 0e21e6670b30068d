"""What a training has reported and left: metrics, events, logs, artifacts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from drumline.server.problems import documented
from drumline.server.run_files import CHUNK_BYTES, LOGS, RunFiles
from drumline.server.services import Given
from drumline.server.showing.trainings import event, point
from drumline.server.views.common import Plain, shown
from drumline.server.views.trainings import (
    Artifact,
    Artifacts,
    Events,
    LogFile,
    Logs,
    LogTail,
    TrainingMetrics,
)

router = APIRouter(prefix="/trainings/{training_id}", tags=["trainings"], responses=documented(404))

MOST_LOG_BYTES = 1 << 20
LARGEST = 2**63 - 1
Names = Annotated[list[Plain] | None, Query(max_length=100)]
Step = Annotated[int | None, Query(ge=0, le=LARGEST)]
FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
}


@router.get("/metrics")
def get_training_metrics(
    training_id: str,
    given: Given,
    names: Names = None,
    from_step: Step = None,
    to_step: Step = None,
    points: Annotated[int, Query(ge=1, le=10_000, description="Of each metric at most.")] = 500,
) -> TrainingMetrics:
    """Metrics over a range of steps, by default all, thinned to so many points each."""
    one = given.trainings.get(training_id)
    found = given.trainings.reports.metrics(
        one.id, names or (), from_step=from_step, to_step=to_step, points=points
    )
    metrics = {name: [point(each) for each in listed] for name, listed in found.items()}
    return TrainingMetrics(metrics=metrics)


@router.get("/events")
def list_training_events(
    training_id: str,
    given: Given,
    after: Annotated[
        int, Query(ge=-1, le=LARGEST, description="`after` of the part before; -1: all.")
    ] = -1,
    kinds: Names = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="How many at most.")] = 200,
    last: Annotated[bool, Query(description="The last so many, in place of the first.")] = False,
) -> Events:
    """Events of the run, in order. To follow them, ask again with the `after` of the answer."""
    one = given.trainings.get(training_id)
    found = given.trainings.reports.events(
        one.id, after=after, kinds=kinds or (), limit=limit, last=last
    )
    return Events(items=[event(each) for each in found], after=found[-1].offset if found else after)


@router.get("/logs")
def list_training_logs(training_id: str, given: Given) -> Logs:
    """The logs there are."""
    files = RunFiles(given.trainings.get(training_id), given.settings)
    return Logs(
        logs=[LogFile(name=name, rank=rank, bytes=size) for name, rank, size in files.logs()]
    )


@router.get("/logs/tail")
def get_training_log(
    training_id: str,
    given: Given,
    rank: Annotated[int, Query(ge=0, le=100_000, description="The log of which rank.")] = 0,
    name: Annotated[
        Plain | None, Query(max_length=200, description="Another log, by its name.")
    ] = None,
    offset: Annotated[
        int | None,
        Query(ge=0, le=LARGEST, description="From this byte on; by default the end of the log."),
    ] = None,
    bytes_: Annotated[
        int, Query(alias="bytes", ge=1, le=MOST_LOG_BYTES, description="How much at most.")
    ] = 65_536,
) -> LogTail:
    """The end of a log, or what comes after a byte of it. To follow it, ask again with the
    `next_offset` of the answer.
    """
    files = RunFiles(given.trainings.get(training_id), given.settings)
    wanted = name or f"rank-{rank}.log"
    part = files.read(f"{LOGS}/{wanted}", offset, bytes_)
    return LogTail(
        name=wanted,
        text=part.data.decode(errors="replace"),
        offset=part.offset,
        next_offset=part.offset + len(part.data),
        bytes=part.size,
    )


@router.get("/artifacts")
def list_artifacts(training_id: str, given: Given) -> Artifacts:
    """Files that the run has made: checkpoints, exports, plots, tables, records."""
    found, complete = RunFiles(given.trainings.get(training_id), given.settings).all()
    return Artifacts(
        artifacts=[
            Artifact(path=one.path, kind=one.kind, bytes=one.bytes, modified=shown(one.modified_ms))
            for one in found
        ],
        complete=complete,
    )


@router.get("/artifacts/{path:path}", response_class=StreamingResponse, responses=FILE)
def get_artifact(training_id: str, path: str, given: Given) -> StreamingResponse:
    """One file, to be kept."""
    files = RunFiles(given.trainings.get(training_id), given.settings)
    fd, size = files.open(path)
    name = path.rpartition("/")[2][-200:]
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    headers = {
        "Content-Length": str(size),
        "Content-Disposition": f'attachment; filename="{plain}"',
    }
    return StreamingResponse(
        _chunks(fd, size), media_type="application/octet-stream", headers=headers
    )


def _chunks(fd: int, size: int) -> Iterator[bytes]:
    """So many bytes of an open file, which is closed at the end."""
    try:
        while size > 0 and (chunk := os.read(fd, min(size, CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk
    finally:
        os.close(fd)

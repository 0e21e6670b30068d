"""Every route of the API under requests made from its own description, valid ones and others: no
answer is 500, and each is as described.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from drumline.database import now_ms, open_database
from drumline.hardware import Machine
from drumline.server.config_rules import permitted
from service_app import TRAINING, App

HEADERS = {"Host": "localhost"}
AN_HOUR_MS = 3_600_000
"""So far ahead the host is heard of: it is not to fall silent however long the requests take."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


class OnePlan:
    """A plan that was made once, for every request that gets so far: each takes seconds."""

    def __init__(self, app: App) -> None:
        config = permitted(TRAINING, app.settings)
        machine = app.services.inventory.machines()[0].machine
        self.made = app.services.planner.plan(config, machine, ())

    def plan(self, *_asked: object) -> dict[str, Any]:
        return self.made


def test_every_route_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    check_all(App(open_database(sqlite_url), tmp_path), examples=6)


def test_every_route_on_postgresql(postgresql_url: str, tmp_path: Path) -> None:
    check_all(App(open_database(postgresql_url), tmp_path), examples=2)


def check_all(app: App, examples: int) -> None:
    app.record(Machine.probe(simulate="4xH100"), time_ms=now_ms() + AN_HOUR_MS)
    made = app.train()
    app.services.planner = OnePlan(app)  # type: ignore[assignment]
    schema: Any = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app.app, headers=HEADERS)
    seen = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        name = operation.definition.raw["operationId"]
        seen.add(name)
        check(operation, GenerationMode.POSITIVE, examples, known=made["id"])
        if operation.definition.raw.get("parameters") or operation.body:
            check(operation, GenerationMode.NEGATIVE, examples, known=made["id"])
    assert {"list_gpus", "create_training", "plan_training", "get_artifact", "get_queue"} <= seen
    asked = {"config": TRAINING}
    assert app.client.post("/api/v1/trainings/plan", json=asked).status_code == 200


def check(operation: Any, mode: GenerationMode, examples: int, known: str) -> None:
    """Requests to one route; a training in its path is now and then one that there is."""
    turn = 0

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        nonlocal turn
        turn += 1
        if "training_id" in (case.path_parameters or {}) and turn % 2:
            case.path_parameters["training_id"] = known
        response = case.call(headers=HEADERS)
        case.validate_response(response, checks=CHECKS)

    run()

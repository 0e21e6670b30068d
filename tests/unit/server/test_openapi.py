"""The description of the API is complete: names, meanings, problems, no loose ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drumline.database import open_database
from drumline.jobs.states import State
from drumline.server.problems import MEDIA_TYPE
from service_app import App

SUCCESS = {"200", "201", "204"}


@pytest.fixture
def described(sqlite_url: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    database = open_database(sqlite_url)
    yield App(database, tmp_path).client.get("/api/v1/openapi.json").json()
    database.close()


def operations(described: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method} {path}", operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does(
    described: dict[str, Any],
) -> None:
    found = operations(described)
    names = [operation["operationId"] for _, operation in found]
    assert len(names) == len(set(names)) >= 30
    assert {"list_gpus", "get_gpu", "create_training", "plan_training", "get_queue"} <= set(names)
    for where, operation in found:
        assert operation.get("description") or operation.get("summary"), where
        assert operation["tags"], where


def test_every_answer_has_a_model_and_every_field_a_meaning(described: dict[str, Any]) -> None:
    for where, operation in operations(described):
        (status,) = SUCCESS & set(operation["responses"])
        if status != "204":
            (content,) = operation["responses"][status]["content"].values()
            assert content["schema"], where
    schemas = described["components"]["schemas"]
    for name, schema in schemas.items():
        assert schema.get("description"), name
        for field, told in schema.get("properties", {}).items():
            meant = schemas.get(str(told.get("$ref")).rpartition("/")[2], {})
            assert told.get("description") or meant.get("description"), f"{name}.{field}"


def test_every_problem_is_a_problem_document(described: dict[str, Any]) -> None:
    for where, operation in operations(described):
        problems = set(operation["responses"]) - SUCCESS
        assert {"401", "403", "422", "500"} <= problems, where
        for status in problems:
            assert list(operation["responses"][status]["content"]) == [MEDIA_TYPE], where
    assert {"type", "title", "status", "detail"} <= set(
        described["components"]["schemas"]["Problem"]["properties"]
    )


def test_nothing_points_nowhere(described: dict[str, Any]) -> None:
    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    found = set(references(described))
    assert found and found <= known
    used = {name.rpartition("/")[2] for name in found}
    assert not {"HTTPValidationError", "ValidationError"} & set(described["components"]["schemas"])
    assert {"Gpu", "TrainingDetail", "Plan", "AggregatedMetrics", "Problem"} <= used


def test_states_are_an_enumeration(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    assert schemas["State"]["enum"] == [state.value for state in State]
    assert set(schemas["GpuStatus"]["enum"]) >= {"free", "leased", "busy", "unhealthy", "lost"}


def test_both_ways_in_are_described(described: dict[str, Any]) -> None:
    assert set(described["components"]["securitySchemes"]) == {"bearer", "cookie"}


def test_the_schema_of_a_config_describes_every_key(sqlite_url: str, tmp_path: Path) -> None:
    client = App(open_database(sqlite_url), tmp_path).client
    for task in client.get("/api/v1/tasks").json()["tasks"]:
        schema = client.get(f"/api/v1/tasks/{task['name']}").json()["config_schema"]
        assert task["summary"].endswith(".")
        assert "task" in schema["required"] and "run_dir" not in schema["properties"]
        own = schema["$defs"]["Task"]
        assert own["properties"]["name"]["const"] == task["name"]
        for part in (schema, own):
            for key, told in part["properties"].items():
                assert told.get("description"), key
    assert client.get("/api/v1/tasks/os:system").status_code == 404

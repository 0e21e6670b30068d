"""Every error is a problem document: right status, code and remedy, and nothing of the inside."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumline.database import DatabaseError, open_database
from drumline.errors import BadInput, ConfigError, ConfigProblem, DrumlineError
from drumline.jobs.errors import UnknownTraining, WrongState
from drumline.server.errors import TooOften
from drumline.server.problems import problem_of, response_of
from service_app import App


@pytest.fixture
def app(sqlite_url: str, tmp_path: Path) -> Iterator[App]:
    database = open_database(sqlite_url)
    yield App(database, tmp_path)
    database.close()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownTraining("x"), 404),
        (WrongState("x", "running", "archived", ["failed"]), 409),
        (BadInput("no"), 422),
        (DatabaseError("away"), 503),
        (DrumlineError("broken"), 500),
    ],
)
def test_each_error_has_its_status(error: DrumlineError, status: int) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.code) == (status, error.code)
    assert problem.type == f"urn:drumline:problem:{error.code}"
    assert problem.remedy == error.remedy


def test_every_wrong_key_of_a_config_is_a_field() -> None:
    problems = [
        ConfigProblem("steps", -1, "too few", "Give more."),
        ConfigProblem("task.k", "x", "no number", "Give one."),
    ]
    problem = problem_of(ConfigError("The config", problems))
    assert problem.detail == "The config cannot be used: steps, task.k."
    assert [(f.field, f.value, f.remedy) for f in problem.fields] == [
        ("steps", -1, "Give more."),
        ("task.k", "x", "Give one."),
    ]
    assert problem.field is None
    assert problem_of(ConfigError("The config", problems[:1])).field == "steps"


def test_who_comes_too_often_is_told_when_to_come_again() -> None:
    response = response_of(problem_of(TooOften("Asking is tried too often.", retry_after_s=7)))
    assert response.status_code == 429
    assert response.headers["Retry-After"] == "7"


def test_a_field_of_a_wrong_type_is_named(app: App) -> None:
    answer = app.client.post("/api/v1/trainings", json={"config": {}, "priority": "high", "x": 1})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    told = {field["field"]: field["value"] for field in answer.json()["fields"]}
    assert told == {"priority": "high", "x": 1}


def test_a_secret_of_a_wrong_shape_is_not_sent_back(app: App) -> None:
    secret = "drumline_" + "s" * 300
    answer = app.client.post("/api/v1/session", json={"token": secret})
    assert answer.status_code == 422
    assert answer.json()["field"] == "token"
    assert "ssss" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/api/v1/nothing", 404), ("PUT", "/api/v1/trainings", 405)],
)
def test_what_is_not_there(app: App, method: str, path: str, status: int) -> None:
    answer = app.client.request(method, path)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"


def test_bodies_are_bounded_whether_their_length_is_told_or_not(app: App) -> None:
    whole = b"x" * 1_048_577
    pieces = (whole[begin : begin + 65_536] for begin in range(0, len(whole), 65_536))
    for content in (whole, pieces):
        answer = app.client.post("/api/v1/trainings", content=content)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_an_unforeseen_error_tells_a_number_and_the_log_the_rest(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a password is hunter2")

    monkeypatch.setattr(app.services.trainings, "list", broken)
    with caplog.at_level(logging.ERROR):
        answer = app.client.get("/api/v1/trainings")
    told = answer.json()
    assert (answer.status_code, told["code"]) == (500, "unexpected")
    assert "hunter2" not in answer.text and "RuntimeError" not in answer.text
    (record,) = [r for r in caplog.records if told["id"] in r.getMessage()]
    assert record.exc_info is not None and "hunter2" in str(record.exc_info[1])


def test_a_database_that_is_away_is_told_of(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise DatabaseError("The database does not answer.", remedy="See that it runs.")

    monkeypatch.setattr(app.services.trainings, "list", away)
    answer = app.client.get("/api/v1/trainings")
    assert (answer.status_code, answer.json()["code"]) == (503, "database")
    monkeypatch.setattr(app.services.inventory, "machines", away)
    health = app.client.get("/api/v1/system/health")
    assert (health.status_code, health.json()["ok"]) == (200, False)

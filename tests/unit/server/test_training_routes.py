"""Trainings over HTTP: through their states, in pages, with what they reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drumline.database import open_database
from drumline.jobs.outcome import Outcomes
from drumline.jobs.reports import Batch, Event, Value
from drumline.server.access.identity import Role
from service_app import HOST, TRAINING, App

API = "/api/v1/trainings"


@pytest.fixture
def app(database_url: str, tmp_path: Path) -> Iterator[App]:
    database = open_database(database_url)
    yield App(database, tmp_path)
    database.close()


def do(app: App, training: dict[str, Any], action: str) -> Any:
    return app.client.post(f"{API}/{training['id']}/{action}")


def test_a_training_is_made_found_and_described(app: App) -> None:
    answer = app.client.post(API, json={"config": TRAINING, "name": "First", "priority": 3})
    made = answer.json()
    assert answer.headers["Location"] == f"{API}/{made['id']}"
    assert (made["state"], made["owner"], made["priority"]) == ("queued", "local", 3)
    detail = app.client.get(answer.headers["Location"]).json()
    assert detail["config"]["task"]["environment"]["name"] == "cartpole_memory"
    assert (detail["wait"]["code"], detail["wait"]["host"]) == ("next", HOST)
    assert {key: detail[key] for key in made} == made
    found = app.client.get(API, params={"text": "fIRST", "state": ["queued", "draft"]}).json()
    assert [one["id"] for one in found["items"]] == [made["id"]]
    assert app.client.get(API, params={"state": "failed"}).json()["items"] == []


def test_pages_neither_repeat_nor_leave_out(app: App) -> None:
    made = [app.train(name=f"n{turn}")["id"] for turn in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = app.client.get(API, params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
        seen += [one["id"] for one in page.json()["items"]]
        cursor = page.json()["next_cursor"]
        if cursor is None:
            break
        app.train(name="made meanwhile")
    assert sorted(seen) == sorted(made)
    assert app.client.get(API, params={"cursor": "x!"}).status_code == 422


def test_a_key_makes_one_training(app: App) -> None:
    def post(name: str) -> Any:
        body = {"config": TRAINING, "name": name}
        return app.client.post(API, json=body, headers={"Idempotency-Key": "k"})

    first = post("a").json()
    assert post("a").json()["id"] == first["id"]
    conflict = post("b")
    assert (conflict.status_code, conflict.json()["code"]) == (409, "idempotency_conflict")
    assert len(app.client.get(API).json()["items"]) == 1


def test_the_owner_is_whose_token_it_is(app: App) -> None:
    headers = {"Authorization": f"Bearer {app.token(Role.OPERATOR, 'ann')}"}
    made = app.client.post(API, json={"config": TRAINING}, headers=headers).json()
    assert made["owner"] == "ann"
    copied = app.client.post(f"{API}/{made['id']}/clone", json={}).json()
    assert (copied["owner"], copied["cloned_from"]) == ("local", made["id"])
    claimed = app.client.post(API, json={"config": TRAINING, "owner": "bob"})
    assert claimed.json()["field"] == "owner"


@pytest.mark.parametrize(
    ("asked", "mode", "gpus"),
    [
        ({"distributed": False}, "none", 1),
        ({"distributed": True}, "auto", "auto"),
        ({"gpus": 2}, "auto", 2),
        ({"gpus": 0}, "auto", 0),
        ({"gpus": "all", "distributed": True}, "auto", "all"),
        ({"gpu_ids": ["1", "3"]}, "auto", 2),
    ],
)
def test_devices_asked_for(app: App, asked: dict[str, Any], mode: str, gpus: object) -> None:
    made = app.train(**asked)
    config = app.client.get(f"{API}/{made['id']}").json()["config"]
    assert (config["distributed"]["mode"], made["asked_gpus"]) == (mode, gpus)
    if "gpu_ids" in asked:
        known = [d.uuid for d in app.services.inventory.machines()[0].machine.devices]
        assert made["asked_gpu_ids"] == [known[1], known[3]]


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"gpus": 2, "distributed": False}, "bad_input", "distributed"),
        ({"gpu_ids": ["0", "0"]}, "bad_devices", "gpu_ids"),
        ({"gpu_ids": ["GPU-none"]}, "bad_devices", "gpu_ids"),
        ({"config": {**TRAINING, "devices": "GPU-none"}}, "bad_devices", "config.devices"),
        ({"gpus": -1}, "bad_request", "gpus.constrained-int"),
        ({"config": {**TRAINING, "run_dir": "/tmp/x"}}, "bad_config", "run_dir"),
        ({"config": {**TRAINING, "global_batsh": 3}}, "bad_config", "global_batsh"),
        (
            {"config": {**TRAINING, "distributed": {"mode": "sideways"}}},
            "bad_config",
            "distributed.mode",
        ),
        (
            {"config": {**TRAINING, "distributed": 3}, "distributed": True},
            "bad_config",
            "distributed.mode",
        ),
    ],
)
def test_what_cannot_be_asked_makes_nothing(
    app: App, body: dict[str, Any], code: str, field: str
) -> None:
    answer = app.client.post(API, json={"config": TRAINING} | body)
    told = answer.json()
    assert (answer.status_code, told["code"]) == (422, code), answer.text
    assert field in [told["field"], *(one["field"] for one in told["fields"])], told
    assert app.client.get(API).json()["items"] == []


def _json(config: str, rest: str = "") -> str:
    return f'{{"config": {config}{rest}}}'


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (_json(json.dumps({**TRAINING, "name": "\ud800"})), 422, "name"),
        (_json(json.dumps({**TRAINING, "\ud800": 1})), 422, "'\\ud800'"),
        (_json(json.dumps({**TRAINING, "name": "a\x00b"})), 422, "name"),
        (_json(json.dumps({**TRAINING, "seed": 2**63})), 422, "seed"),
        (_json(json.dumps({**TRAINING, "clip_norm": float("nan")})), 422, "clip_norm"),
        (_json('{"optimizer": {"lr": 1e999}}'), 422, "optimizer.lr"),
        (_json(json.dumps({**TRAINING, "devices": "9" * 400})), 422, None),
        (_json(json.dumps(TRAINING), ', "gpus": true'), 422, None),
        (_json(json.dumps(TRAINING), ', "name": "\\ud800"'), 422, "name"),
        (_json(json.dumps(TRAINING), ', "\\ud800": 1'), 422, "body"),
        (_json('{"a":' * 3000 + "1" + "}" * 3000), 400, None),
        (_json("1" + "0" * 5000), 400, None),
        ("{", 422, "body"),
        ("[]", 422, "body"),
    ],
)
def test_odd_bodies_get_a_problem_on_either_engine(
    app: App, body: str, status: int, field: str | None
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = app.client.post(API, content=body.encode(), headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    if field is not None:
        assert answer.json()["field"] == field
    assert app.client.get(API).json()["items"] == []


def test_from_draft_to_deleted(app: App) -> None:
    made = app.train(draft=True)
    assert made["state"] == "draft"
    wrong = do(app, made, "resume")
    assert (wrong.status_code, wrong.json()["code"]) == (409, "wrong_state")
    for action, state in (
        ("enqueue", "queued"),
        ("pause", "paused"),
        ("resume", "queued"),
        ("cancel", "cancelled"),
        ("cancel", "cancelled"),
        ("retry", "queued"),
        ("cancel", "cancelled"),
    ):
        assert do(app, made, action).json()["state"] == state, action
    assert do(app, made, "archive").json()["archived"] is True
    assert app.client.get(API).json()["items"] == []
    assert len(app.client.get(API, params={"archived": True}).json()["items"]) == 1
    assert do(app, made, "unarchive").json()["archived"] is False
    assert app.client.delete(f"{API}/{made['id']}").status_code == 204
    for path in ("", "/metrics", "/events", "/logs", "/artifacts"):
        assert app.client.get(f"{API}/{made['id']}{path}").status_code == 404
    assert do(app, made, "cancel").json()["code"] == "unknown_training"


def test_what_waits_or_runs_is_not_deleted(app: App) -> None:
    made = app.train()
    answer = app.client.delete(f"{API}/{made['id']}")
    assert (answer.status_code, answer.json()["values"]["state"]) == (409, "queued")


def test_name_and_priority_change_and_the_queue_with_them(app: App) -> None:
    first, second = app.train(name="a", gpus=4), app.train(name="b", gpus=4)

    def order() -> list[str]:
        return [one["training_id"] for one in app.client.get("/api/v1/queue").json()["items"]]

    assert order() == [first["id"], second["id"]]
    changed = app.client.patch(f"{API}/{second['id']}", json={"priority": 5, "name": "c"}).json()
    assert (changed["priority"], changed["name"]) == (5, "c")
    assert order() == [second["id"], first["id"]]
    assert app.client.patch(f"{API}/none", json={}).status_code == 404
    assert app.client.patch(f"{API}/{first['id']}", json={"state": "running"}).status_code == 422


def test_the_queue_says_why_and_when(app: App) -> None:
    running = app.train(gpus=3, expected_s=3600)
    machine = app.services.inventory.machines()[0].machine
    assert app.services.leases.claim(HOST, machine) is not None
    waiting, large = app.train(gpus=4), app.train(gpus=9)
    told = app.client.get("/api/v1/queue").json()
    assert told["hosts"] == 1
    by_id = {one["training_id"]: one for one in told["items"]}
    assert by_id[waiting["id"]]["code"] == "devices"
    assert f"held by training {running['id']}" in by_id[waiting["id"]]["reason"]
    assert by_id[waiting["id"]]["may_start"] > running["created"]
    assert by_id[large["id"]]["code"] == "impossible"
    assert (by_id[large["id"]]["may_start"], bool(by_id[large["id"]]["unknown"])) == (None, True)
    assert app.client.get(f"{API}/{running['id']}").json()["wait"] is None


def test_a_running_one_shows_devices_attempt_metrics_and_events(app: App) -> None:
    made = app.train(gpus=2)
    machine = app.services.inventory.machines()[0].machine
    claim = app.services.leases.claim(HOST, machine)
    assert claim is not None
    outcomes, reports = Outcomes(app.database), app.services.trainings.reports
    outcomes.starting(claim.token, run_dir="/runs/x", process_id=1, process_started=1.0)
    outcomes.running(claim.token)
    values = tuple(Value("loss", step, 1000 * step, 10.0 - step) for step in range(1, 5))
    bad = Value("loss", 5, 5000, float("nan"))
    events = tuple(Event(100 * n, 1000 * n, "note", {"n": n}) for n in range(4))
    reports.write(claim.token, Batch((*values, bad), events, offset=400, step=5, steps=10))

    detail = app.client.get(f"{API}/{made['id']}").json()
    assert (detail["state"], detail["step"], detail["progress"]) == ("running", 5, 0.5)
    assert sorted(detail["gpu_ids"]) == sorted(claim.gpu_ids)
    (attempt,) = detail["attempt_list"]
    assert (attempt["number"], attempt["host"], attempt["ended"]) == (1, HOST, None)
    assert claim.token not in app.client.get(f"{API}/{made['id']}").text
    assert detail["metrics"]["loss"] == {
        "step": 5, "time": "1970-01-01T00:00:05.000Z", "value": None
    }  # fmt: skip
    metrics = app.client.get(f"{API}/{made['id']}/metrics", params={"points": 1}).json()["metrics"]
    assert metrics["loss"] == [
        {"step": 5, "time": "1970-01-01T00:00:05.000Z", "mean": 7.5, "least": 6.0, "most": 9.0,
         "count": 4, "not_finite": 1}
    ]  # fmt: skip
    first = app.client.get(f"{API}/{made['id']}/events", params={"limit": 3}).json()
    assert [one["offset"] for one in first["items"]] == [0, 100, 200]
    rest = app.client.get(f"{API}/{made['id']}/events", params={"after": first["after"]}).json()
    assert [one["event"] for one in rest["items"]] == [{"n": 3}]
    assert app.client.get(f"{API}/{made['id']}/events", params={"after": 300}).json() == {
        "items": [], "after": 300
    }  # fmt: skip
    last = app.client.get(f"{API}/{made['id']}/events", params={"last": True, "limit": 2}).json()
    assert [one["offset"] for one in last["items"]] == [200, 300]
    assert do(app, made, "cancel").json()["stop_request"] == "cancel"


def test_agents_are_woken_when_there_is_something_for_them(app: App) -> None:
    woken: list[int] = []
    app.services.wake = lambda: woken.append(1)
    made = app.train()
    do(app, made, "cancel")
    do(app, made, "retry")
    app.client.get(API)
    assert len(woken) == 3


def test_a_copy_may_have_another_config_within_the_rules(app: App) -> None:
    made = app.train(name="a", priority=2)
    copied = app.client.post(
        f"{API}/{made['id']}/clone", json={"config": {**TRAINING, "seed": 7}, "draft": True}
    ).json()
    assert (copied["name"], copied["priority"], copied["state"]) == ("a", 2, "draft")
    assert app.client.get(f"{API}/{copied['id']}").json()["config"]["seed"] == 7
    bad = {"config": {**TRAINING, "run_dir": "/x"}}
    assert app.client.post(f"{API}/{made['id']}/clone", json=bad).status_code == 422

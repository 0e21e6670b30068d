"""`drumline serve` and `drumline token` as real processes: a first training over HTTP, several
hosts, a clean end.
"""

from __future__ import annotations

import re
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from support import Finished, Running, run_to_end, started, until

from service_databases import redis_database

SERVE = ["-m", "drumline", "serve", "--port", "0"]
TRAINING = {
    "task": {
        "name": "clstm_ppo",
        "environment": {"name": "cartpole_memory"},
        "environments": 4,
        "total_steps": 256,
        "rollout_steps": 32,
        "rollout_epochs": 1,
        "evaluation": {"episodes": 2},
    },
    "global_batch": 64,
}


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {
        "DRUMLINE_HOME": str(folder / "home"),
        "DRUMLINE_RUN_ROOT": str(folder / "runs"),
        "DRUMLINE_LOCK_FOLDER": str(folder / "locks"),
        "DRUMLINE_SIMULATE": "8xH100",
        "DRUMLINE_SAMPLE_EVERY_S": "0.5",
        "DRUMLINE_POLL_S": "0.2",
        **more,
    }


@contextmanager
def serving(folder: Path, *arguments: str, **more: str) -> Iterator[tuple[Running, httpx.Client]]:
    """A service, and a client of it."""
    with started([*SERVE, *arguments], folder / "service", **environment(folder, **more)) as one:

        def url() -> str | None:
            found = re.search(r"serves at (http://\S+)", one.printed())
            return found[1] if found else None

        base = until("its URL", url, alive=one.assert_running)
        with httpx.Client(base_url=f"{base}/api/v1", timeout=60) as client:
            yield one, client


def fails(folder: Path, *arguments: str, **more: str) -> Finished:
    """A service that does not start; it says why in a line."""
    command = ["-m", "drumline", "serve", *arguments]
    ended = run_to_end(command, folder / "service", **environment(folder, **more))
    assert "Traceback" not in ended.err and "serves at" not in ended.out
    return ended


def token(folder: Path, role: str, **more: str) -> str:
    command = ["-m", "drumline", "token", "create", "--role", role, "--name", "ann"]
    return (
        run_to_end(command, folder / "cli", **environment(folder, **more)).succeeded().out.strip()
    )


def state(client: httpx.Client, training: str) -> dict[str, Any]:
    answer = client.get(f"/trainings/{training}")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_a_first_training_over_http(tmp_path: Path) -> None:
    with serving(tmp_path) as (service, client):

        def devices() -> list[dict[str, Any]] | None:
            found = client.get("/system/gpus").json()["gpus"]
            return found if len(found) == 8 else None

        gpus = until("8 devices", devices, alive=service.assert_running)
        assert {gpu["status"] for gpu in gpus} == {"free"}
        assert client.get("/system/health").json()["ok"]
        made = client.post("/trainings", json={"config": TRAINING, "gpus": 2}).json()

        def done() -> dict[str, Any] | None:
            now = state(client, made["id"])
            return now if now["state"] in ("succeeded", "failed") else None

        ended = until("its end", done, alive=service.assert_running)
        assert (ended["state"], ended["progress"], ended["gpu_ids"]) == ("succeeded", 1.0, [])
        assert len(ended["attempt_list"][0]["gpu_ids"]) == 2
        paths = [
            a["path"] for a in client.get(f"/trainings/{made['id']}/artifacts").json()["artifacts"]
        ]
        weights = next(path for path in paths if path.endswith("model.safetensors"))
        assert len(client.get(f"/trainings/{made['id']}/artifacts/{weights}").content) > 1000
        events = client.get(f"/trainings/{made['id']}/events", params={"last": True}).json()
        assert events["items"][-1]["kind"] == "attempt_ended"
        assert client.get(f"/trainings/{made['id']}/metrics").json()["metrics"]
        service.interrupt()
        ended_service = service.finish()
    ended_service.succeeded()
    assert "Traceback" not in ended_service.err


def test_several_hosts(postgresql_url: str, tmp_path: Path) -> None:
    more = {
        "DRUMLINE_DATABASE_URL": postgresql_url,
        "DRUMLINE_BROKER_URL": redis_database(8 + secrets.randbelow(7)),
    }
    with serving(tmp_path, **more) as (service, client):
        made = client.post("/trainings", json={"config": TRAINING, "gpus": 2}).json()
        assert state(client, made["id"])["wait"]["code"] == "no_host"
        agent = ["-m", "drumline", "agent"]
        with started(agent, tmp_path / "agent", **environment(tmp_path, **more)) as running:

            def taken() -> bool:
                return state(client, made["id"])["state"] != "queued"

            until("it to be taken", taken, alive=running.assert_running)
            statuses = [gpu["status"] for gpu in client.get("/system/gpus").json()["gpus"]]
            assert (statuses.count("leased"), len(statuses)) == (2, 8)
            client.post(f"/trainings/{made['id']}/cancel").raise_for_status()

            def ended() -> bool:
                return state(client, made["id"])["state"] in ("cancelled", "succeeded")

            until("its end", ended, alive=running.assert_running)
        service.signal(signal.SIGTERM)
        service.finish().succeeded()


def test_others_need_a_token(tmp_path: Path) -> None:
    refused = fails(tmp_path, "--host", "0.0.0.0", "--port", "0").ended_with(2)
    assert "there is no token" in refused.err and "drumline token create" in refused.err
    secret = token(tmp_path, "viewer")
    with serving(tmp_path, "--host", "0.0.0.0") as (_, client):
        assert client.get("/system/gpus").status_code == 401
        headers = {"Authorization": f"Bearer {secret}"}
        assert client.get("/system/gpus", headers=headers).status_code == 200
        made = client.post("/trainings", json={"config": TRAINING}, headers=headers)
        assert made.json()["code"] == "not_allowed"
    listed = run_to_end(
        ["-m", "drumline", "token", "list"], tmp_path / "cli", **environment(tmp_path)
    )
    assert "viewer" in listed.out and "ann" in listed.out and secret not in listed.out

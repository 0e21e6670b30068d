"""Devices over HTTP: each status for its reason, from recorded and simulated sensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline.database import now_ms, open_database
from drumline.hardware import Device, Machine
from drumline.hardware.cpu import probe_host
from drumline.hardware.device_locks import DeviceLocks, lock_folder
from drumline.monitoring.readings import Reading
from service_app import HOST, App

GPUS = "/api/v1/system/gpus"
MIXED = "2xH100+1xH100:foreign+1xA100:hot+1xL4"


@pytest.fixture
def app(database_url: str, tmp_path: Path) -> Iterator[App]:
    database = open_database(database_url)
    yield App(database, tmp_path, simulate=MIXED)
    database.close()


def listed(app: App) -> list[dict[str, Any]]:
    answer = app.client.get(GPUS)
    assert answer.status_code == 200, answer.text
    gpus: list[dict[str, Any]] = answer.json()["gpus"]
    return gpus


def claim(app: App, gpus: int) -> Any:
    app.train(gpus=gpus)
    made = app.services.leases.claim(HOST, app.services.inventory.machines()[0].machine)
    assert made is not None
    return made


def test_each_status_has_its_reason(app: App) -> None:
    leased = claim(app, 1)
    free_one = next(g for g in listed(app) if g["status"] == "free" and "L4" not in g["name"])
    app.services.leases.reserve([free_one["uuid"]], "for the demo")
    gpus = listed(app)
    told = {gpu["uuid"]: (gpu["status"], gpu["reason"]) for gpu in gpus}
    assert told[leased.gpu_ids[0]] == ("leased", f"Held by training {leased.training.id}.")
    assert told[free_one["uuid"]] == ("reserved", "for the demo")
    by_name = {gpu["index"]: gpu for gpu in gpus}
    assert by_name[2]["status"] == "busy" and "of somebody-else holds" in by_name[2]["reason"]
    assert by_name[2]["processes"][0]["owner"] == "somebody-else"
    assert by_name[3]["status"] == "unhealthy" and "thermal" in by_name[3]["reason"]
    holder = next(gpu["held_by"] for gpu in gpus if gpu["uuid"] == leased.gpu_ids[0])
    assert (holder["training_id"], holder["owner"]) == (leased.training.id, "local")
    counts = app.client.get(GPUS).json()["counts"]
    assert counts == {"free": 1, "leased": 1, "reserved": 1, "busy": 1, "unhealthy": 1}


def test_a_device_that_is_gone_is_lost_not_forgotten(app: App) -> None:
    real = Device("GPU-aaaa", 0, "cuda", name="H100", memory_total_bytes=80 << 30)
    machine = Machine(probe_host(), (real, replace(real, uuid="GPU-bbbb", index=1)))
    app.record(machine, "other")
    app.record(replace(machine, devices=machine.devices[:1]), "other")
    gpus = app.client.get(GPUS, params={"host": "other"}).json()["gpus"]
    assert [(gpu["uuid"], gpu["status"]) for gpu in gpus] == [
        ("GPU-aaaa", "free"),
        ("GPU-bbbb", "lost"),
    ]
    assert "not found any more" in gpus[1]["reason"]


def test_what_is_not_reported_is_null(app: App) -> None:
    app.record(Machine(probe_host(), (Device("GPU-aaaa", 0, "cuda", name="old"),)), "other")
    gpu = app.client.get(f"{GPUS}/GPU-aaaa").json()
    for field in ("power_w", "utilization_percent", "memory_used_bytes", "processes", "numa_node"):
        assert gpu[field] is None
    total = app.client.get("/api/v1/system/metrics/current").json()["aggregate"]["power_w"]
    assert (total["reporting"], total["devices"]) == (5, 6)


def test_the_devices_of_a_silent_host_are_lost(app: App) -> None:
    view = app.services.inventory.machines()[0]
    app.record(view.machine, time_ms=now_ms() - 120_000)
    gpus = listed(app)
    assert {gpu["status"] for gpu in gpus} == {"lost"}
    assert "not been heard of for 120 s" in gpus[0]["reason"]
    refused = app.client.get(f"{GPUS}/recommend", params={"count": 1})
    assert refused.status_code == 422 and "No host" in refused.json()["detail"]
    assert app.client.get("/api/v1/system/hosts").json()["hosts"][0]["online"] is False
    health = app.client.get("/api/v1/system/health").json()
    assert health["ok"] is False


def test_a_device_split_by_mig_gives_its_instances(app: App) -> None:
    part = Device("MIG-a", 0, "cuda", memory_total_bytes=20 << 30, mig_parent_uuid="GPU-aaaa")
    parts = (part, replace(part, uuid="MIG-b", index=1))
    whole = Device("GPU-aaaa", 0, "cuda", mig_enabled=True, mig_instances=parts)
    app.record(Machine(probe_host(), (whole,)), "other")
    gpus = app.client.get(GPUS, params={"host": "other"}).json()["gpus"]
    assert [(g["uuid"], g["status"]) for g in gpus] == [
        ("GPU-aaaa", "split"),
        ("MIG-a", "free"),
        ("MIG-b", "free"),
    ]


def test_without_a_driver_the_answer_is_the_reason(app: App) -> None:
    app.record(Machine(probe_host(), (), problems=("No NVIDIA driver answers: mismatch.",)), "bare")
    answer = app.client.get(GPUS, params={"host": "bare"})
    assert answer.status_code == 200
    assert answer.json()["gpus"] == []
    assert answer.json()["problems"] == [
        f"{probe_host().hostname}: No NVIDIA driver answers: mismatch."
    ]
    health = app.client.get("/api/v1/system/health")
    assert health.status_code == 200 and not health.json()["ok"]
    assert any("mismatch" in check["reason"] for check in health.json()["checks"])


def test_one_device_by_the_beginning_of_its_uuid(app: App) -> None:
    uuid = listed(app)[0]["uuid"]
    assert app.client.get(f"{GPUS}/{uuid[:14]}").json()["uuid"] == uuid
    assert "means 5 devices" in app.client.get(f"{GPUS}/SIM-").json()["detail"]
    assert app.client.get(f"{GPUS}/GPU-0").status_code == 404


def test_an_operator_keeps_a_device_back_and_lets_it_go(app: App) -> None:
    uuid = listed(app)[0]["uuid"]
    kept = app.client.put(f"{GPUS}/{uuid}/reservation", json={"reason": "for the demo"}).json()
    assert (kept["status"], kept["reason"]) == ("reserved", "for the demo")
    suits = app.client.get(f"{GPUS}/recommend", params={"count": 1, "memory_mb": 60_000}).json()
    assert suits["gpu_ids"] != [uuid]
    assert app.client.delete(f"{GPUS}/{uuid}/reservation").json()["status"] == "free"
    nobody = app.client.put(f"{GPUS}/GPU-0/reservation", json={"reason": "x"})
    assert nobody.status_code == 404


def test_a_device_that_a_run_by_hand_holds_is_busy(
    app: App, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRUMLINE_LOCK_FOLDER", str(tmp_path / "locks"))
    view = app.services.inventory.machines()[0]
    app.services.machine = lambda: (view.id, view.machine)
    uuid = view.machine.devices[0].uuid
    locks = DeviceLocks(lock_folder(), [uuid])
    with locks:
        locks.tell(tmp_path / "my-run")
        held = listed(app)[0]
        verdict = app.client.post(f"{GPUS}/validate", json={"gpu_ids": [uuid]}).json()
    assert (held["status"], "my-run" in held["reason"]) == ("busy", True)
    assert verdict["ok"] is False
    assert listed(app)[0]["status"] == "free"


def test_the_smallest_that_suffices_is_recommended(app: App) -> None:
    small = app.client.get(f"{GPUS}/recommend", params={"count": 1, "memory_mb": 10_000}).json()
    large = app.client.get(f"{GPUS}/recommend", params={"count": 2, "memory_mb": 60_000}).json()
    names = {gpu["uuid"]: gpu["name"] for gpu in listed(app)}
    assert ["L4" in names[one] for one in small["gpu_ids"]] == [True]
    assert ["H100" in names[one] for one in large["gpu_ids"]] == [True, True]
    assert (small["host"], bool(small["reasons"])) == (HOST, True)
    refused = app.client.get(f"{GPUS}/recommend", params={"count": 1, "memory_mb": 100_000})
    assert refused.json()["code"] == "bad_devices"


def test_a_choice_is_judged_device_by_device(app: App) -> None:
    held = claim(app, 1).gpu_ids[0]
    body = {"gpu_ids": [held, "2", "0" if listed(app)[0]["uuid"] != held else "1", "17"]}
    told = app.client.post(f"{GPUS}/validate", json=body).json()
    assert told["ok"] is False
    assert [verdict["ok"] for verdict in told["verdicts"]] == [False, False, True, False]
    assert "held by another training" in told["verdicts"][0]["reason"]


def test_devices_of_two_hosts_do_not_go_together(app: App) -> None:
    app.record(Machine(probe_host(), (Device("GPU-aaaa", 0, "cuda"),)), "other")
    body = {"gpu_ids": ["GPU-aaaa", listed(app)[0]["uuid"]]}
    told = app.client.post(f"{GPUS}/validate", json=body).json()
    assert (told["ok"], told["reason"]) == (False, "they are on 2 hosts: box, other")


def test_history_together_and_by_device(app: App) -> None:
    first, second = (gpu["uuid"] for gpu in listed(app)[:2])
    begin = 1_767_225_600_000  # 2026-01-01T00:00:00Z
    readings = [
        Reading(uuid, begin + 1000 * second_, utilization_percent=use, power_w=100.0)
        for uuid, use in ((first, 20.0), (second, 60.0))
        for second_ in range(10)
    ]
    app.services.history.write(readings)
    query: dict[str, Any] = {
        "from": "2026-01-01T00:00:00Z",
        "to": "2026-01-01T00:00:10Z",
        "points": 5,
        "gpu_ids": [first, second],
    }
    together = app.client.get("/api/v1/system/metrics", params=query).json()
    assert together["times"] == [f"2026-01-01T00:00:0{second_}.000Z" for second_ in range(0, 10, 2)]
    assert together["utilization_percent"] == {"value": [40.0] * 5, "reporting": [2] * 5}
    assert together["power_w"]["value"] == [200.0] * 5
    assert together["temperature_c"] == {"value": [None] * 5, "reporting": [0] * 5}
    each = app.client.get("/api/v1/system/metrics", params=query | {"view": "per_gpu"}).json()
    assert [gpu["utilization_percent"]["mean"] for gpu in each["gpus"]] == [[20] * 5, [60] * 5]
    assert each["gpus"][0]["readings"] == [2] * 5


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, None),
        ({"from": "yesterday"}, "from"),
        ({"to": "1900-01-01T00:00:00Z"}, "to"),
        ({"points": 1}, "points"),
        ({"view": "sideways"}, "view"),
    ],
)
def test_ranges_that_cannot_be(app: App, query: dict[str, Any], field: str | None) -> None:
    answer = app.client.get("/api/v1/system/metrics", params=query)
    assert answer.status_code == 422
    assert answer.json()["field"] == field

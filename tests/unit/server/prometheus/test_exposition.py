"""The page for Prometheus, read by Prometheus' own parser and by the text's rules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from drumline.database import DatabaseError
from drumline.hardware import Machine
from drumline.jobs.reports import Batch, Value
from drumline.monitoring.history import History
from drumline.monitoring.inventory import Inventory
from drumline.monitoring.readings import readings_of
from drumline.server.prometheus import Exposition, Health
from queue_cases import BROKEN, Service, service_at

MACHINE = Machine.probe(simulate="3xH100")
NOW = 1_700_000_000_000


@pytest.fixture
def service(database_url: str) -> Iterator[Service]:
    with service_at(database_url) as made:
        made.clock.now = NOW
        yield made


def samples(service: Service, **health: int | None) -> dict[tuple[str, str], float]:
    """Values by name and the label that tells samples apart."""
    page, _ = Exposition(service.database, lambda: Health(**health), service.clock).page()  # type: ignore[arg-type]
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = sample.labels
            key = labels.get("uuid") or labels.get("training") or labels.get("host") or ""
            if "state" in labels:
                key = f"{key}/{labels['state']}"
            assert (sample.name, key) not in found
            found[sample.name, key] = sample.value
    return found


def test_a_field_that_is_not_reported_is_absent_and_not_zero(service: Service) -> None:
    one, two, three = MACHINE.devices
    quiet = replace(two, power_w=None, ecc_uncorrected=None, throttle_reasons=None)
    slowed = replace(
        one,
        utilization_percent=50.0,
        sm_clock_mhz=1980,
        ecc_uncorrected=3,
        throttle_reasons=("hardware slowdown",),
    )
    lost = three.as_lost("fell off the bus")
    machine = replace(MACHINE, devices=(slowed, quiet, lost))
    Inventory(service.database).record(machine, NOW, "node")
    History(service.database).write(readings_of(machine.devices, NOW - 1000))
    found = samples(service)
    assert found["drumline_gpu_utilization_ratio", one.uuid] == 0.5
    assert found["drumline_gpu_sm_clock_hertz", one.uuid] == 1.98e9
    assert found["drumline_gpu_ecc_uncorrected_errors_total", one.uuid] == 3
    assert found["drumline_gpu_throttled", one.uuid] == 1
    for name in ("power_watts", "ecc_uncorrected_errors_total", "throttled"):
        assert (f"drumline_gpu_{name}", two.uuid) not in found
    assert found["drumline_gpu_temperature_celsius", two.uuid] == two.temperature_c
    of_lost = {name: value for (name, key), value in found.items() if key == three.uuid}
    assert of_lost == {"drumline_gpu_lost": 1}
    assert found["drumline_host_up", "node"] == 1
    service.clock.now += 31_000
    silent = samples(service)
    assert silent["drumline_host_up", "node"] == 0
    assert silent["drumline_host_last_seen_timestamp_seconds", "node"] == NOW / 1000
    assert ("drumline_gpu_temperature_celsius", two.uuid) not in silent
    assert silent["drumline_gpu_lost", two.uuid] == 0


def test_mig_instances_are_devices_of_their_own(service: Service) -> None:
    parent, *_ = MACHINE.devices
    instance = replace(parent, uuid="MIG-1", index=0, temperature_c=None, memory_used_bytes=7)
    split = replace(parent, mig_enabled=True, mig_instances=(instance,))
    Inventory(service.database).record(replace(MACHINE, devices=(split,)), NOW, "node")
    found = samples(service)
    assert found["drumline_gpu_memory_used_bytes", "MIG-1"] == 7
    assert ("drumline_gpu_temperature_celsius", "MIG-1") not in found


def test_trainings_with_what_they_reported(service: Service) -> None:
    Inventory(service.database).record(MACHINE, NOW, "h")
    service.ask(1)
    claim = service.leases.claim("h", MACHINE)
    assert claim is not None
    one, token = claim.training.id, claim.token
    waiting = [service.ask(3), service.ask(3)]
    service.outcomes.starting(token, run_dir="/runs/a", process_id=1, process_started=1.0)
    service.outcomes.running(token, world_size=1, steps=8)
    values = (Value("loss", 3, NOW, 1.25), Value("samples_per_s", 3, NOW, 512.0))
    service.trainings.reports.write(token, Batch(values, step=3, steps=8))
    found = samples(service)
    assert found["drumline_training_loss", one] == 1.25
    assert found["drumline_training_samples_per_second", one] == 512
    assert found["drumline_training_step", one] == 3
    assert found["drumline_training_state", f"{one}/running"] == 1
    assert found["drumline_queue_length", ""] == 2
    assert found["drumline_leases", ""] == 1
    assert found["drumline_trainings", "/failed"] == 0
    assert all(("drumline_training_state", f"{each}/queued") not in found for each in waiting)
    service.trainings.reports.write(token, Batch((Value("loss", 4, NOW, None),), step=4))
    assert math.isnan(samples(service)["drumline_training_loss", one])
    service.outcomes.finish(token, BROKEN)
    assert samples(service)["drumline_training_state", f"{one}/failed"] == 1
    service.clock.now += 601_000
    ended = samples(service)
    assert ("drumline_training_state", f"{one}/failed") not in ended
    assert ended["drumline_trainings", "/failed"] == 1


def test_parts_that_are_not_there_have_no_samples(service: Service) -> None:
    found = samples(service, live_clients=4)
    assert found["drumline_live_clients", ""] == 4
    assert ("drumline_sampler_late_ticks_total", "") not in found
    assert found["drumline_database_up", ""] == 1
    assert any(name == "process_resident_memory_bytes" for name, _ in found)
    late = samples(service, sampler_late_ticks=0)
    assert late["drumline_sampler_late_ticks_total", ""] == 0


def test_a_database_that_is_down_is_told_and_the_rest_is_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise DatabaseError("The database does not answer.")

    monkeypatch.setattr(service.database, "reading", fail)
    found = samples(service, live_clients=1)
    assert found["drumline_database_up", ""] == 0
    assert found["drumline_live_clients", ""] == 1
    assert ("drumline_queue_length", "") not in found


def test_the_format_is_what_the_reader_prefers_and_labels_are_escaped(service: Service) -> None:
    nasty = replace(MACHINE.devices[0], name='H100 "x"\n\\')
    Inventory(service.database).record(replace(MACHINE, devices=(nasty,)), NOW, "node")
    exposition = Exposition(service.database, clock=service.clock)
    page, content_type = exposition.page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    names = {
        sample.labels["name"]
        for family in open_metrics_families(page.decode())
        for sample in family.samples
        if sample.name == "drumline_gpu_lost"
    }
    assert names == {nasty.name}
    assert exposition.page()[1].startswith("text/plain")

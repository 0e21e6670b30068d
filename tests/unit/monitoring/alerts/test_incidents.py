"""When an incident is told: hysteresis, once at its beginning and once at its end."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from drumline.hardware import Device
from drumline.monitoring.alerts.incidents import Alert, Incidents
from drumline.monitoring.alerts.rules import (
    DISK,
    RULES,
    TEMPERATURE,
    TRAINING_STALLED,
    Reading,
    Rule,
    TrainingProgress,
    of_devices,
    of_disk,
    of_host,
    of_trainings,
)


def told(incidents: Incidents, rule: Rule, values: list[float | None], every_s: int = 10) -> str:
    """A letter for each look: R raised, r resolved, a dot for nothing."""
    letters = []
    for number, value in enumerate(values):
        readings = [] if value is None else [Reading(rule, "k", "GPU 0", value)]
        alerts = incidents.judge(readings, number * every_s * 1000)
        assert len(alerts) <= 1
        letters.append({"raised": "R", "resolved": "r"}[alerts[0].state] if alerts else ".")
    return "".join(letters)


def test_heat_is_told_after_half_a_minute_and_over_below_the_lower_bound() -> None:
    hot, warm, cool = 91.0, 87.0, 84.0
    heat = [hot] * 5 + [warm] * 5 + [hot] * 2 + [cool] * 3 + [warm] + [cool] * 4 + [warm] * 3
    assert told(Incidents(), TEMPERATURE, list(heat)) == "...R...............r..."


def test_a_short_peak_and_a_device_that_goes_silent_change_nothing() -> None:
    assert told(Incidents(), TEMPERATURE, [91, 91, 80, 91, 91, 80]) == "......"
    silent = [91, 91, 91, 91, None, None, None, 91, 80, None, 80, 80, 80, 80]
    assert told(Incidents(), TEMPERATURE, silent) == "...R.........r"


def test_a_gap_in_the_readings_starts_the_time_anew() -> None:
    assert told(Incidents(), TEMPERATURE, [91, 91, None, 91, 91, 91, 91]) == "......R"


def test_small_values_can_be_the_wrong_ones() -> None:
    assert told(Incidents(), DISK, [6, 4, 4, 4, 4, 6, 6, 7, 8, 7, 7]) == "....R.....r"


def test_a_training_that_is_gone_stalls_no_more() -> None:
    assert told(Incidents(), TRAINING_STALLED, [899, 900, 910, 920, 930, None, None]) == "....Rr."


def test_what_is_told() -> None:
    incidents = Incidents()
    reading = Reading(TEMPERATURE, "GPU-1", "GPU 0 (H100) of node", 93.4)
    for second in (0, 10, 20):
        assert incidents.judge([reading], second * 1000) == []
    (raised,) = incidents.judge([reading], 30_000)
    assert raised.message == "GPU 0 (H100) of node is at 93 °C."
    assert (raised.rule, raised.key, raised.since_ms, raised.at_ms) == (
        "temperature",
        "GPU-1",
        0,
        30_000,
    )
    assert incidents.open == (raised,)
    again = Incidents()
    again.restore([raised])
    cool = Reading(TEMPERATURE, "GPU-1", "GPU 0 (H100) of node", 60)
    assert again.judge([reading], 40_000) == []
    assert again.judge([cool], 50_000) == []
    (resolved,) = again.judge([cool], 80_000)
    assert (resolved.id, resolved.state, resolved.value) == (raised.id, "resolved", 60)
    assert resolved.message == "Over after 80 s: GPU 0 (H100) of node is at 93 °C."
    assert again.open == ()


@given(st.lists(st.lists(st.sampled_from([None, 80.0, 87.0, 91.0]), min_size=2, max_size=2)))
def test_beginnings_and_ends_take_turns_for_every_subject(looks: list[list[float | None]]) -> None:
    incidents = Incidents()
    alerts: list[Alert] = []
    for number, values in enumerate(looks):
        readings = [
            Reading(TEMPERATURE, str(key), "", value)
            for key, value in enumerate(values)
            if value is not None
        ]
        alerts += incidents.judge(readings, number * 20_000)
    for key in ("0", "1"):
        own = [alert for alert in alerts if alert.key == key]
        states = [alert.state for alert in own]
        assert states == (["raised", "resolved"] * len(states))[: len(states)]
        assert all(own[n].id == own[n - 1].id for n in range(1, len(own), 2))
        assert (len(own) % 2 == 1) == any(alert.key == key for alert in incidents.open)


def test_bounds_leave_room_between_wrong_and_right() -> None:
    for rule in RULES:
        assert rule.is_wrong(rule.raise_at)
        assert not rule.is_right(rule.raise_at)
        assert rule.is_right(rule.clear_at)
        assert not rule.is_wrong(rule.clear_at)


def test_a_device_that_does_not_report_gives_no_reading() -> None:
    silent = Device("GPU-1", 0, "cuda")
    hot = Device("GPU-2", 1, "cuda", name="H100", temperature_c=95.0, ecc_uncorrected=2)
    readings = [
        (reading.rule.name, reading.key, reading.value)
        for reading in of_devices("node", [silent, hot, hot.as_lost("fell off the bus")])
    ]
    assert readings == [
        ("device_lost", "GPU-1", 0),
        ("temperature", "GPU-2", 95),
        ("ecc", "GPU-2", 2),
        ("device_lost", "GPU-2", 0),
        ("device_lost", "GPU-2", 1),
    ]


def test_silence_of_hosts_and_trainings_is_counted_in_seconds(tmp_path: Path) -> None:
    assert of_host("a", "node", 1_000, 62_000).value == 61
    (stalled,) = of_trainings([TrainingProgress("7", "sae", 100_000)], 1_100_000)
    assert (stalled.value, stalled.subject) == (1000, "Training sae (7)")
    (disk,) = of_disk("node", tmp_path)
    assert 0 <= disk.value <= 100
    assert list(of_disk("node", tmp_path / "nowhere")) == []

"""Simulated devices: labelled, deterministic, and read from a plain setting."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.errors import DeviceError
from drumline.hardware.machine import Machine
from drumline.hardware.providers.cards import CARDS
from drumline.hardware.providers.load import PATTERNS
from drumline.hardware.providers.simulated import SimulatedProvider

GIB = 2**30


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_setting_gives_cards_in_order() -> None:
    gpus = Machine.probe(simulate="2xA100-40GB+1xL4").gpus
    assert [gpu.memory_total_bytes for gpu in gpus] == [40 * GIB, 40 * GIB, 24 * GIB]
    assert [gpu.compute_capability for gpu in gpus] == [(8, 0), (8, 0), (8, 9)]


@pytest.mark.parametrize("setting", ["8xH100", "1xMI300X+1xT4", "7xH100:mixed"])
def test_every_device_is_labelled_in_every_place(setting: str) -> None:
    machine = Machine.probe(simulate=setting)
    for gpu in machine.gpus:
        assert gpu.simulated
        assert gpu.kind.startswith("simulated-")
        assert gpu.uuid.startswith("SIM-")
        assert gpu.name is not None and "(simulated)" in gpu.name
    assert "The devices are simulated." in machine.problems


def test_machine_without_the_setting_simulates_nothing() -> None:
    assert not any(gpu.simulated for gpu in Machine.probe().gpus)


def test_like_cards_share_nvlink_and_unlike_ones_pcie() -> None:
    machine = Machine.probe(simulate="2xH100+1xL4")
    a, b, c = (gpu.uuid for gpu in machine.gpus)
    fast, slow = machine.link(a, b), machine.link(a, c)
    assert fast is not None and (fast.kind, fast.bandwidth_gb_s) == ("nvlink", 450.0)
    assert slow is not None and (slow.kind, slow.generation) == ("pcie", 4)
    assert len(machine.links) == 3


@settings(deadline=None)
@given(
    pattern=st.sampled_from(PATTERNS),
    card=st.sampled_from(sorted(CARDS)),
    elapsed_s=st.floats(0, 1e6),
)
def test_load_is_a_function_of_time_within_the_card(
    pattern: str, card: str, elapsed_s: float
) -> None:
    samples = []
    for _ in range(2):
        clock = Clock()
        provider = SimulatedProvider(f"3x{card}:{pattern}", clock=clock)
        clock.now_s += elapsed_s
        samples.append(provider.sample())
    assert samples[0] == samples[1]
    for gpu in samples[0]:
        if gpu.lost:
            continue
        assert gpu.utilization_percent is not None and 0 <= gpu.utilization_percent <= 100
        assert gpu.power_w is not None and 0 < gpu.power_w <= CARDS[card].power_limit_w
        assert gpu.memory_used_bytes is not None and gpu.memory_free_bytes is not None
        assert gpu.memory_used_bytes + gpu.memory_free_bytes == CARDS[card].memory_gib * GIB


def test_idle_devices_are_free_and_foreign_ones_are_somebody_elses() -> None:
    idle, foreign = Machine.probe(simulate="1xL4+1xL4:foreign").gpus
    assert idle.processes == () and idle.utilization_percent == 0
    assert foreign.processes is not None and foreign.processes[0].owner == "somebody-else"


def test_lost_device_leaves_after_a_minute() -> None:
    clock = Clock()
    provider = SimulatedProvider("1xL4+1xL4:lost", clock=clock)
    assert [gpu.lost for gpu in provider.sample()] == [False, False]
    clock.now_s += 61
    machine = Machine.probe(provider)
    assert [gpu.lost for gpu in machine.gpus] == [False, True]
    assert machine.links == ()


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("8xH10", "Did you mean H100?"),
        ("8xH100:bursty", "Did you mean bursts?"),
        ("H100", "cannot be read at 'H100'"),
        ("0xH100", "cannot be read at '0xH100'"),
        ("4xH100+", "cannot be read at ''"),
        ("999999999xH100", "more than 256"),
    ],
)
def test_setting_that_cannot_be_read(setting: str, told: str) -> None:
    with pytest.raises(DeviceError) as raised:
        Machine.probe(simulate=setting)
    assert told in str(raised.value)
    assert raised.value.exit_code == 2

"""The beat, and a driver that hangs: with a clock that the test turns, a provider that it holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest
from hardware.recorded_drivers import RecordedNvml

from drumline.hardware import Device, Provider
from drumline.hardware.providers import Findings
from drumline.hardware.providers.nvidia import NvidiaProvider
from drumline.hardware.providers.simulated import SimulatedProvider
from drumline.monitoring.sampler import Sample, Sampler

LONG_S = 60.0
T = 1_700_000_000.0


class Clock:
    """The wall clock and a monotonic one, which go only when they are told."""

    def __init__(self) -> None:
        self.now_s = T

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


class Held:
    """A provider whose sensors answer only while they are let."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner
        self.let = threading.Event()
        self.let.set()
        self.asked = threading.Semaphore(0)
        self.looked = self.sampled = self.closed = 0

    def probe(self) -> Findings:
        self.looked += 1
        return self._inner.probe()

    def sample(self) -> tuple[Device, ...]:
        self.sampled += 1
        self.asked.release()
        assert self.let.wait(LONG_S)
        return self._inner.sample()

    def close(self) -> None:
        self.closed += 1
        self._inner.close()


class Rig:
    """A sampler whose ticks the test makes, one after the other."""

    def __init__(self, provider: Provider, **options: Any) -> None:
        self.clock, self.provider = Clock(), Held(provider)
        self.samples: SimpleQueue[Sample] = SimpleQueue()
        clocks = {"clock": self.clock.wall_ms, "monotonic": self.clock.monotonic}
        self.sampler = Sampler(self.provider, self.samples.put, **{**clocks, **options})
        self._thread = threading.Thread(target=self.sampler._read_when_asked, daemon=True)

    def tick(self, after_s: float = 1.0) -> None:
        self.clock.now_s += after_s
        self.sampler.tick()

    def next(self, after_s: float = 1.0) -> Sample:
        self.tick(after_s)
        sample = self.samples.get(timeout=LONG_S)
        assert self.sampler._idle.wait(LONG_S)
        return sample


@contextmanager
def rig(provider: Provider, **options: Any) -> Iterator[Rig]:
    made = Rig(provider, **options)
    made._thread.start()
    yield made
    made.provider.let.set()
    made.sampler.stop()
    made._thread.join(LONG_S)
    assert not made._thread.is_alive()


def test_each_tick_has_a_sample_on_the_whole_second() -> None:
    with rig(SimulatedProvider("8xH100:steady")) as one:
        samples = [one.next(after_s) for after_s in (1.004, 0.999, 1.02, 0.98)]
    assert [sample.time_ms for sample in samples] == [int(T + n) * 1000 for n in (1, 2, 3, 4)]
    assert all(len(sample.machine.devices) == 8 and sample.answered for sample in samples)
    assert samples[-1].skipped == 0


def test_only_sensors_are_read_between_looks_at_everything() -> None:
    with rig(SimulatedProvider("2xH100:steady"), look_again_s=10) as one:
        for _ in range(25):
            one.next()
        assert (one.provider.looked, one.provider.sampled) == (3, 22)


def test_a_driver_that_hangs_for_six_seconds_holds_nobody_up() -> None:
    with rig(SimulatedProvider("2xH100:steady"), patience_s=3) as one:
        assert one.next().answered
        one.provider.let.clear()
        one.tick()
        assert one.provider.asked.acquire(timeout=LONG_S)  # the driver is in the call
        told = []
        for _ in range(6):
            one.tick()
            while not one.samples.empty():
                told.append(one.samples.get())
        assert [sample.machine.problems for sample in told] == [
            (f"The driver has not answered for {seconds} s.",) for seconds in (3, 4, 5, 6)
        ]
        for sample in told:
            assert not sample.answered
            for device in sample.machine.devices:
                assert device.problem == sample.machine.problems[0] and not device.lost
                assert device.power_w is None and device.utilization_percent is None
                assert device.memory_total_bytes == 80 * 2**30
        one.provider.let.set()
        late = one.samples.get(timeout=LONG_S)
        assert late.answered and late.machine.devices[0].problem is None
        assert late.time_ms == int(T + 8) * 1000  # of when it was read, not of when it was asked
        assert one.sampler._idle.wait(LONG_S)
        assert one.next().skipped == 6


def test_ticks_that_came_late_are_skipped_and_counted() -> None:
    with rig(SimulatedProvider("1xL4")) as one:
        one.next()
        sample = one.next(after_s=5.0)
    assert sample.skipped == 4
    assert sample.time_ms == int(T + 6) * 1000


def test_a_wall_clock_that_jumps_moves_the_time_and_nothing_else() -> None:
    wall = [0.0]
    with rig(
        SimulatedProvider("1xL4"), clock=lambda: int((one.clock.now_s + wall[0]) * 1000)
    ) as one:
        one.next()
        for jump in (-3600.0, 7200.0):
            wall[0] = jump
            sample = one.next()
            assert sample.time_ms == int(one.clock.now_s + jump) * 1000
            assert 0 <= one.sampler._until_next_tick_s() <= 1.5
    assert sample.skipped == 0


def test_a_lost_device_is_named_at_its_tick_and_comes_back_by_itself() -> None:
    nvml = RecordedNvml("lost_card")
    with rig(NvidiaProvider(nvml, lookup=lambda _: (None, None)), retry_s=5) as one:
        assert one.next().machine.problems == ()
        nvml.at("lost")
        sample = one.next()
        assert [device.lost for device in sample.machine.devices] == [False, True]
        assert "fallen off the bus" in sample.machine.problems[0]
        nvml.change("1", {})
        lost = [one.next().machine.devices[1].lost for _ in range(5)]
        assert lost == [True, True, True, True, False]
        assert one.next().machine.problems == ()


def test_no_driver_is_a_sample_with_the_reason_until_there_is_one() -> None:
    nvml = RecordedNvml("h100_server")
    nvml.break_driver("DRIVER_NOT_LOADED")
    with rig(NvidiaProvider(nvml, lookup=lambda _: (None, None)), retry_s=2) as one:
        sample = one.next()
        assert sample.machine.devices == () and "not loaded" in sample.machine.problems[0]
        del nvml._recording["init_error"]
        assert [len(one.next().machine.devices) for _ in range(2)] == [0, 8]
        assert one.next().machine.problems == ()


def test_a_provider_that_fails_is_told_of_and_asked_again() -> None:
    class Failing(SimulatedProvider):
        broken = True

        def probe(self) -> Findings:
            if self.broken:
                raise OSError("bad luck")
            return super().probe()

    provider = Failing("1xL4")
    with rig(provider) as one:
        sample = one.next()
        assert sample.machine.problems == ("The devices could not be read: bad luck",)
        provider.broken = False
        assert len(one.next().machine.devices) == 1


def test_a_sink_that_fails_loses_one_sample_only() -> None:
    got: SimpleQueue[Sample] = SimpleQueue()
    fail = [True]

    def sink(sample: Sample) -> None:
        got.put(sample)
        if fail.pop() if fail else False:
            raise RuntimeError("no room")

    sampler = Sampler(SimulatedProvider("1xL4"), sink, 0.01)
    sampler.start()
    assert got.get(timeout=LONG_S).time_ms < got.get(timeout=LONG_S).time_ms
    sampler.stop()


def test_it_beats_by_itself_and_ends_when_told() -> None:
    got: SimpleQueue[Sample] = SimpleQueue()
    provider = Held(SimulatedProvider("1xL4"))
    sampler = Sampler(provider, got.put, 0.02)
    sampler.start()
    times = [got.get(timeout=LONG_S).time_ms for _ in range(5)]
    assert all(time_ms % 20 == 0 for time_ms in times) and times == sorted(set(times))
    sampler.stop(LONG_S)
    assert provider.closed == 1
    assert not any(thread.is_alive() for thread in sampler._threads)


@pytest.mark.parametrize("hang", ["probe", "sample"])
def test_stopping_does_not_wait_for_a_driver_that_hangs(hang: str) -> None:
    release, inside = threading.Event(), threading.Event()

    class Hanging(SimulatedProvider):
        def _hang(self) -> None:
            inside.set()
            release.wait(LONG_S)

        def probe(self) -> Findings:
            if hang == "probe":
                self._hang()
            return Findings(super().sample())

        def sample(self) -> tuple[Device, ...]:
            if hang == "sample":
                self._hang()
            return super().sample()

    sampler = Sampler(Hanging("1xL4"), lambda _: None, 0.01)
    sampler.start()
    assert inside.wait(LONG_S)
    sampler.stop(timeout_s=0.01)  # comes back though the driver does not
    release.set()

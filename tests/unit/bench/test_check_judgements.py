"""What checks say of simulated machines and of measurements whose meaning is known by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline.bench.checks import CheckContext, Finding, TorchFacts, control, device, host, links
from drumline.bench.checks import machine as machine_checks
from drumline.bench.checks.model import model_fits
from drumline.bench.checks.run import prepare
from drumline.bench.memory import TracingProcess, estimate_memory_requirement
from drumline.config import parse_config
from drumline.errors import DeviceError
from drumline.hardware import GpuProcess, Machine
from drumline.planning.devices import planned

GIB, MIB = 2**30, 2**20
CUDA_13 = TorchFacts("2.11.0+cu130", "13.0", None, True, ("sm_80", "sm_90", "compute_120"))


def context(simulate: str = "4xH100", **fields: Any) -> CheckContext:
    there = Machine.probe(simulate=simulate)
    driver = replace(there.host, driver_version="580.65", cuda_driver_version="13.0")
    there = replace(there, host=driver)
    return CheckContext(there, CUDA_13, tuple(map(planned, there.devices)), **fields)


def with_host(**fields: Any) -> CheckContext:
    there = context()
    return replace(
        there, machine=replace(there.machine, host=replace(there.machine.host, **fields))
    )


def with_device(**fields: Any) -> CheckContext:
    there = context()
    first, *others = there.machine.devices
    return replace(
        there, machine=replace(there.machine, devices=(replace(first, **fields), *others))
    )


def statuses(findings: Sequence[Finding]) -> list[str]:
    for finding in findings:
        if finding.status in ("warn", "fail"):
            assert finding.remedy, finding
    return [finding.status.value for finding in findings]


def test_a_machine_without_gpus_is_told_plainly() -> None:
    there = CheckContext(Machine(context().machine.host), CUDA_13, ())
    (found,) = machine_checks.devices_there(there)
    assert found.status == "warn"
    assert "no GPU" in found.text
    assert "gloo" in found.text
    assert statuses(machine_checks.software(there)) == ["pass"]


@pytest.mark.parametrize(
    ("facts", "expected", "said"),
    [
        (CUDA_13, "pass", "CUDA 13.0"),
        (replace(CUDA_13, cuda=None), "fail", "without CUDA"),
        (
            replace(CUDA_13, cuda="14.1", available=False),
            "fail",
            "newer than driver 580.65 (CUDA 13.0)",
        ),
        (replace(CUDA_13, cuda="14.1"), "pass", "forward compatibility"),
        (replace(CUDA_13, available=False, problem="Error 803"), "fail", "Error 803"),
    ],
)
def test_driver_and_torch_must_fit(facts: TorchFacts, expected: str, said: str) -> None:
    found = machine_checks.software(replace(context(), torch=facts))[0]
    assert found.status == expected
    assert said in found.text
    statuses([found])


@pytest.mark.parametrize(
    ("card", "built", "fits"),
    [
        ("H100", ("sm_80", "sm_90"), True),
        ("H100", ("sm_80",), False),  # binary code of another major architecture
        ("H100", ("compute_80",), True),  # PTX is compiled for later ones
        ("RTX4090", ("sm_86",), True),  # 8.6 code runs on 8.9
        ("A10", ("sm_89",), False),  # 8.9 code does not run on 8.6
        ("H100", ("sm_90a",), True),
        ("B200", ("sm_90a", "sm_100"), True),
        ("B200", ("sm_90a", "sm_120"), False),
    ],
)
def test_torch_must_have_code_for_the_architecture(
    card: str, built: tuple[str, ...], fits: bool
) -> None:
    there = replace(context(f"1x{card}"), torch=replace(CUDA_13, architectures=built))
    found = machine_checks.software(there)[1]
    assert found.status == ("pass" if fits else "fail")


@pytest.mark.parametrize(
    ("fields", "expected", "said"),
    [
        ({}, "pass", "79.5 GiB free of 80.0 GiB"),
        ({"lost": True, "problem": "fell off"}, "fail", "fell off"),
        ({"ecc_uncorrected": 2}, "fail", "2 uncorrected"),
        ({"throttle_reasons": ("power cap",)}, "warn", "power cap"),
        ({"processes": (GpuProcess(5, "ada", 9 * GIB),)}, "warn", "process 5 of ada holds 9.0 GiB"),
        ({"power_w": None, "temperature_c": None, "ecc_uncorrected": None}, "pass", "n/a"),
    ],
)
def test_health_of_each_device(fields: dict[str, Any], expected: str, said: str) -> None:
    found = machine_checks.health(with_device(**fields))
    assert statuses(found) == [expected, "pass", "pass", "pass"]
    assert said in found[0].text


@pytest.mark.parametrize(
    ("check", "fields", "expected"),
    [
        (host.shared_memory, {"shm_total_bytes": None}, "fail"),
        (host.shared_memory, {"shm_total_bytes": 64 * MIB, "shm_free_bytes": 8 * MIB}, "fail"),
        (host.shared_memory, {"shm_total_bytes": 64 * MIB, "shm_free_bytes": 64 * MIB}, "warn"),
        (host.shared_memory, {"shm_total_bytes": 9 * GIB, "shm_free_bytes": 8 * GIB}, "pass"),
        (host.open_files, {"limit_open_files": 1024}, "warn"),
        (host.open_files, {"limit_open_files": "unlimited"}, "pass"),
        (host.open_files, {"limit_open_files": None}, "pass"),
        (host.cpus, {"cpu_usable": 7}, "warn"),
        (host.cpus, {"cpu_usable": 8}, "pass"),
        (host.cpus, {"cpu_usable": None}, "pass"),
    ],
)
def test_limits_of_the_host(
    check: Callable[[CheckContext], Sequence[Finding]], fields: dict[str, Any], expected: str
) -> None:
    assert statuses(check(with_host(**fields))) == [expected]


def test_locked_memory_matters_with_infiniband_only(tmp_path: Path) -> None:
    limited = with_host(limit_locked_memory_bytes=8 * MIB)
    assert statuses(host.locked_memory(limited, tmp_path)) == ["pass"]
    (tmp_path / "mlx5_0").mkdir()
    assert statuses(host.locked_memory(limited, tmp_path)) == ["warn"]
    free = with_host(limit_locked_memory_bytes="unlimited")
    assert statuses(host.locked_memory(free, tmp_path)) == ["pass"]


def test_disk_is_tried_in_the_nearest_folder_and_nothing_is_left(tmp_path: Path) -> None:
    found = host.disk(context(folder=tmp_path / "not" / "yet", quick=True))
    assert found[0].value["folder"] == str(tmp_path)
    assert found[0].value["write_mb_s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_fails() -> None:
    assert statuses(host.disk(context(folder=Path("/proc/self")))) == ["fail"]


def test_ports() -> None:
    def taken(port: int) -> None:
        if port:
            raise OSError(98, "Address already in use")

    def forbidden(port: int) -> None:
        raise OSError(1, "Operation not permitted")

    there = context()
    assert statuses(host.ports(there, taken)) == ["warn"]
    assert statuses(host.ports(there, forbidden)) == ["fail"]
    assert statuses(host.ports(there, lambda port: None)) == ["pass"]


def test_a_slow_card_stands_out_among_its_like_only() -> None:
    there = context("3xH100+1xL4")
    rates = [700.0, 580.0, 710.0, 100.0]
    (found,) = device.judge_matmul(there, [{"bf16": rate} for rate in rates])
    assert found.status == "warn"
    assert "GPU 1 gives 83% of the median of 3" in found.text
    assert "GPU 3 gives" not in found.text
    assert found.value == {"GPU 0": 700.0, "GPU 1": 580.0, "GPU 2": 710.0, "GPU 3": 100.0}


def test_rates_within_a_few_percent_pass_and_errors_fail() -> None:
    there = context("2xH100")
    even = [{"bf16": 700.0, "fp32": 50.0}, {"bf16": 690.0, "fp32": "CUDA error"}]
    bf16, fp32 = device.judge_matmul(there, even)
    assert (bf16.status, fp32.status) == ("pass", "fail")
    assert "GPU 1: CUDA error" in fp32.text


def test_a_copy_far_below_its_pcie_link_warns() -> None:
    there = context("2xH100")  # PCIe 5 with 16 lanes: 63 GB/s
    slow = [{"pinned": 25.0, "unpinned": 6.0}, {"pinned": 26.0, "unpinned": 6.0}]
    pinned, unpinned = device.judge_from_host(there, slow)
    assert (pinned.status, unpinned.status) == ("warn", "pass")
    assert "GPU 0 25.0 of 63 GB/s" in pinned.text
    fine = [{"pinned": 55.0, "unpinned": 6.0}, {"pinned": 54.0, "unpinned": 7.0}]
    assert statuses(device.judge_from_host(there, fine)) == ["pass", "pass"]
    quick = [{"pinned": 55.0}, {"pinned": 54.0}]
    assert statuses(device.judge_from_host(there, quick)) == ["pass"]


def facts(wrong: int = 0, bus_gb_s: float = 350.0) -> dict[str, Any]:
    return {"wrong_elements": wrong, "bus_gb_s": bus_gb_s, "size_bytes": 1, "latency_us": 20.0}


@pytest.mark.parametrize(
    ("simulate", "measured", "expected", "said"),
    [
        ("2xH100", [facts(), facts()], "pass", "350 GB/s of 450 over NVLink"),
        ("2xH100", [facts(), facts(bus_gb_s=40.0)], "warn", "below 50%"),
        ("2xL4", [facts(bus_gb_s=12.0)] * 2, "pass", "12 GB/s of 31.504 over PCIe"),
        ("2xL4", [facts(bus_gb_s=2.0)] * 2, "warn", "below 25%"),
        ("2xH100", [facts(), facts(wrong=9)], "fail", "sum is wrong: 9 elements on GPU 1"),
        ("1xH100", [facts(bus_gb_s=0.0)], "pass", "one rank"),
    ],
)
def test_all_reduce_beside_what_the_links_should_give(
    simulate: str, measured: list[dict[str, Any]], expected: str, said: str
) -> None:
    (found,) = links.judge_all_reduce(context(simulate), measured)
    assert found.status == expected
    assert said in found.text
    statuses([found])


def test_a_broken_pair_is_named() -> None:
    good, bad = facts(), facts(wrong=3)
    measured = [{"0-1": good, "0-2": good}, {"0-1": good, "1-2": bad}, {"0-2": good, "1-2": bad}]
    found = links.judge_pairs(context("3xH100"), measured)
    assert [one.name.removeprefix("all-reduce ") for one in found] == [
        "GPU 0 - GPU 1", "GPU 0 - GPU 2", "GPU 1 - GPU 2",
    ]  # fmt: skip
    assert statuses(found) == ["pass", "pass", "fail"]


def test_pairs_without_peer_access_are_named_with_their_link() -> None:
    measured = [[(0, 1, True), (0, 2, False), (1, 2, True)], [], []]
    (found,) = links.judge_peer_access(context("2xH100+1xL4"), measured)
    assert found.status == "warn"
    assert "1 of 3 pairs: GPU 0 - GPU 2 (PCIe" in found.text


def test_variables_are_shown_and_an_unknown_interface_warns() -> None:
    given = {"NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo"}
    (found,) = links.settings(context(variables=given))
    assert found.status == "pass"
    assert "NCCL_NVLS_ENABLE=0" in found.text
    for name in ("nosuch0", "=l", "nosuch,other"):
        wrong = links.settings(context(variables={"NCCL_SOCKET_IFNAME": name}))
        assert statuses(wrong) == ["warn"]
    for name in ("l", "=lo", "^docker", "nosuch,lo"):
        right = links.settings(context(variables={"NCCL_SOCKET_IFNAME": name}))
        assert statuses(right) == ["pass"]


def test_votes_and_clocks() -> None:
    there = context()
    assert statuses(control.judge_votes(there, [0.3, 0.4])) == ["pass"]
    assert statuses(control.judge_votes(there, [0.3, 80.0])) == ["warn"]
    near = [{"host": "a", "time_s": 1000.0}, {"host": "b", "time_s": 1000.9}]
    far = [{"host": "a", "time_s": 1000.0}, {"host": "b", "time_s": 998.5}]
    assert statuses(control.judge_clock(there, near)) == ["pass"]
    (found,) = control.judge_clock(there, far)
    assert found.text == "the clock of a is 1.5 s ahead of that of b"
    statuses([found])


def test_a_model_beside_what_is_free() -> None:
    config = parse_config({"steps": 1, "name": "mine"})
    there = replace(context("1xH100+1xL4"), config=config)
    assert statuses(model_fits(there, lambda config, there: 20 * GIB)) == ["pass"]
    (found,) = model_fits(there, lambda config, there: 40 * GIB)
    assert found.status == "fail"
    assert "GPU 1 has 23.5 GiB, short by 16.5 GiB" in found.text
    assert model_fits(context()) == []


def test_a_training_without_a_task_is_skipped_with_the_reason() -> None:
    there = replace(context("2xH100"), config=parse_config({"steps": 1}))
    (found,) = model_fits(there)
    assert found.status == "skipped"
    assert "names no task" in found.text


def test_the_estimate_is_for_the_devices_that_are_measured() -> None:
    task = {
        "name": "clstm_ppo",
        "environment": {"name": "cartpole_memory"},
        "environments": 4,
        "rollout_steps": 8,
        "total_steps": 64,
    }
    config = parse_config({"global_batch": 16, "task": task})
    (found,) = model_fits(replace(context("2xH100"), config=config))
    with TracingProcess() as process:
        on_one, on_two = (
            estimate_memory_requirement(config, (9, 0), world_size=size, tracer=process)
            for size in (1, 2)
        )
    assert found.value["needed_bytes"] == on_two.reserved_peak + on_two.context
    assert found.value["needed_bytes"] != on_one.reserved_peak + on_one.context


def test_busy_and_unwell_devices_are_left_out_unless_named() -> None:
    there = Machine.probe(simulate="2xH100+1xH100:foreign+1xH100:hot")
    prepared = prepare(there)
    assert [device.index for device in prepared.devices] == [0, 1]
    why = list(prepared.left_out.values())
    assert "in use" in why[0]
    assert "slowed by hardware thermal slowdown" in why[1]
    assert [device.index for device in prepare(there, "2,0").devices] == [2, 0]


def test_a_device_that_a_run_holds_is_named_with_its_holder_and_left_out_unless_named() -> None:
    there = Machine.probe(simulate="3xH100")
    held = {there.devices[1].uuid: "process 4711 of ann (/runs/x)"}
    prepared = prepare(there, occupied=held)
    assert [device.index for device in prepared.devices] == [0, 2]
    said = "held by process 4711 of ann (/runs/x)"
    assert dict(prepared.left_out) == {there.devices[1].uuid: said}
    found = machine_checks.health(prepared)
    assert [one.status.value for one in found] == ["pass", "warn", "pass"]
    assert found[1].text == said
    assert [device.index for device in prepare(there, "2", occupied=held).devices] == [0, 2]
    assert [device.index for device in prepare(there, "1,", occupied=held).devices] == [1]
    with pytest.raises(DeviceError, match=f"GPU 1 .*: {re.escape(said)}"):
        prepare(there, "3", occupied=held)

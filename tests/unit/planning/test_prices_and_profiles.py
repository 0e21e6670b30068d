"""Files a user edits: prices, and what a device can do."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from planning.speed_by_hand import figure, link, profile

from drumline.config import Precision
from drumline.errors import BadInput, ConfigError
from drumline.planning.prices import load_prices
from drumline.planning.profile import (
    find_profile,
    load_profile,
    plain_name,
    save_profile,
    stored_profiles,
)

MINE = """
currency: EUR
prices:
  - {devices: [Abacus], per_hour: 2.5, vendor: ours, source: contract 7, date: "2026-01-31"}
  - {devices: [Abacus], per_hour: 9, vendor: theirs, source: list, date: "2026-01-31"}
"""


def test_the_first_entry_that_names_a_device_counts(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(MINE)
    prices = load_prices(path)
    found = prices.of("NVIDIA Abacus (simulated)")
    assert found is not None
    assert (found.per_hour, prices.currency) == (2.5, "EUR")
    assert prices.of("Slide rule", None) is None


def test_no_price_is_guessed() -> None:
    assert load_prices().prices == []
    assert load_prices().of("NVIDIA H100 80GB HBM3") is None


def test_a_wrong_key_of_a_price_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(MINE.replace("per_hour: 2.5", "per_our: 2.5"))
    with pytest.raises(ConfigError, match="per_our"):
        load_prices(path)


def test_shipped_profiles_are_found_by_file_by_card_and_by_driver_name() -> None:
    for stem, stored in stored_profiles().items():
        assert load_profile(stem) == stored
        for name in (stored.name, *stored.matches):
            assert find_profile(name) == stored
    assert find_profile("NVIDIA H100 80GB HBM3 (simulated)") == load_profile("h100-sxm")
    assert find_profile("NVIDIA H100 PCIe") is None


def test_every_shipped_number_is_a_datasheet_or_a_measurement_with_a_day() -> None:
    for stored in stored_profiles().values():
        figures = [*stored.matmul_flop_per_s.values(), *stored.all_reduce]
        figures += [
            found
            for found in (stored.memory_bytes_per_s, stored.host_to_device_bytes_per_s)
            if found is not None
        ]
        assert figures
        for entry in figures:
            assert entry.source.partition(":")[0] in ("datasheet", "measured")
            date.fromisoformat(entry.date)


def test_measured_h100_figures_are_below_the_dense_peaks_of_the_datasheet() -> None:
    # NVIDIA's datasheet: with sparsity 1,979 TFLOPS of bf16 and fp16, 989 of tf32; 67 of fp32;
    # 3.35 TB/s; NVLink 900 GB/s and PCIe 128 GB/s, both directions together.
    h100 = load_profile("h100-sxm")
    peaks = {
        Precision.FP32: 67e12,
        Precision.TF32: 989e12 / 2,
        Precision.BF16: 1979e12 / 2,
        Precision.FP16: 1979e12 / 2,
    }
    for precision, peak in peaks.items():
        figure = h100.matmul_flop_per_s[precision]
        assert not figure.is_datasheet
        assert 0.5 * peak < figure.value < peak
    memory, copied = h100.memory_bytes_per_s, h100.host_to_device_bytes_per_s
    assert memory is not None and 0.5 * 3.35e12 < memory.value < 3.35e12
    assert copied is not None and copied.value < 128e9 / 2
    assert h100.links(2)[0] == h100.all_reduce[0]
    assert h100.all_reduce[0].bus_bytes_per_s < 900e9 / 2
    on_eight, note = h100.links(8)
    assert on_eight is not None
    assert on_eight.bus_bytes_per_s == h100.all_reduce[1].bus_bytes_per_s
    assert "latency" in note


def test_datasheet_profiles_hold_dense_peaks() -> None:
    # NVIDIA's datasheet of the A100: 312 TFLOPS of bf16 dense, 624 with sparsity.
    assert load_profile("a100-80gb-sxm").matmul_flop_per_s[Precision.BF16].value == 312e12


def test_a_profile_comes_back_from_its_file(tmp_path: Path) -> None:
    save_profile(profile(), tmp_path / "abacus.yaml")
    assert load_profile(str(tmp_path / "abacus.yaml")) == profile()


def test_an_unknown_profile_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadInput, match="no profile 'h900'") as caught:
        load_profile("h900")
    assert "h100-sxm" in caught.value.remedy


def test_links_of_the_nearest_number_of_ranks_stand_in_and_it_is_said() -> None:
    here = profile(all_reduce=[link(2, bus=1e9), link(8, bus=2e9)])
    assert here.links(2) == (here.all_reduce[0], "")
    found, note = here.links(5)
    assert found == here.all_reduce[1]
    assert note == "links on 5 ranks taken as on 8"
    assert profile(all_reduce=[]).links(2) == (None, "no link known")


def test_a_latency_nobody_has_measured_is_that_of_the_nearest_number_of_ranks() -> None:
    here = profile(all_reduce=[link(2, latency_s=3e-5), link(8, bus=2e9, latency_s=None)])
    found, note = here.links(7)
    assert found is not None
    assert (found.bus_bytes_per_s, found.latency_s) == (2e9, 3e-5)
    assert note == "links on 7 ranks taken as on 8; the latency on 7 ranks taken as on 2"
    assert here.gaps(Precision.FP32) == ()


def test_gaps_name_what_nobody_has_put_in() -> None:
    assert profile().gaps(Precision.FP32) == ()
    assert profile(launch_s=None, all_reduce=[link(2, latency_s=None)]).gaps(Precision.BF16) == (
        "the bf16 rate of matrix products",
        "the time to launch a kernel",
        "the latency of an all-reduce",
    )


def test_nothing_is_copied_to_a_cpu() -> None:
    on_cpu = profile(kind="cpu", host_to_device_bytes_per_s=None)
    assert on_cpu.gaps(Precision.FP32) == ()
    assert profile(host_to_device_bytes_per_s=None).gaps(Precision.FP32) == (
        "the rate of copies from the host",
    )


def test_datasheet_values_are_told_from_measurements() -> None:
    assert not figure(1.0).is_datasheet
    assert figure(1.0).model_copy(update={"source": "datasheet: NVIDIA"}).is_datasheet


def test_names_of_drivers_and_people_are_the_same_name() -> None:
    assert plain_name("NVIDIA H100 80GB HBM3 (simulated)") == plain_name("h100-80gb hbm3")

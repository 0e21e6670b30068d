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


def test_shipped_prices_name_their_page_and_day() -> None:
    for price in load_prices().prices:
        assert price.source.startswith("https://")
        assert date.fromisoformat(price.date).year >= 2026


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


def test_h100_figures_are_dense_peaks() -> None:
    # NVIDIA's datasheet: 1,979 TFLOPS of bf16 with sparsity, 67 of fp32, 3.35 TB/s, 900 GB/s.
    h100 = load_profile("h100-sxm")
    assert h100.matmul_flop_per_s[Precision.BF16].value == 1979e12 / 2
    assert h100.matmul_flop_per_s[Precision.FP32].value == 67e12
    assert h100.memory_bytes_per_s is not None
    assert h100.memory_bytes_per_s.value == 3.35e12
    assert h100.all_reduce[0].bus_bytes_per_s == 900e9 / 2


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

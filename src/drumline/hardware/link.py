"""How two devices of one machine reach each other, and what such a path can carry.

Bandwidths are nominal, of one direction, in 10^9 bytes a second: what the links should give. What
they do give is measured elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

# GB/s of one lane in one direction after line coding, by PCIe generation.
PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}

# GB/s of one NVLink in one direction, by generation.
NVLINK_GB_S = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}

# PCIe paths between two devices, from near to far.
PATHS = ("same board", "same switch", "several switches", "host bridge", "numa node", "system")


@dataclass(frozen=True)
class Link:
    """The best connection of one pair of devices; each pair has one.

    `kind` is "nvlink", "xgmi" or "pcie". `count` is the number of NVLinks or xGMI links, or of
    PCIe lanes. `path` is the PCIe path (one of PATHS), also where NVLink is there. `via_switch`
    says whether NVLinks go through an NVSwitch. `peer_to_peer` says whether the driver lets one
    device read the other's memory.
    """

    a: str
    b: str
    kind: str
    generation: int | None = None
    count: int | None = None
    bandwidth_gb_s: float | None = None
    path: str | None = None
    via_switch: bool | None = None
    peer_to_peer: bool | None = None


def nvlink_generation(compute_capability: tuple[int, int] | None) -> int | None:
    """The NVLink generation of an architecture, for cards that have NVLink at all.

    The architecture is asked rather than NVML's link version, whose codes are an enumeration and
    not the generation.
    """
    if compute_capability is None:
        return None
    return {6: 1, 7: 2, 8: 3, 9: 4, 10: 5}.get(compute_capability[0])


def nvlink_bandwidth_gb_s(
    generation: int | None, count: int, reported_mb_s: int | None
) -> float | None:
    """Bandwidth of `count` NVLinks. The reported speed is the line rate: where it is above the
    nominal rate (coding overhead) the nominal one counts, where below (narrow links) it does.
    """
    nominal = NVLINK_GB_S.get(generation) if generation else None
    reported = reported_mb_s / 1000 if reported_mb_s else None
    known = [rate for rate in (nominal, reported) if rate is not None]
    return round(count * min(known), 3) if known else None


def pcie_bandwidth_gb_s(generation: int | None, width: int | None) -> float | None:
    """Bandwidth of a PCIe link of a generation and a number of lanes."""
    if generation not in PCIE_LANE_GB_S or not width:
        return None
    return round(PCIE_LANE_GB_S[generation] * width, 3)


def pcie_link(
    a: tuple[str, int | None, int | None],
    b: tuple[str, int | None, int | None],
    *,
    path: str | None,
    peer_to_peer: bool | None = None,
) -> Link:
    """The PCIe link of two devices, each given as (uuid, generation, width): the slower of both
    ends counts.
    """
    generation, width = _smaller(a[1], b[1]), _smaller(a[2], b[2])
    rates = [pcie_bandwidth_gb_s(end[1], end[2]) for end in (a, b)]
    return Link(
        a[0],
        b[0],
        "pcie",
        generation,
        width,
        None if rates[0] is None or rates[1] is None else min(rates[0], rates[1]),
        path=path,
        peer_to_peer=peer_to_peer,
    )


def _smaller(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)

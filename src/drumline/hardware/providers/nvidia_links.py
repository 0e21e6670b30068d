"""The links between NVIDIA devices: NVLink where there is one, else the PCIe path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from drumline.hardware.device import Device, plain_pci_bus_id
from drumline.hardware.link import (
    PATHS,
    Link,
    nvlink_bandwidth_gb_s,
    nvlink_generation,
    pcie_link,
)
from drumline.hardware.providers.nvml_handle import NvmlHandle

PATH_OF_LEVEL = dict(zip((0, 10, 20, 30, 40, 50), PATHS, strict=True))
SWITCH = "switch"
PEER_READ = 0  # pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake


def read_links(nvml: Any, found: Sequence[tuple[Device, Any]]) -> tuple[Link, ...]:
    """One link for each pair of the devices that are there, given with their NVML handles."""
    # Handles of their own: a link that cannot be asked is no problem of the device.
    ends = [(device, NvmlHandle(nvml, handle)) for device, handle in found if not device.lost]
    peers = {device.uuid: _nvlink_peers(handle) for device, handle in ends}
    speeds = {device.uuid: _nvlink_speed_mb_s(handle) for device, handle in ends}
    links = []
    for (a, handle_a), (b, handle_b) in combinations(ends, 2):
        level = handle_a.get("nvmlDeviceGetTopologyCommonAncestor", handle_b.handle)
        status = handle_a.get("nvmlDeviceGetP2PStatus", handle_b.handle, PEER_READ)
        path = PATH_OF_LEVEL.get(level) if level is not None else None
        peer_to_peer = None if status is None else status == 0
        count, via_switch = _nvlinks_between(peers, a, b)
        if not count:
            ends_of_pair = [(d.uuid, d.pcie_generation, d.pcie_width) for d in (a, b)]
            links.append(pcie_link(*ends_of_pair, path=path, peer_to_peer=peer_to_peer))
            continue
        generation = nvlink_generation(a.compute_capability)
        rate = nvlink_bandwidth_gb_s(generation, count, speeds[a.uuid])
        links.append(
            Link(a.uuid, b.uuid, "nvlink", generation, count, rate, path, via_switch, peer_to_peer)
        )
    return tuple(links)


def _nvlinks_between(peers: dict[str, Counter[str]], a: Device, b: Device) -> tuple[int, bool]:
    """Number of NVLinks of a pair, and whether they go through a switch. Behind a switch each
    device reaches each other with all of its links.
    """
    direct = peers[a.uuid][b.pci_bus_id or ""]
    if direct:
        return direct, False
    return min(peers[a.uuid][SWITCH], peers[b.uuid][SWITCH]), True


def _nvlink_peers(device: NvmlHandle) -> Counter[str]:
    """How many active NVLinks lead to each PCI address, or to a switch."""
    peers: Counter[str] = Counter()
    for link in range(device.nvml.NVML_NVLINK_MAX_LINKS):
        state = device.get("nvmlDeviceGetNvLinkState", link)
        if state is None:
            break
        if not state:
            continue
        remote = device.get("nvmlDeviceGetNvLinkRemoteDeviceType", link)
        if remote == device.nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            peers[SWITCH] += 1
            continue
        pci = device.get("nvmlDeviceGetNvLinkRemotePciInfo", link)
        if pci is not None:
            bus_id = pci.busId.decode() if isinstance(pci.busId, bytes) else pci.busId
            peers[plain_pci_bus_id(bus_id)] += 1
    return peers


def _nvlink_speed_mb_s(device: NvmlHandle) -> int | None:
    """Line rate of one NVLink in MB/s, or None."""
    field = device.nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
    answers = device.get("nvmlDeviceGetFieldValues", [field])
    if not answers or answers[0].nvmlReturn != 0:
        return None
    speed = int(answers[0].value.uiVal)
    return speed or None

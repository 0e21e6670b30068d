"""Simulated devices, so that every screen and rule can be tried with eight devices on a laptop.

Chosen only by an explicit setting, and labelled everywhere: in kind, name, UUID and the field
`simulated`. The setting names numbers of cards joined by "+", each with a load pattern after a
colon if wanted (`load` lists them; "mixed" takes each in turn): "8xH100", "4xA100-40GB+4xL4",
"8xH100:mixed". Everything is a function of the
setting and of the time since the provider was made.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from itertools import combinations

from drumline.errors import DeviceError
from drumline.hardware.device import Device
from drumline.hardware.link import Link, nvlink_bandwidth_gb_s, nvlink_generation, pcie_link
from drumline.hardware.providers.cards import CARDS, GIB, Card
from drumline.hardware.providers.interface import Findings
from drumline.hardware.providers.load import LOST_AFTER_S, PATTERNS, load_fields

MOST_DEVICES = 256
SIMULATED = "The devices are simulated."
XGMI_GB_S = 64.0


class SimulatedProvider:
    """Any number and kind of devices that are not there.

    Args:
        setting: What to simulate, as above.
        clock: Seconds on a monotonic clock.

    Raises:
        DeviceError: If the setting cannot be read.
    """

    def __init__(self, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries = parse_simulation(setting)
        self._clock = clock
        self._start = clock()
        self._devices = [
            _device(index, card, setting) for index, (card, _) in enumerate(self._entries)
        ]

    def probe(self) -> Findings:
        """All devices and the links between those that are there."""
        devices = self.sample()
        ends = [
            (d, entry[0]) for d, entry in zip(devices, self._entries, strict=True) if not d.lost
        ]
        links = tuple(_link(*a, *b) for a, b in combinations(ends, 2))
        problems = tuple(f"GPU {d.index} ({d.name}): {d.problem}" for d in devices if d.problem)
        return Findings(devices, links, (SIMULATED, *problems), "simulated")

    def sample(self) -> tuple[Device, ...]:
        """All devices as they are now."""
        elapsed_s = self._clock() - self._start
        return tuple(
            _at(device, *entry, elapsed_s)
            for device, entry in zip(self._devices, self._entries, strict=True)
        )

    def close(self) -> None:
        """Nothing to let go of."""


def parse_simulation(setting: str) -> list[tuple[Card, str]]:
    """The card and load pattern of each simulated device.

    Raises:
        DeviceError: If a part is not COUNTxCARD[:PATTERN], or names what there is not.
    """
    entries: list[tuple[Card, str]] = []
    for part in setting.split("+"):
        match = re.fullmatch(r"\s*(\d+)\s*[xX*]\s*([\w.-]+?)\s*(?::\s*(\w+)\s*)?", part)
        if match is None or int(match[1]) == 0:
            raise DeviceError(
                f"The simulation {setting!r} cannot be read at {part.strip()!r}.",
                remedy="For example: 8xH100 or 4xA100-40GB+4xL4:idle",
                simulate=setting,
            )
        card = CARDS[_known(match[2].upper(), list(CARDS), "card", setting)]
        pattern = _known((match[3] or "idle").lower(), [*PATTERNS, "mixed"], "load", setting)
        for place in range(min(int(match[1]), MOST_DEVICES + 1)):
            turn = PATTERNS[place % len(PATTERNS)]
            entries.append((card, turn if pattern == "mixed" else pattern))
    if len(entries) > MOST_DEVICES:
        raise DeviceError(
            f"The simulation {setting!r} asks for more than {MOST_DEVICES} devices.",
            remedy=f"Ask for up to {MOST_DEVICES}.",
            simulate=setting,
        )
    return entries


def _known(name: str, names: list[str], what: str, setting: str) -> str:
    if name in names:
        return name
    near = get_close_matches(name, names, n=1, cutoff=0.4)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise DeviceError(
        f"The simulation {setting!r} names an unknown {what}: {name}.",
        remedy=f"{meant}There are: {', '.join(names)}.",
        simulate=setting,
    )


def _device(index: int, card: Card, setting: str) -> Device:
    identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{setting}/{index}")
    nvidia = isinstance(card.architecture, tuple)
    return Device(
        f"SIM-{identity}",
        index,
        f"simulated-{card.family}",
        name=f"{card.name} (simulated)",
        pci_bus_id=f"{index // 128:04x}:{index % 128 + 1:02x}:00.0",
        compute_capability=card.architecture if isinstance(card.architecture, tuple) else None,
        gfx_target=card.architecture if isinstance(card.architecture, str) else None,
        cores=card.cores,
        memory_total_bytes=card.memory_gib * GIB,
        max_sm_clock_mhz=card.max_sm_clock_mhz,
        max_memory_clock_mhz=card.max_memory_clock_mhz,
        pcie_generation=card.pcie_generation,
        pcie_width=16,
        numa_node=index // 4 % 2,
        mig_enabled=False if nvidia else None,
        simulated=True,
    )


def _at(device: Device, card: Card, pattern: str, elapsed_s: float) -> Device:
    if pattern == "lost" and elapsed_s >= LOST_AFTER_S:
        return device.as_lost("The device has fallen off the bus (simulated).")
    return replace(device, **load_fields(card, pattern, device.index, elapsed_s))


def _link(a: Device, card_a: Card, b: Device, card_b: Card) -> Link:
    """Like cards with NVLink are joined by a switch; all others by PCIe, across sockets in the
    worst case.
    """
    path = "host bridge" if a.numa_node == b.numa_node else "system"
    if card_a is card_b and card_a.nvlinks and card_a.family == "cuda":
        generation = nvlink_generation(a.compute_capability)
        rate = nvlink_bandwidth_gb_s(generation, card_a.nvlinks, None)
        return Link(a.uuid, b.uuid, "nvlink", generation, card_a.nvlinks, rate, path, True, True)
    if card_a is card_b and card_a.nvlinks:
        return Link(a.uuid, b.uuid, "xgmi", None, 1, XGMI_GB_S, path, False, True)
    ends = [(device.uuid, device.pcie_generation, device.pcie_width) for device in (a, b)]
    return pcie_link(*ends, path=path, peer_to_peer=a.family == b.family)

"""Which of like devices are joined most tightly: NVLink before PCIe, near before far."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from drumline.hardware import Device, Link, Machine
from drumline.hardware.link import PATHS

Rank = tuple[int, float, int, float]


class Tightness:
    """The links of a machine as ranks that compare: higher is tighter."""

    def __init__(self, machine: Machine) -> None:
        self._ranks = {frozenset((link.a, link.b)): _rank(link) for link in machine.links}
        self._links = {frozenset((link.a, link.b)): link for link in machine.links}

    def of(self, a: Device, b: Device) -> Rank:
        """The rank of one pair; a pair without a known link is the loosest."""
        return self._ranks.get(frozenset((a.uuid, b.uuid)), (0, 0.0, -len(PATHS), 0.0))

    def loosest(self, devices: Sequence[Device]) -> Rank | None:
        """The rank of the loosest pair, which a ring waits for; None for fewer than two."""
        return min((self.of(a, b) for a, b in combinations(devices, 2)), default=None)

    def in_words(self, devices: Sequence[Device]) -> str | None:
        """How the loosest pair is joined; None where that is not known."""
        pairs = list(combinations(devices, 2))
        if not pairs:
            return None
        pair = min(pairs, key=lambda pair: self.of(*pair))
        link = self._links.get(frozenset(device.uuid for device in pair))
        return None if link is None else link_in_words(link)

    def tightest(
        self, devices: Sequence[Device], count: int, others: Sequence[Device] = ()
    ) -> list[Device]:
        """`count` of the devices, chosen so that the loosest pair is as tight as can be.

        From each device a set is grown by the next tightest; real machines link their devices in
        trees of ever looser levels, where that finds the best. Of sets as tight, the one wins that
        leaves the tightest links among the devices left, then the one of lower indices.

        Args:
            devices: At least `count`.
            count: How many.
            others: Devices that the chosen must also reach: those already chosen.
        """
        if count >= len(devices):
            return list(devices)
        grown = (self._grow(seed, devices, count, others) for seed in devices)
        distinct = {
            frozenset(device.uuid for device in grown_set): grown_set for grown_set in grown
        }
        return min(distinct.values(), key=lambda chosen: self._order(chosen, devices, others))

    def _grow(
        self, seed: Device, devices: Sequence[Device], count: int, others: Sequence[Device]
    ) -> list[Device]:
        chosen = [seed]
        reach = {
            device.uuid: min(self.of(device, end) for end in (seed, *others))
            for device in devices
            if device.uuid != seed.uuid
        }
        by_uuid = {device.uuid: device for device in devices}
        while len(chosen) < count:
            best = max(reach, key=lambda uuid: (reach[uuid], -by_uuid[uuid].index))
            added = by_uuid[best]
            chosen.append(added)
            del reach[best]
            reach = {uuid: min(rank, self.of(by_uuid[uuid], added)) for uuid, rank in reach.items()}
        return sorted(chosen, key=lambda device: device.index)

    def _order(
        self, chosen: list[Device], devices: Sequence[Device], others: Sequence[Device]
    ) -> tuple[object, ...]:
        """Sorts the better set first. What is broken up: the tightest link from chosen to left."""
        uuids = {device.uuid for device in chosen}
        left = [device for device in devices if device.uuid not in uuids]
        loosest = self.loosest([*others, *chosen])
        broken = max(self.of(a, b) for a in chosen for b in left)
        indices = [device.index for device in chosen]
        return (_reversed(loosest), broken, indices, [device.uuid for device in chosen])


def link_in_words(link: Link) -> str:
    """A link as a reason names it, with its nominal bandwidth."""
    rate = "" if link.bandwidth_gb_s is None else f", {link.bandwidth_gb_s:g} GB/s"
    if link.kind in ("nvlink", "xgmi"):
        name = "NVLink" if link.kind == "nvlink" else "xGMI"
        return f"{name}{rate}"
    return f"PCIe, {link.path or 'path unknown'}{rate}"


def _rank(link: Link) -> Rank:
    direct = int(link.kind in ("nvlink", "xgmi"))
    path = -PATHS.index(link.path) if link.path in PATHS else -len(PATHS)
    rate = link.bandwidth_gb_s or 0.0
    return (direct, rate if direct else 0.0, path, rate)


def _reversed(rank: Rank | None) -> tuple[float, ...]:
    return () if rank is None else tuple(-part for part in rank)

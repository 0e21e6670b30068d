"""What a device can do, in numbers that each say where they come from.

A profile is a YAML file. Those that come with the package are in `profiles/`; a user's own is
given by its path. A number is either measured or a vendor's datasheet value, and its `source` says
which. What nobody has measured is left out: it is counted as nothing, and the estimate says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from drumline.config import Precision, Section
from drumline.config.load import read_mapping, validate
from drumline.errors import BadInput
from drumline.run_directory import write_atomically

PROFILES = Path(__file__).with_name("profiles")


class Figure(Section):
    """One number with where it comes from."""

    value: NonNegativeFloat = Field(description="the number, in the unit its key names")
    source: str = Field(description='"datasheet: WHICH" or "measured: HOW"')
    date: str = Field(description="day it was read or measured, as 2026-01-31")

    @property
    def is_datasheet(self) -> bool:
        """Whether this is a vendor's peak and not a measurement."""
        return self.source.startswith("datasheet")


class AllReduce(Section):
    """All-reduce on one number of ranks, by the alpha-beta model: a latency for each call, and a
    bus bandwidth. Of n bytes on w ranks each device moves 2 (w - 1) / w n bytes.
    """

    world_size: PositiveInt = Field(description="number of ranks")
    latency_s: NonNegativeFloat | None = Field(None, description="time of a call that sends little")
    bus_bytes_per_s: PositiveFloat = Field(description="bus bandwidth of a large call")
    source: str = Field(description='"datasheet: WHICH" or "measured: HOW"')
    date: str = Field(description="day it was read or measured, as 2026-01-31")


class DeviceProfile(Section):
    """One kind of device, and the links between several of it."""

    name: str = Field(description="what the profile is called")
    matches: list[str] = Field([], description="device names as the driver tells them")
    kind: Literal["cuda", "rocm", "cpu"] = Field("cuda", description="family of the device")
    compute_capability: tuple[int, int] | None = Field(None, description="NVIDIA architecture")
    matmul_flop_per_s: dict[Precision, Figure] = Field(
        {}, description="rate of a large matrix product, by precision"
    )
    memory_bytes_per_s: Figure | None = Field(None, description="device memory, read plus write")
    launch_s: Figure | None = Field(None, description="time of the host for each kernel")
    host_to_device_bytes_per_s: Figure | None = Field(None, description="copy from host memory")
    all_reduce: list[AllReduce] = Field([], description="links, by number of ranks")

    def for_device(self, name: str | None) -> bool:
        """Whether this profile describes a device of that name."""
        return name is not None and plain_name(name) in map(plain_name, [self.name, *self.matches])

    def links(self, world_size: int) -> tuple[AllReduce | None, str]:
        """The all-reduce figures for a number of ranks, and a note where others stand in.

        Those of the nearest number of ranks stand in for one that is not listed, the larger of
        two as near: bus bandwidth changes little with the number, and latency is then too high
        rather than too low. So does the latency of the nearest that has one.
        """
        best = _nearest(self.all_reduce, world_size)
        if best is None:
            return None, "no link known"
        notes = []
        if best.world_size != world_size:
            notes.append(f"links on {world_size} ranks taken as on {best.world_size}")
        timed = _nearest([e for e in self.all_reduce if e.latency_s is not None], world_size)
        if best.latency_s is None and timed is not None:
            best = best.model_copy(update={"latency_s": timed.latency_s})
            notes.append(f"the latency on {world_size} ranks taken as on {timed.world_size}")
        return best, "; ".join(notes)

    def gaps(self, precision: Precision) -> tuple[str, ...]:
        """What a prediction needs and nobody has put in."""
        latencies = [entry for entry in self.all_reduce if entry.latency_s is not None]
        copied = self.host_to_device_bytes_per_s is not None or self.kind == "cpu"
        needed = {
            f"the {precision.value} rate of matrix products": self.matmul_flop_per_s.get(precision),
            "the memory's rate": self.memory_bytes_per_s,
            "the time to launch a kernel": self.launch_s,
            "the rate of copies from the host": copied or None,
            "the links": self.all_reduce or None,
            "the latency of an all-reduce": latencies or None,
        }
        return tuple(name for name, figure in needed.items() if figure is None)


def _nearest(entries: Sequence[AllReduce], world_size: int) -> AllReduce | None:
    return min(
        entries,
        key=lambda entry: (abs(entry.world_size - world_size), -entry.world_size),
        default=None,
    )


def plain_name(name: str) -> str:
    """A device name without what differs between drivers: case, vendor, "(simulated)"."""
    words = re.findall(r"[a-z0-9]+", name.lower().replace("(simulated)", ""))
    return " ".join(word for word in words if word != "nvidia")


def load_profile(reference: str) -> DeviceProfile:
    """A profile by its name, by a device's name, or from a YAML file.

    Raises:
        BadInput: If there is none, with those there are.
        ConfigError: If the file has wrong keys.
    """
    path = Path(reference)
    if path.suffix in (".yaml", ".yml", ".json") or path.is_file():
        return _read(path)
    stored = stored_profiles()
    for key, profile in stored.items():
        if key == reference.lower() or profile.for_device(reference):
            return profile
    raise BadInput(
        f"There is no profile {reference!r}.",
        remedy=f"Use one of {', '.join(stored)}, or the path of a YAML file.",
        profile=reference,
    )


def save_profile(profile: DeviceProfile, path: Path) -> None:
    """Write a profile as YAML, whole or not at all."""
    write_atomically(path, yaml.safe_dump(profile.model_dump(mode="json"), sort_keys=False))


def stored_profiles() -> dict[str, DeviceProfile]:
    """The profiles that come with the package, by the names of their files."""
    return {path.stem: _read(path) for path in sorted(PROFILES.glob("*.yaml"))}


def find_profile(device_name: str | None) -> DeviceProfile | None:
    """The stored profile of a device, by the name its driver tells; None if there is none."""
    return next((p for p in stored_profiles().values() if p.for_device(device_name)), None)


def _read(path: Path) -> DeviceProfile:
    return validate(DeviceProfile, read_mapping(path), str(path))

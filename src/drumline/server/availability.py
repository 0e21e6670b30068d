"""Every device of every host, and whether it can be had: what the inventory, the sensors, the
leases and the operators' reservations say together.

What speaks against a device is decided in `planning.availability` and, for the queue, in
`jobs.fleet`; this only tells it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from drumline.database import now_ms
from drumline.errors import BadInput, DeviceError
from drumline.hardware import Device, Machine
from drumline.hardware.device_locks import held_on
from drumline.jobs.fleet import host_of
from drumline.jobs.leases import HeldDevice
from drumline.jobs.queue import Slot
from drumline.jobs.reservations import Reservation
from drumline.jobs.training import Training
from drumline.jobs.waiting import read_taken
from drumline.monitoring.inventory import HostView
from drumline.planning.recommend import Recommendation, Verdict, recommend, validate
from drumline.server.errors import NotFound
from drumline.server.services import Services

SILENT_AFTER_S = 30.0
"""A host that has not been heard of for so long cannot be counted on, nor can its devices."""


@dataclass(frozen=True)
class Unit:
    """A device with all that is known about its being free.

    `slot` is the queue's view of it; None of a device that is split by MIG, which is no unit.
    """

    device: Device
    host: HostView
    silent_s: float | None
    slot: Slot | None
    held: HeldDevice | None
    holder: Training | None
    reserved: Reservation | None


class Availability:
    """Answers about the devices of all hosts."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def hosts(self) -> list[HostView]:
        """All hosts, the one sampled here as it was a moment ago."""
        views = self._services.inventory.machines()
        here = self._services.machine()
        if here is None:
            return views
        host_id, machine = here
        return [_as_now(view, machine) if view.id == host_id else view for view in views]

    def units(self, views: Sequence[HostView] | None = None) -> list[Unit]:
        """All devices and MIG instances of these hosts, by default of all."""
        services, now = self._services, now_ms()
        held, reserved = services.leases.held(), services.leases.reserved()
        holders = self._holders({device.training_id for device in held.values()})
        units = []
        for view in self.hosts() if views is None else views:
            slots = {slot.uuid: slot for slot in self._slots(view, now)}
            silent_s = silence_s(view, now)
            for device in _all_of(view.machine):
                lease = held.get(device.uuid)
                units.append(
                    Unit(
                        device,
                        view,
                        silent_s,
                        slots.get(device.uuid),
                        lease,
                        None if lease is None else holders.get(lease.training_id),
                        reserved.get(device.uuid),
                    )
                )
        return units

    def unit(self, reference: str) -> Unit:
        """The device of a UUID, or of the beginning of one.

        Raises:
            NotFound: If there is none, or more than one.
        """
        units = self.units()
        exact = [unit for unit in units if unit.device.uuid == reference]
        found = exact or [unit for unit in units if unit.device.uuid.startswith(reference)]
        if len(found) != 1:
            what = f"means {len(found)} devices" if found else "is no known device"
            raise NotFound(
                f"{reference[:100]} {what}.", remedy="Devices are listed at /api/v1/system/gpus."
            )
        return found[0]

    def recommend(
        self, count: int | None, memory_bytes: int | None, host: str | None
    ) -> tuple[HostView, Recommendation]:
        """The devices that suit best, on the first host that has them.

        Raises:
            DeviceError: If no host has them, with what is wrong with each device.
            NotFound: If there is no such host.
        """
        occupied, kept_back = self.taken()
        refusals: list[DeviceError] = []
        for view in self.hosts_there(host):
            try:
                found = recommend(
                    view.machine,
                    "auto" if count is None else count,
                    memory_bytes,
                    occupied,
                    kept_back,
                )
            except DeviceError as error:
                refusals.append(error)
            else:
                return view, found
        if refusals:
            raise refusals[0]
        raise DeviceError(
            "No host of the service is there.", remedy="Start one with: drumline agent"
        )

    def validate(
        self, gpu_ids: Sequence[str], memory_bytes: int | None, host: str | None
    ) -> tuple[list[Verdict], str | None]:
        """A verdict on each device of a choice, and what speaks against them together."""
        occupied, kept_back = self.taken()
        views = self.hosts_there(host)
        homes = [_home(reference, views) for reference in gpu_ids]
        verdicts: dict[int, Verdict] = {}
        for view in views:
            places = [place for place, home in enumerate(homes) if home is view]
            chosen = [gpu_ids[place] for place in places]
            told = validate(view.machine, chosen, memory_bytes, occupied, kept_back)
            verdicts.update(zip(places, told, strict=True))
        unknown = "no host of the service has such a device"
        listed = [
            verdicts.get(place, Verdict(reference, False, unknown))
            for place, reference in enumerate(gpu_ids)
        ]
        names = {home.id for home in homes if home is not None}
        apart = f"they are on {len(names)} hosts: {', '.join(sorted(names))}"
        return listed, apart if len(names) > 1 else None

    def taken(self) -> tuple[set[str], set[str]]:
        """UUIDs of the devices that are leased, and of those that an operator keeps back."""
        reserved = self._services.leases.reserved().values()
        kept_back = {one.device_uuid for one in reserved if one.training_id is None}
        return {*self._services.leases.held(), *self._locked()}, kept_back

    def hosts_there(self, host: str | None) -> list[HostView]:
        """The hosts that can be counted on, or the one of this id.

        Raises:
            NotFound: If there is none of this id.
        """
        now = now_ms()
        views = [view for view in self.hosts() if silence_s(view, now) is None]
        if host is None:
            return views
        found = [view for view in views if view.id == host]
        if not found:
            raise NotFound(
                f"There is no host {host[:100]!r}, or it has not been heard of for "
                f"{SILENT_AFTER_S:.0f} s.",
                remedy="Hosts are listed at /api/v1/system/hosts.",
                field="host",
            )
        return found

    def _slots(self, view: HostView, time_ms: int) -> tuple[Slot, ...]:
        """The devices of a host as the queue sees them."""
        with self._services.database.reading() as connection:
            taken = read_taken(connection, view.id, time_ms)
        here = self._services.machine()
        if here is not None and here[0] == view.id:
            taken = replace(taken, locked=self._locked())
        return host_of(view.id, view.machine, taken).slots

    def _locked(self) -> Mapping[str, object]:
        """Devices of this host that runs hold by file, those outside the queue among them."""
        here = self._services.machine()
        return {} if here is None else held_on(here[1])

    def _holders(self, ids: set[str]) -> dict[str, Training]:
        return {one.id: one for one in self._services.trainings.some(ids)}


def silence_s(view: HostView, time_ms: int) -> float | None:
    """For how long a host has been silent, where that is too long; else None."""
    age_s = view.age_s(time_ms)
    return age_s if age_s > SILENT_AFTER_S else None


def only_host(views: Sequence[HostView]) -> HostView:
    """The one host among those asked for.

    Raises:
        BadInput: If there are several, as none was named, or there is none.
    """
    if len(views) == 1:
        return views[0]
    if not views:
        raise BadInput("No host of the service is there.", remedy="Start one with: drumline agent")
    raise BadInput(
        f"There are {len(views)} hosts: {', '.join(view.id for view in views)}.",
        remedy="Name one in `host`.",
        field="host",
    )


def _as_now(view: HostView, machine: Machine) -> HostView:
    """The view with fresh readings, and the devices that only the inventory still knows."""
    there = {device.uuid for device in _all_of(machine)}
    gone = [d for d in view.machine.devices if d.lost and d.uuid not in there]
    return replace(
        view,
        machine=replace(machine, devices=(*machine.devices, *gone)),
        last_seen_ms=max(view.last_seen_ms, now_ms()),
    )


def _all_of(machine: Machine) -> list[Device]:
    return [unit for device in machine.devices for unit in (device, *device.mig_instances)]


def _home(reference: str, views: Sequence[HostView]) -> HostView | None:
    """The one host that has such a device; None where none or several have."""
    having = [view for view in views if _has(view.machine, reference)]
    return having[0] if len(having) == 1 else None


def _has(machine: Machine, reference: str) -> bool:
    try:
        machine.device(reference)
    except DeviceError:
        return False
    return True

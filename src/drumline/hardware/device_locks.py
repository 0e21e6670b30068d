"""Who holds a device on this machine: one lock file for each, which the kernel lets go of when its
holders end, however they end.

The launcher of a run claims its devices and every rank joins the claim, so a device is free only
when the last of them is gone. It needs no service and binds all users of a machine who share the
folder; whoever does not ask here is not bound. What belongs to queued trainings is in `jobs`.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from drumline.config.environment import lock_folder_setting

if TYPE_CHECKING:
    from drumline.hardware.machine import Machine

_SHARED = (Path("/run/lock"), Path("/tmp"))
_TRIES = 5
_PAUSE_S = 0.02
"""One who only looks holds a lock for microseconds; a claim that meets one tries again."""


@dataclass(frozen=True)
class Holder:
    """Who holds a device, as far as it has told: process id, its user, the run directory."""

    pid: int | None = None
    owner: str | None = None
    run_directory: str | None = None

    def __str__(self) -> str:
        process = "another process" if self.pid is None else f"process {self.pid}"
        owner = f" of {self.owner}" if self.owner else ""
        return f"{process}{owner}" + (f" ({self.run_directory})" if self.run_directory else "")


class DeviceLocked(Exception):
    """Another process has claimed the device `uuid` since it was found free."""

    def __init__(self, uuid: str, holder: Holder) -> None:
        super().__init__(f"{uuid} is held by {holder}")
        self.uuid, self.holder = uuid, holder


def held_on(machine: Machine) -> dict[str, Holder]:
    """Devices of a machine, MIG instances too, that processes hold now, and who they are."""
    if not machine.devices:
        return {}
    units = [unit for device in machine.devices for unit in (device, *device.mig_instances)]
    try:
        folder = lock_folder()
    except OSError:  # where no folder can be made, nobody has locked anything
        return {}
    return holders(folder, (unit.uuid for unit in units))


def lock_folder() -> Path:
    """The folder of the lock files, made if need be: the one set, or one that all users share.

    Where the shared one cannot be used, it is a folder of this user's own, and other users'
    claims are not seen.
    """
    setting = lock_folder_setting()
    if setting:
        folder = Path(setting)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    shared = next((path for path in _SHARED if _open_to_all(path)), Path("/tmp"))
    for folder, mode in (
        (shared / "drumline", 0o1777),
        (Path(f"/tmp/drumline-{os.getuid()}"), 0o700),
    ):
        with suppress(OSError):
            folder.mkdir()
            folder.chmod(mode)  # mkdir's own mode is cut by the umask
        if os.access(folder, os.W_OK | os.X_OK) and not folder.is_symlink():
            return folder
    return folder


def holders(folder: Path, uuids: Iterable[str]) -> dict[str, Holder]:
    """Those of some devices that a process holds now, and who it is."""
    found = {}
    for uuid in uuids:
        path = _path(folder, uuid)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if _is_held(descriptor):
                found[uuid] = _told(descriptor)
        finally:
            os.close(descriptor)
    return found


class DeviceLocks:
    """Devices that this process has claimed; a context that lets them go at its end.

    Args:
        folder: As `lock_folder` gives it.
        uuids: Which devices. All of them are claimed or none.

    Raises:
        DeviceLocked: If another process holds one.
    """

    def __init__(self, folder: Path, uuids: Iterable[str]) -> None:
        self.paths: list[Path] = []
        self._descriptors: list[int] = []
        if uuids := sorted(uuids):
            self._keep(folder)
        try:
            for uuid in uuids:
                path = _path(folder, uuid)
                self._descriptors.append(_claimed(path, uuid))
                self.paths.append(path)
        except BaseException:
            self.release()
            raise

    def tell(self, run_directory: Path | None = None) -> None:
        """Say to others who holds the devices, and for what run."""
        where = None if run_directory is None else str(run_directory)
        told = {"pid": os.getpid(), "owner": _user(), "run_directory": where}
        text = json.dumps(told).encode()
        for descriptor in self._descriptors[1:]:
            with suppress(OSError):  # a full disk; the lock holds all the same
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, text, 0)

    def release(self) -> None:
        """Let go. Ranks that have joined keep holding what they hold."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __enter__(self) -> DeviceLocks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _keep(self, folder: Path) -> None:
        """A folder that is locked is passed over by what cleans /tmp of old files."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors.append(descriptor)
        _locked(descriptor, fcntl.LOCK_SH)


def join_claim(paths: Iterable[str]) -> None:
    """Hold what the launcher holds, until this process and all it forks have ended."""
    for path in paths:
        with suppress(OSError):
            _locked(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), fcntl.LOCK_SH)


def _is_held(descriptor: int) -> bool:
    """Whether somebody else keeps a lock. Holders keep shared ones: who has an exclusive one only
    looks, as this does, or is about to claim what nobody holds.
    """
    if _locked(descriptor, fcntl.LOCK_EX) or not _locked(descriptor, fcntl.LOCK_SH):
        return False
    return not _locked(descriptor, fcntl.LOCK_EX)


def _claimed(path: Path, uuid: str) -> int:
    """An open descriptor of the device's file, locked.

    An exclusive lock proves that nobody holds it. A shared one is kept, which ranks can join and
    which keeps out whoever asks for an exclusive one.
    """
    for left in reversed(range(_TRIES)):
        descriptor = _opened(path)
        locked = _locked(descriptor, fcntl.LOCK_EX) and _locked(descriptor, fcntl.LOCK_SH)
        if locked and _is_at(path, descriptor):  # not one that was removed meanwhile
            return descriptor
        holder = _told(descriptor)
        os.close(descriptor)
        if left:
            time.sleep(_PAUSE_S)
    raise DeviceLocked(uuid, holder)


def _opened(path: Path) -> int:
    """The file, open to all users. Linux forbids O_CREAT on another's file in a folder like /tmp,
    so a file that is there is opened without it.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags)
    with suppress(OSError):
        os.fchmod(descriptor, 0o666)  # whatever the umask
    return descriptor


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _told(descriptor: int) -> Holder:
    try:
        told: Any = json.loads(os.pread(descriptor, 10_000, 0))
        return Holder(told["pid"], told["owner"], told["run_directory"])
    except (OSError, ValueError, TypeError, KeyError):
        return Holder()


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in containers
        return str(os.getuid())


def _path(folder: Path, uuid: str) -> Path:
    return folder / f"{uuid.replace('/', '_')}.lock"


def _open_to_all(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_ISVTX and mode & stat.S_IWOTH)

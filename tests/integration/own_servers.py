"""A PostgreSQL and a Redis of a test's own, to be killed with signal 9 and started again.

The servers that other tests share must live on. PostgreSQL refuses to run as root; there it runs as
the user that its package makes.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import redis
from support import until

ROOT = os.geteuid() == 0
OWNER = "postgres" if ROOT else getpass.getuser()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


class Server:
    """A server process that can be killed and started again, on one port and with its data."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self._command, self._options = command, options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, again if need be: PostgreSQL ends at once as long as a child of the one before,
        which was being forked when that was killed, has yet to notice.
        """

        def answers() -> bool:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    self._command,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    **self._options,
                )
            return self.answers()

        until("the server to answer", answers)

    def kill(self) -> None:
        """End it and all its children at once, as the kernel would for want of memory."""
        assert self._process is not None
        processes = [*psutil.Process(self._process.pid).children(recursive=True)]
        for number in (self._process.pid, *(process.pid for process in processes)):
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:  # a child that was about to end
                continue
        self._process.wait()
        psutil.wait_procs(processes)

    def answers(self) -> bool:
        raise NotImplementedError


class Postgresql(Server):
    """`url` names its one database."""

    def __init__(self, folder: Path) -> None:
        self._port = _free_port()
        self.url = f"postgresql+psycopg://{OWNER}@127.0.0.1:{self._port}/postgres"
        options: dict[str, Any] = {"cwd": folder}
        if ROOT:
            shutil.chown(folder, OWNER, OWNER)
            options |= {"user": OWNER, "group": OWNER, "extra_groups": []}
        programs = _programs()
        data = folder / "data"
        make = [programs / "initdb", "-D", data, "-A", "trust", "-U", OWNER, "-E", "UTF8", "-N"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, **options)
        serve = ["-D", data, "-p", self._port, "-h", "127.0.0.1", "-k", folder]
        super().__init__([str(part) for part in (programs / "postgres", *serve)], **options)

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url.replace("+psycopg", ""), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


class Redis(Server):
    """Keeps nothing, as a broker may."""

    def __init__(self, folder: Path) -> None:
        self._port = _free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        command = ["redis-server", "--port", str(self._port), "--bind", "127.0.0.1"]
        super().__init__([*command, "--save", "", "--appendonly", "no"], cwd=folder)

    def answers(self) -> bool:
        try:
            return bool(redis.Redis.from_url(self.url).ping())
        except redis.ConnectionError:
            return False


@contextmanager
def running(kind: type[Postgresql] | type[Redis]) -> Iterator[Postgresql | Redis]:
    """One that has started; it and its data are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="drumline-server-"))  # others may not enter pytest's
    try:
        server = kind(folder)
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder)


def _programs() -> Path:
    """Where PostgreSQL's own programs are, which many packages leave out of PATH."""
    asked = shutil.which("initdb")
    if asked is not None:
        return Path(asked).parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    assert found, "this test needs PostgreSQL's server programs: apt install postgresql"
    return found[-1].parent

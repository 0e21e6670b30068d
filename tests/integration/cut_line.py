"""A TCP line to a server that a test can cut and mend, as a network or a server's restart does."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class CutLine:
    """Forwards connections from a port of its own to a server, while it is not cut."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections and refuse new ones."""
        with self._lock:
            self._is_cut = True
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def mend(self) -> None:
        """Take connections again."""
        with self._lock:
            self._is_cut = False

    def __enter__(self) -> CutLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(self._server)
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

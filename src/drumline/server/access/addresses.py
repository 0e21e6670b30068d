"""Which names this service goes by, and whether a page may ask it for something.

A page of another site can have a name of its own point to this machine (DNS rebinding), so a
request counts only if its Host is a name of this service; and a browser tells in Origin which site
a page that sends something is from.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from drumline.config.service import LOOPBACK, ServiceSettings

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Names:
    """The names under which a service may be asked.

    On loopback its names are those of loopback. On another address it goes by that, by any
    address written as numbers, which nobody can rebind, and by the machine's name. `allowed_hosts`
    come on top.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        own = LOOPBACK if settings.loopback_only else (settings.host, socket.gethostname())
        named = (_name_of(name) or name for name in settings.allowed_hosts)
        self._names = {_plain(name) for name in (*own, *LOOPBACK, *named)}
        self._any_number = not settings.loopback_only

    def has(self, host: str) -> bool:
        """Whether a Host header, with or without a port, names this service."""
        name = _plain(_name_of(host))
        return bool(name) and (name in self._names or (self._any_number and _is_number(name)))


def same_site(origin: str, host: str) -> bool:
    """Whether an Origin is the site that the Host header names."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if parts.scheme not in _DEFAULT_PORTS or not parts.netloc:
        return False
    default = _DEFAULT_PORTS[parts.scheme]
    asking = _with_port(parts.netloc, default)
    return asking is not None and asking == _with_port(host, default)


def needs_token(settings: ServiceSettings) -> bool:
    """Whether others than this machine can reach the service: through its address, or through a
    proxy that gives it a name.
    """
    named = [name for name in settings.allowed_hosts if _plain(name) not in LOOPBACK]
    return not settings.loopback_only or bool(named)


def _with_port(host: str, default: int) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{host}")
        return _plain(parts.hostname or ""), parts.port or default
    except ValueError:
        return None


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _plain(name: str) -> str:
    return name.strip().strip("[]").rstrip(".").lower()


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

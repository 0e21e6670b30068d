"""The files that the code of this process came from, and whether they are still the same: what was
computed by code that has changed since is not to be believed.

Of packages that are installed one file stands for the whole, as an installation replaces it;
code that lies elsewhere (a user's own module, Drumline in a checkout) is edited file by file.
"""

from __future__ import annotations

import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

Stamp = list[int]
"""When a file was last written, in ns, and its size."""

_STARTED_NS = time.time_ns()
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def stamp(path: str | Path) -> Stamp | None:
    """The state of a file; None if it is not there or cannot be seen."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return [found.st_mtime_ns, found.st_size]


def loaded_sources() -> dict[str, Stamp] | None:
    """The files behind all modules that are imported now; None if one of them was written while
    this process ran, for then nobody knows which of its states was read.
    """
    found = {path: state for path in set(_files()) if (state := stamp(path)) is not None}
    written = max((when for when, _ in found.values()), default=0)
    return None if written > _STARTED_NS else found


def unchanged(sources: Mapping[str, Stamp]) -> bool:
    """Whether all files are as they were."""
    return all(stamp(path) == state for path, state in sources.items())


def _files() -> Iterator[str]:
    library = sysconfig.get_path("stdlib")
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        installed = not _INSTALLED.isdisjoint(Path(file).parts)
        if "." in name if installed else file.startswith(library):
            continue
        yield file

"""A Python in which only what some requirements declare is installed.

The environment of the tests holds more than any user's, so it cannot show what a declaration left
out. A process started here sees links to what the requirements bring, all that needs in turn, and
nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SOURCES = Path(__file__).parents[2] / "src"


def run_with(requirement: str, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in `folder`, with nothing installed but what the requirement brings."""
    installed = folder / "installed"
    installed.mkdir()
    for found in _brought_by(requirement):
        for name in {file.parts[0] for file in found.files or ()} - {".."}:
            link = installed / name
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(name))))
    return subprocess.run(
        [sys.executable, "-S", "-c", code],  # -S: without the environment's own packages
        env={"PYTHONPATH": f"{SOURCES}:{installed}", "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def _brought_by(requirement: str) -> Iterator[Distribution]:
    """The distributions that installing this brings here."""
    waiting: list[Requirement] = [Requirement(requirement)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            found = distribution(wanted.name)
        except PackageNotFoundError:  # a build for another platform leaves some out
            continue
        for needed in map(Requirement, found.requires or ()):
            extras = ("", *wanted.extras)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(needed)
        yield found

"""Where prediction and measurement part: `memory_difference.py DIR/details/*.json`.

For each case, what is in use when most is, on both sides, and which sizes only one side asks for.
Sizes as the allocator rounds them; only those of at least 256 KiB.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from drumline.planning.allocator import rounded
from drumline.planning.memory import workspace_bytes
from drumline.planning.memory_constants import device_constants
from drumline.planning.memory_trace import MemoryTrace

LEAST = 2**18
Sizes = Counter[int]


def predicted(prediction: dict[str, Any], capability: tuple[int, int]) -> list[tuple[int, int]]:
    """(allocation, bytes, negative when freed) in order."""
    trace = MemoryTrace.from_dict(prediction["traces"][0])
    known = device_constants(capability)
    sizes = list(trace.sizes)
    for number, name in trace.workspaces.items():
        sizes[number] = workspace_bytes(known, name)
    return [
        (abs(event), rounded(sizes[abs(event) - 1]) * (1 if event > 0 else -1))
        for event in trace.events
        if event
    ]


def measured(measurement: dict[str, Any]) -> list[tuple[int, int]]:
    kinds = {"alloc": 1, "free_completed": -1}
    return [
        (address, kinds[action] * rounded(size))
        for action, size, address, _ in measurement["events"]
        if action in kinds
    ]


def at_peak(events: list[tuple[int, int]]) -> Sizes:
    """Sizes in use when their sum is largest."""
    live: dict[int, int] = {}
    now = peak = 0
    found: Sizes = Counter()
    for key, size in events:
        now += size
        if size > 0:
            live[key] = size
        else:
            live.pop(key, None)
        if now > peak:
            peak, found = now, Counter(live.values())
    return found


def asked(events: list[tuple[int, int]]) -> Sizes:
    """Each size once: the two sides take different numbers of steps."""
    return Counter({size for _, size in events if size > 0})


def difference(title: str, ours: Sizes, theirs: Sizes, places: dict[int, str]) -> None:
    for size in sorted(ours.keys() | theirs.keys(), reverse=True):
        if size >= LEAST and ours[size] != theirs[size]:
            print(
                f"  {title}: {size / 2**20:10.3f} MiB  predicted {ours[size]:3}  "
                f"measured {theirs[size]:3}  {places.get(size, '')}"
            )


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        details = json.loads(path.read_text())
        prediction, measurement = details["prediction"], details["measurement"]
        if "traces" not in prediction or "events" not in measurement:
            print(f"{path.stem}: one side is missing")
            continue
        ours = predicted(prediction, tuple(measurement["capability"]))
        theirs = measured(measurement)
        places = {rounded(size): where for _, size, _, where in measurement["events"] if where}
        segments = Counter(size >> 20 for size in measurement["segments"])
        print(f"{path.stem}: segments in MiB: {dict(sorted(segments.items()))}")
        difference("at the peak", at_peak(ours), at_peak(theirs), places)
        difference("asked for", asked(ours), asked(theirs), places)


if __name__ == "__main__":
    main()

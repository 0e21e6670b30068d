"""Numbers as a person reads them: counts, durations, sizes, metrics, device lists."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

LABELS = {
    "fvu": "fraction of variance unexplained",
    "l0": "active latents per sample (L0)",
    "dead": "dead latents",
    "dead_latents": "dead latents",
    "dead_fraction": "dead latents (fraction)",
    "dense_latents": "dense latents",
    "explained_loss": "explained loss",
    "loss": "loss",
    "samples_per_s": "samples/s",
    "activations_per_s": "activations/s",
}


def label(metric: str) -> str:
    """What a metric is called where there is room for words."""
    return LABELS.get(metric, metric.replace("_", " "))


def number(value: Any) -> str:
    """A metric with four significant digits; large ones with separators."""
    value = to_float(value)
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def compact(count: float) -> str:
    """A large count in short: 950, 47 k, 135 M."""
    for size, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e4, " k")):
        if count >= size:
            unit = 1e3 if suffix == " k" else size
            return f"{count / unit:.3g}{suffix}"
    return f"{count:,.0f}"


def duration(seconds: float) -> str:
    """A time span in its two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02d} h"


def age(seconds: float) -> str:
    """How long ago, in its largest unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "just now" if seconds < 5 else f"{int(seconds)} s ago"


def size(size_bytes: float) -> str:
    """Bytes in decimal units, three digits."""
    for unit_bytes, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.3g} {unit}"
    return f"{int(size_bytes)} B"


def devices(listed: Iterable[Any]) -> str:
    """Devices by name with how many there are of each: "2 × NVIDIA H100"."""
    names = Counter(
        str(item.get("name") or item.get("uuid") or "device")
        if isinstance(item, dict)
        else str(item)
        for item in listed
    )
    return ", ".join(name if many == 1 else f"{many} × {name}" for name, many in names.items())


def plural(count: int, noun: str) -> str:
    """A count with its noun: "1 rank", "2 ranks"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def to_float(value: Any) -> float | None:
    """A number of an event as a float; events carry "nan" and "inf" as text. None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None

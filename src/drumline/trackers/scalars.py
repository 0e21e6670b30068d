"""The numbers in an event, under the tags that every tracker uses."""

from __future__ import annotations

from typing import Any

STEP_FIELDS = ("loss", "lr", "grad_norm", "samples_per_s", "loss_scale", "epoch", "samples")


def scalars(event: dict[str, Any]) -> dict[str, float]:
    """Tag to number: `train/NAME` and `rank/N/samples_per_s` of a step, `evaluation/NAME`.

    Events carry what is not finite as text ("nan", "inf"); it comes back as the number it was.
    Events of other kinds have none.
    """
    found: dict[str, Any] = {}
    if event.get("kind") == "step":
        found = {f"train/{name}": event.get(name) for name in STEP_FIELDS}
        found |= _tagged("train", event.get("metrics"))
        speeds = event.get("rank_samples_per_s")
        if isinstance(speeds, list):
            found |= {f"rank/{rank}/samples_per_s": speed for rank, speed in enumerate(speeds)}
    elif event.get("kind") == "evaluation":
        found = _tagged("evaluation", event.get("metrics"))
    numbers = {tag: _number(value) for tag, value in found.items()}
    return {tag: value for tag, value in numbers.items() if value is not None}


def _tagged(group: str, metrics: Any) -> dict[str, Any]:
    if not isinstance(metrics, dict):
        return {}
    return {f"{group}/{name}": value for name, value in metrics.items()}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None

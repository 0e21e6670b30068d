"""The runs that `test_modes` compares: which models, in which modes, with which options."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from spread_worlds import Case, case

MODELS = ("transformer", "cnn", "lstm", "sae")
EXACT = 1e-9
MODES: dict[int, dict[str, dict[str, Any]]] = {
    1: {
        "distributed_1": {"mode": "distributed"},
        "sharded_1": {"mode": "sharded"},
        "hybrid_1x1": {"mode": "hybrid"},
        "dataparallel": {"mode": "dataparallel"},
    },
    2: {
        "distributed_2": {"mode": "distributed"},
        "sharded_2": {"mode": "sharded"},
        "hybrid_2x1": {"mode": "hybrid", "mesh": {"data": 2, "shard": 1}},
        "hybrid_1x2": {"mode": "hybrid", "mesh": {"data": 1, "shard": 2}},
    },
    4: {
        "sharded_4": {"mode": "sharded"},
        "hybrid_2x2": {"mode": "hybrid", "mesh": {"shard": 2}},
        "hybrid_4x1": {"mode": "hybrid", "mesh": {"data": 4}},
    },
}
ZERO = {"mode": "distributed", "ddp": {"shard_optimizer": True}}
EXACT_OPTIONS: dict[str, dict[str, Any]] = {
    "zero": ZERO,
    "delayed": {"mode": "distributed", "ddp": {"delayed_all_reduce": True}},
    "recomputed": {"mode": "sharded", "sharded": {"activation_checkpointing": True}},
    "offloaded": {"mode": "sharded", "sharded": {"cpu_offload": True}},
    "kept_gathered": {"mode": "sharded", "sharded": {"reshard_after_forward": False}},
    "unequal": {"mode": "sharded", "shares": [13, 3]},
    "idle_rank": {"mode": "sharded", "shares": [16, 0]},
}
ROUNDING_OPTIONS: dict[str, dict[str, Any]] = {
    "bf16": {"mode": "distributed", "ddp": {"compression": "bf16"}},
    "fp16": {"mode": "distributed", "ddp": {"compression": "fp16"}},
    "powersgd": {"mode": "distributed", "ddp": {"compression": "powersgd"}},
}
FEW = 12
"""Steps for what needs fewer; the fifth and the tenth have two samples."""
WRITERS: dict[str, tuple[int, dict[str, Any]]] = {
    "none": (1, {"mode": "none"}),
    "distributed_2": (2, MODES[2]["distributed_2"]),
    "zero": (2, ZERO),
    "sharded_2": (2, MODES[2]["sharded_2"]),
    "hybrid_2x2": (4, MODES[4]["hybrid_2x2"]),
}
PAIRS = list(itertools.product(WRITERS, WRITERS))
SPLIT: dict[int, dict[str, dict[str, Any]]] = {
    2: {"split_1x1x2": {"mode": "hybrid", "mesh": {"tensor": 2}}},
    4: {
        "split_2x1x2": {"mode": "hybrid", "mesh": {"tensor": 2}},
        "split_1x2x2": {"mode": "hybrid", "mesh": {"data": 1, "shard": 2, "tensor": 2}},
    },
}
"""Meshes data x shard x tensor, for a model that says how its layers split."""
OVERFLOWING: dict[str, tuple[int, dict[str, Any]]] = {
    "none": (1, {"mode": "none"}),
    "dataparallel": (1, MODES[1]["dataparallel"]),
    **{name: (2, spread) for name, spread in MODES[2].items()},
    "split_1x1x2": (2, SPLIT[2]["split_1x1x2"]),
}
"""Where an overflow on one rank is tried; in a pipeline, see `test_pipeline`."""


def case_of(folder: Path, name: str, model: str, spread: dict[str, Any], **keys: Any) -> Case:
    """A case of a model, with what the SAE needs."""
    if model == "sae":
        keys |= {
            "global_batch": 50,
            "micro_batch": 10,
            "optimizer": {"lr": 3e-3},
            "task": {
                "name": "sae",
                "activations": str(folder / "rows.npy"),
                "latents": 33,
                "k": 4,
                "dead_after_samples": 60,
                "bias_samples": 64,
                "evaluation": {"samples": 100},
                "resampling": {"every_steps": 10, "samples": 100},
            },
        }
    return case(folder, name, model, spread, **keys)


def halves(folder: Path, size: int) -> list[Case]:
    """Runs that stop half-way, to go on in other modes; and straight ones."""
    spread = {"mode": "none"}
    split = case_of(folder, "split-half", "perceptron", spread, steps=FEW // 2)
    return [
        *([split] if size == 1 else []),
        *(
            case_of(folder, f"{part}-{name}", "transformer", spread, steps=steps)
            for name, (ranks, spread) in WRITERS.items()
            for part, steps in (("half", FEW // 2), ("straight", FEW))
            if ranks == size
        ),
    ]


def faults(folder: Path, size: int) -> list[Case]:
    """fp16 with an infinite loss on the last rank, at its third pass."""
    return [
        case_of(
            folder,
            f"overflow-{name}",
            "perceptron_half",
            spread,
            steps=4,
            precision="fp16",
            micro_batch=8,
            case_fault={"rank": size - 1, "call": 2},
        )
        for name, (ranks, spread) in OVERFLOWING.items()
        if ranks == size
    ]


def rollbacks(folder: Path) -> list[Case]:
    """An infinite loss on rank 1 that sends the run back to its last checkpoint."""
    return [
        case_of(
            folder,
            f"rollback-{name}",
            "lstm",
            MODES[2][name],
            steps=6,
            micro_batch=8,
            checkpoint={"every_steps": 2},
            stability={"non_finite": "rollback"},
            case_fault={"rank": 1, "call": 3},
        )
        for name in ("distributed_2", "sharded_2")
    ]


def fallbacks(folder: Path) -> list[Case]:
    """Modes of auto that cannot be set up."""
    allowed = {"mode": "auto", "allow_single_device": True}
    both = {"modes": ["distributed", "sharded"], "where": "wrap", "on": [0, 1]}
    on_one = {"modes": ["distributed"], "where": "check", "on": [1]}
    on_all = {"modes": ["distributed"], "where": "wrap", "on": [0, 1]}
    return [
        case_of(folder, "falls-on-all", "lstm", {"mode": "auto"}, steps=FEW, case_break=on_all),
        case_of(folder, "falls-on-one", "lstm", {"mode": "auto"}, steps=FEW, case_break=on_one),
        case_of(folder, "falls-to-single", "lstm", allowed, steps=FEW, case_break=both),
        case_of(
            folder, "falls-too-deep", "lstm", {"mode": "auto"}, case_break=both, case_refused=True
        ),
        case_of(
            folder,
            "named-mode-fails",
            "lstm",
            {"mode": "distributed"},
            case_break=on_one,
            case_refused=True,
        ),
        case_of(folder, "none-on-two", "lstm", {"mode": "none"}, case_refused=True),
    ]


def second_halves(folder: Path, size: int, most: int) -> list[Case]:
    """The rest of the transformer's run in every mode, after the first half in every mode that has
    at most `most` ranks.
    """
    found = []
    for writer, reader in PAIRS:
        ranks, spread = WRITERS[reader]
        if ranks == size and WRITERS[writer][0] <= most:
            half, name = str(folder / f"half-{writer}"), f"{writer}-then-{reader}"
            found.append(case_of(folder, name, "transformer", spread, steps=FEW, case_from=half))
    if size == 4:
        half, spread = str(folder / "split-half"), SPLIT[4]["split_1x2x2"]
        found.append(case_of(folder, "split-on", "perceptron", spread, steps=FEW, case_from=half))
    return found

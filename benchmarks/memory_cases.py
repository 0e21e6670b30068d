"""The cases of benchmarks/memory_estimate.py: configurations and the tasks they train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DEAD = (0.0, 5347 / 16384, 5524 / 16384, 5690 / 16384, 5893 / 16384)
"""Part of the latents that was dead before each step where that was measured; no trace knows it."""


@dataclass(frozen=True)
class Case:
    """One configuration. `keys` are the config's; `what` and `options` pick the model."""

    name: str
    what: str
    precision: str
    options: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1


def cases() -> list[Case]:
    sizes = {
        "small": {"d": 768, "latents": 16_384},
        "medium": {"d": 1024, "latents": 32_768},
        "large": {"d": 2304, "latents": 65_536},
    }
    found = [
        Case(f"sae topk {size} {precision}", "sae", precision, options)
        for size, options in sizes.items()
        for precision in ("fp32", "tf32", "bf16", "fp16")
    ]
    found += [
        Case(f"sae {architecture} {precision}", "sae", precision, options | {"task": task})
        for options in [sizes["small"]]
        for architecture, precision in [
            *(("batchtopk", "bf16"), ("jumprelu", "fp32"), ("jumprelu", "bf16")),
            *(("standard", "fp32"), ("gated", "bf16")),
        ]
        for task in [{"architecture": architecture}]
    ]
    small = sizes["small"]
    dead = {"task": {"dead_after_samples": 4096, "k": 10}, "dead": DEAD}
    found += [
        Case("sae topk micro-batches", "sae", "bf16", small, {"micro_batch": 1024}),
        Case("sae topk foreach adam", "sae", "fp32", small, _foreach()),
        Case("sae topk dead latents", "sae", "fp32", small | dead),
    ]
    found += [
        Case(f"lm {precision}{note}", "lm", precision, {"checkpointed": bool(note)}, _lm())
        for precision in ("bf16", "fp16", "fp32")
        for note in ("", " checkpointed")
        if (precision, note) != ("fp32", " checkpointed")
    ]
    found += [
        Case(f"lstm {precision}", "lstm", precision, {}, {"global_batch": 256})
        for precision in ("fp32", "bf16")
    ]
    two = {"ranks": 2}
    found += [
        Case(f"sae topk {size} {precision} 2 ranks", "sae", precision, sizes[size], _pair(), **two)
        for size, precision in [("small", "fp32"), ("medium", "bf16"), ("large", "tf32")]
    ]
    found += [
        Case("sae jumprelu bf16 2 ranks", "sae", "bf16", small | _jump(), _pair(), **two),
        Case("lm bf16 2 ranks", "lm", "bf16", {}, _lm() | {"global_batch": 64}, **two),
        Case("lstm fp32 2 ranks", "lstm", "fp32", {}, {"global_batch": 512}, **two),
    ]
    found += [
        Case(
            f"sae topk {size} {precision} sharded 2 ranks",
            *("sae", precision, sizes[size], _pair() | _sharded()),
            **two,
        )
        for size, precision in [("small", "fp32"), ("medium", "bf16"), ("large", "tf32")]
    ]
    found += [
        Case(
            f"lm {precision}{' checkpointed' * recompute} sharded 2 ranks",
            *("lm", precision, {}, _lm() | {"global_batch": 64} | _sharded(recompute)),
            **two,
        )
        for precision, recompute in [("fp32", False), ("bf16", False), ("bf16", True)]
    ]
    return [*found, *_on_meshes(sizes), *_reinforcement()]


def _on_meshes(sizes: dict[str, dict[str, Any]]) -> list[Case]:
    """Mode hybrid: data x shard x tensor."""
    batch = {"global_batch": 64}
    return [
        *(
            Case(
                f"sae topk {size} {precision} hybrid 2x2x1 4 ranks",
                *("sae", precision, sizes[size], {"global_batch": 16_384} | _mesh(2, 2)),
                ranks=4,
            )
            for size, precision in [("medium", "bf16"), ("large", "tf32")]
        ),
        *(
            Case(
                f"lm {precision} hybrid {data}x{shard}x{tensor} {ranks} ranks",
                *("lm", precision, {}, _lm() | batch | _mesh(data, shard, tensor)),
                ranks=ranks,
            )
            for precision, data, shard, tensor, ranks in [
                *(("fp32", 2, 2, 1, 4), ("bf16", 2, 2, 1, 4), ("fp32", 2, 1, 1, 2)),
                *(("fp32", 1, 1, 2, 2), ("bf16", 1, 2, 2, 4)),
            ]
        ),
    ]


def _reinforcement() -> list[Case]:
    """The task `clstm_ppo`: acting and learning, with its rollout on the device."""
    return [
        Case("clstm_ppo fp32", "clstm_ppo", "fp32", {"environments": 4096}),
        Case("clstm_ppo bf16", "clstm_ppo", "bf16", {"environments": 4096}),
        Case("clstm_ppo fp32 window", "clstm_ppo", "fp32", {"environments": 1024, "window": 8}),
        Case("clstm_ppo fp32 2 ranks", "clstm_ppo", "fp32", {"environments": 8192}, ranks=2),
    ]


def _mesh(data: int, shard: int, tensor: int = 1) -> dict[str, Any]:
    return {
        "distributed": {
            "mode": "hybrid",
            "mesh": {"data": data, "shard": shard, "tensor": tensor},
        }
    }


def _lm() -> dict[str, Any]:
    return {"global_batch": 32, "clip_norm": 1.0, "optimizer": {"name": "adamw"}}


def _foreach() -> dict[str, Any]:
    return {"optimizer": {"implementation": "foreach"}}


def _jump() -> dict[str, Any]:
    return {"task": {"architecture": "jumprelu"}}


def _pair() -> dict[str, Any]:
    return {"global_batch": 8192}


def _sharded(recompute: bool = False) -> dict[str, Any]:
    options = {"activation_checkpointing": recompute}
    return {"distributed": {"mode": "sharded", "sharded": options}}


def build(case: Case) -> tuple[Any, Any]:
    """The case's task and config. Imports torch, so only in a case's own process."""
    from drumline.config import RunConfig

    keys = {"steps": 50, "global_batch": 4096, "precision": case.precision, **case.keys}
    if case.what == "sae":
        task_keys = {
            "name": "sae",
            "activations": "in-memory",
            "latents": case.options["latents"],
            "bias_init": "zero",
            "bias_samples": 64,
            "evaluation": {"samples": 64},
            **case.options.get("task", {}),
        }
        config = RunConfig.model_validate({**keys, "task": task_keys})
        return _sae_task(case.options["d"], config.global_batch), config
    if case.what == "clstm_ppo":
        return _ppo(case.options, case.precision)
    return _own_task(case), RunConfig.model_validate(keys)


def _sae_task(width: int, batch: int) -> Any:
    import torch

    from drumline.tasks.sae.data import Rows
    from drumline.tasks.sae.task import SAETask

    class InMemory:
        def __init__(self) -> None:
            generator = torch.Generator().manual_seed(0)
            self.rows = torch.randn(2048, width, generator=generator)
            self.width = width

        def __len__(self) -> int:
            return 6 * batch + 64

        def __getitems__(self, numbers: list[int]) -> torch.Tensor:
            return self.rows[[number % len(self.rows) for number in numbers]]

    return SAETask(lambda config: Rows(InMemory(), None, config))


def _ppo(options: dict[str, Any], precision: str) -> tuple[Any, Any]:
    from drumline.config import RunConfig
    from drumline.config.section import import_object

    length, minibatches = 64, 4
    size = options["environments"] * length
    task = {
        "name": "clstm_ppo",
        "environment": {"name": "cartpole_memory"},
        "environments": options["environments"],
        "rollout_steps": length,
        "rollout_epochs": 2,
        "total_steps": 100 * size,
        "policy": {"hidden": 256, "heads": [64, 64], "window": options.get("window")},
    }
    keys = {"global_batch": size // minibatches, "precision": precision, "clip_norm": 0.5}
    config = RunConfig.model_validate({**keys, "task": task})
    assert config.task is not None
    return import_object(config.task.implementation)(), config


def _own_task(case: Case) -> Any:
    import torch
    from memory_models import (
        ActorCritic,
        LanguageModel,
        LanguageModelSize,
        Samples,
        next_token_loss,
        ppo_loss,
    )

    from drumline.training.own_model import OwnModelTask

    if case.what == "lm":
        size = LanguageModelSize(**case.options)
        data = Samples(512, ((size.length + 1,), torch.int64))
        return OwnModelTask(lambda: LanguageModel(size), data, next_token_loss)
    steps = 128
    floats, whole = torch.float32, torch.int64
    shapes = [((steps, 256), floats), ((steps,), whole), ((steps,), floats), ((steps,), floats)]
    return OwnModelTask(ActorCritic, Samples(2048, *shapes), ppo_loss)

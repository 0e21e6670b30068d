"""What is asked without torch, through a process of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumline.bench.memory import (
    MemoryAnswers,
    TracingProcess,
    estimate_memory_requirement,
    fit_micro_batch,
)
from drumline.config import RunConfig
from drumline.errors import BadInput, LaunchError
from drumline.planning.memory import fits
from drumline.planning.memory_trace import MemoryTrace

HOPPER = (9, 0)
MIB = 2**20


def sae_config(activations: Path, **keys: Any) -> RunConfig:
    task = {"name": "sae", "activations": str(activations), "latents": 1024}
    return RunConfig.model_validate({"steps": 5, "global_batch": 256, "task": task, **keys})


@pytest.fixture
def activations(tmp_path: Path) -> Path:
    path = tmp_path / "activations.npy"
    np.save(path, np.ones((500, 64), dtype=np.float16))
    return path


def test_a_config_is_traced_in_its_own_process(activations: Path) -> None:
    with TracingProcess() as tracer:
        trace = tracer(sae_config(activations), world_size=2)
        assert tracer(sae_config(activations), 2) == trace
    assert (trace.share, trace.micro_batch, trace.world_size) == (128, 128, 2)
    of = dict.fromkeys(trace.categories, 0)
    for size, category in zip(trace.sizes, trace.categories, strict=True):
        of[category] += size
    assert of["batch"] == trace.steps * 128 * 64 * 2  # halves, as stored


def test_what_is_wrong_with_a_config_comes_back_as_its_error(tmp_path: Path) -> None:
    with TracingProcess() as tracer:
        with pytest.raises(BadInput, match=r"missing\.npy"):
            tracer(sae_config(tmp_path / "missing.npy"))
        with pytest.raises(BadInput, match="names no task"):
            tracer(RunConfig.model_validate({"steps": 1}))


def test_a_process_that_dies_says_its_last_words(
    activations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with TracingProcess() as tracer, pytest.raises(LaunchError, match="exit code 1"):
        tracer(sae_config(activations))


class Tracer:
    """A trace whose forward takes 1 MiB for each sample, beside 100 MiB that stay."""

    def __init__(self, *, selects: bool = False) -> None:
        self.selects, self.asked, self.on_gpu = selects, [], set[bool]()

    def __call__(
        self,
        config: RunConfig,
        world_size: int,
        micro_batch: int | None,
        selected: float,
        on_gpu: bool,
    ) -> MemoryTrace:
        share = config.global_batch // world_size
        size = min(micro_batch or config.micro_batch or share, share)
        self.asked.append((size, selected))
        self.on_gpu.add(on_gpu)
        sizes = (100 * MIB, size * MIB, round(100 * selected) * MIB)
        trace = MemoryTrace(
            *(size, share, world_size, 2, sizes),
            *(("parameters", "activations", "temporaries"), {}, (1, 2, 3)),
        )
        return replace(trace, selections=("nonzero",) if self.selects else (), selected=selected)


def test_the_upper_end_is_traced_only_where_values_decide() -> None:
    config = RunConfig.model_validate({"steps": 1, "global_batch": 64})
    plain, choosing = Tracer(), Tracer(selects=True)
    estimate_memory_requirement(config, HOPPER, tracer=plain)
    found = estimate_memory_requirement(config, HOPPER, tracer=choosing)
    assert plain.asked == [(64, 0.0)]
    assert choosing.asked == [(64, 0.0), (64, 0.1)]
    assert found.reserved_peak == 164 * MIB
    assert found.high == (164 + 10) * MIB


@pytest.mark.parametrize("capability", [HOPPER, None])
def test_what_is_traced_is_what_a_device_does(capability: tuple[int, int] | None) -> None:
    config = RunConfig.model_validate({"steps": 1, "global_batch": 64})
    tracer = Tracer(selects=True)
    estimate_memory_requirement(config, capability, tracer=tracer)
    fit_micro_batch(config, capability, 2**30, tracer=tracer)
    answers = MemoryAnswers(config, tracer)
    answers.need(1, capability)
    answers.smallest(1, capability)
    assert tracer.on_gpu == {capability is not None}


def test_the_micro_batch_that_fits_was_itself_traced() -> None:
    config = RunConfig.model_validate({"steps": 1, "global_batch": 64, "micro_batch": 3})
    tracer = Tracer()
    need = estimate_memory_requirement(config, HOPPER, micro_batch=40, tracer=tracer)
    found, made = fit_micro_batch(config, HOPPER, need.total + MIB, tracer=tracer)
    assert found is not None and fits(found, need.total + MIB).fits
    assert (found.micro_batch, 0.0) in tracer.asked and found in made
    assert 40 <= found.micro_batch <= 41  # segments are whole pairs of MiB

"""Counts of a trace against arithmetic on the shapes of an SAE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drumline.bench.workload import ask_workload, workload_in
from drumline.bench.workload_trace import TrafficCounter, trace
from drumline.config import RunConfig, parse_config
from drumline.errors import BadInput, LaunchError
from drumline.planning.workload import Exchange
from drumline.tasks.sae.kernels import drop_parallel, normalise_rows
from drumline.tasks.sae.task import SAETask
from drumline.training.task import Losses

WIDTH, LATENTS, ROWS = 24, 96, 300
PARAMETERS = 2 * WIDTH * LATENTS + LATENTS + WIDTH


def sae(folder: Path, architecture: str = "standard", **keys: Any) -> RunConfig:
    rows = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    np.save(folder / "rows.npy", rows)
    task = {
        "name": "sae",
        "activations": str(folder / "rows.npy"),
        "architecture": architecture,
        "latents": LATENTS,
        "k": 4,
        "batchtopk_group": 16,
        "evaluation": {"samples": 44},
    }
    return parse_config({"epochs": 2, "global_batch": 100, "task": task, **keys})


def test_flop_of_a_dense_sae(tmp_path: Path) -> None:
    # Encoder and decoder, each a product forward and two backward (the decoder bias is taken off
    # the inputs, so that gradient is needed, too): 6 products of 2 x width x latents.
    assert trace(sae(tmp_path)).flop_per_sample == 6 * 2 * WIDTH * LATENTS


def test_bytes_steps_and_exchange(tmp_path: Path) -> None:
    traced = trace(sae(tmp_path))
    assert traced.parameters == PARAMETERS
    assert traced.sample_bytes == 4 * WIDTH
    assert traced.steps == 2 * 3  # 256 rows to train on in steps of 100
    assert traced.exchange.total_bytes == 4 * PARAMETERS
    # Whether the gradient is finite, as int32; how often each latent fired, as float64.
    assert traced.exchange.blocking_bytes == (8 * (2 + LATENTS),)  # loss, norm, what fired
    # Adam reads weight, gradient and two moments and writes all but the gradient; the norm reads
    # the gradient once more. What is small beside that are norms and step counts.
    assert 32 * PARAMETERS <= traced.traffic_per_step < 32.5 * PARAMETERS


def test_what_is_changed_in_place_is_read_and_written() -> None:
    rows, change, factor = torch.ones(10, 6), torch.ones(10, 6), torch.ones(10, 1)
    with TrafficCounter() as counter:
        normalise_rows(rows)
    assert (counter.traffic, counter.kernels) == (2 * rows.nbytes, 1)
    with TrafficCounter() as counter:
        drop_parallel(change, rows)
        change.mul_(factor)
    assert counter.traffic == 5 * rows.nbytes + factor.nbytes


def test_buckets_are_bounded_as_the_config_says(tmp_path: Path) -> None:
    traced = trace(sae(tmp_path, distributed={"bucket_cap_mb": 2}))
    assert isinstance(traced.exchange, Exchange)
    assert traced.exchange.bucket_bytes == 2 * 2**20


def test_traffic_of_dense_latents_grows_with_samples(tmp_path: Path) -> None:
    # At the least the latents are written and read by their own forward and backward: projection,
    # activation, and the gradients of both.
    assert trace(sae(tmp_path)).traffic_per_sample > 4 * 2 * 4 * LATENTS


def test_a_task_whose_shapes_depend_on_its_data_is_traced_with_real_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sae(tmp_path, "batchtopk")
    faked = trace(config)
    assert faked.method == "traced under fake tensors"
    loss = SAETask.loss

    def loss_of_some(task: SAETask, model: nn.Module, batch: Tensor) -> Losses:
        return loss(task, model, batch[batch.isfinite().all(dim=1)])  # all, but who knows

    monkeypatch.setattr(SAETask, "loss", loss_of_some)
    traced = trace(config)
    assert traced.method == "traced with real tensors, few samples"
    assert traced.flop_per_sample == pytest.approx(faked.flop_per_sample)


def test_a_process_of_its_own_gives_the_same_counts(tmp_path: Path) -> None:
    config = sae(tmp_path)
    assert workload_in(ask_workload(config)) == trace(config)


def test_a_config_without_a_task_is_refused() -> None:
    with pytest.raises(BadInput, match="names no task"):
        ask_workload(parse_config({"steps": 1}))


def test_a_task_that_cannot_be_traced_says_why(tmp_path: Path) -> None:
    config = sae(tmp_path)
    np.save(tmp_path / "rows.npy", np.zeros((60, WIDTH), np.float32))  # 16 are left to train on
    with pytest.raises(LaunchError, match="16 samples, and a trace needs 32") as caught:
        workload_in(ask_workload(config))
    assert "--calibrate" in caught.value.remedy

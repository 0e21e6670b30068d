"""Training a TopK SAE with Drumline and with SAELens on this machine:
`python benchmarks/sae_peers.py`.

Both train on the same activations, with the same width, latents, k, batch, Adam and clipping, on
as many threads, in turns, and both read their batches. SAELens trains as its `SAETrainer` does,
Drumline by `drumline train`. Each has the learning rates that are given, as their scales differ.
Printed are milliseconds a step (medians), activations a second, and the fraction of variance
unexplained on rows that neither saw, at the best of the rates: so that nobody is fast by learning
less.

SAELens' `use_sparse_activations` is left out: its backward needs operators that torch 2.13 has not
for sparse tensors on a CPU.

    python benchmarks/sae_peers.py --out sae_peers.csv
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from estimate_vs_measured import KeepLines, write
from sae_lens.config import SAETrainerConfig
from sae_lens.saes.topk_sae import TopKTrainingSAE, TopKTrainingSAEConfig
from sae_lens.training.sae_trainer import SAETrainer

from drumline.events import read_events

WIDTH, LATENTS, K, BATCH = 576, 9216, 32, 1024
ROWS, HELD_OUT, FEATURES = 24_000, 2000, 2000
WARM_UP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=KeepLines)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", default="0.001,0.003", help="learning rates, with commas")
    parser.add_argument("--out", type=Path, help="CSV file")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="sae-peers-") as name:
        folder = Path(name)
        activations = sparse_rows()
        np.save(folder / "rows.npy", activations)
        for lr in map(float, options.lr.split(",")):
            for side in ("drumline", "sae_lens"):
                if side == "drumline":
                    found = with_drumline(folder, options.steps, lr)
                else:
                    found = with_sae_lens(activations, options.steps, lr)
                rows.append(_row(side, threads, options.steps, lr, *found))
                print(
                    f"{side:9} lr {lr:g}: {rows[-1]['step_ms']:.1f} ms, fvu {rows[-1]['fvu']:.4f}",
                    flush=True,
                )
    _print(rows)
    if options.out:
        write(rows, options.out)


def sparse_rows() -> np.ndarray:
    """Sums of a few of many directions, the later ones rare, with noise, float32."""
    generator = np.random.default_rng(0)
    directions = generator.standard_normal((FEATURES, WIDTH)) / WIDTH**0.5
    often = 0.2 / np.arange(1, FEATURES + 1) ** 0.5
    rows = np.empty((ROWS, WIDTH), np.float32)
    for start in range(0, ROWS, 2000):
        active = generator.random((2000, FEATURES)) < often
        strength = generator.exponential(1.0, (2000, FEATURES)) * active
        noise = 0.02 * generator.standard_normal((2000, WIDTH))
        rows[start : start + 2000] = strength @ directions + noise
    return rows


def with_drumline(folder: Path, steps: int, lr: float) -> tuple[float, float]:
    """Seconds a step, and the unexplained variance at the end."""
    config = {
        "name": "peers",
        "steps": steps,
        "global_batch": BATCH,
        "epoch_end": "wrap",
        "devices": "cpu:1",
        "clip_norm": 1.0,
        "optimizer": {"name": "adam", "lr": lr},
        "logging": {"every_steps": 1},
        "task": {
            "name": "sae",
            "activations": str(folder / "rows.npy"),
            "architecture": "topk",
            "latents": LATENTS,
            "k": K,
            "evaluation": {"samples": HELD_OUT},
        },
    }
    path, run = folder / "config.yaml", folder / f"run-{lr:g}"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "drumline", "train", str(path), "--run-dir", str(run)]
    subprocess.run([*command, "--json"], check=True, stdout=subprocess.DEVNULL)
    events = [event for event in read_events(run / "events.jsonl") if event["kind"] == "step"]
    times = [event["t"] for event in events][WARM_UP:]
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    return _median_step(times), metrics["fvu"]


def with_sae_lens(activations: np.ndarray, steps: int, lr: float) -> tuple[float, float]:
    """As `with_drumline`, in this process."""
    torch.manual_seed(0)
    rows = torch.from_numpy(activations)
    trained, held_out = rows[:-HELD_OUT], rows[-HELD_OUT:]
    sae = TopKTrainingSAE(
        TopKTrainingSAEConfig(
            d_in=WIDTH,
            d_sae=LATENTS,
            k=K,
            normalize_activations="expected_average_only_in",
        )
    )
    config = SAETrainerConfig(
        total_training_samples=steps * BATCH,
        train_batch_size_samples=BATCH,
        lr=lr,
        lr_end=lr,
        n_batches_for_norm_estimate=10,
    )
    trainer = SAETrainer(config, sae, batches(trained))
    times: list[float] = []
    take = trainer.step

    def timed(batch: torch.Tensor) -> Any:
        output = take(batch)
        times.append(time.time())
        return output

    trainer.step = timed  # type: ignore[method-assign]
    trainer.fit()
    with torch.no_grad():
        left = (held_out - sae(held_out)).double().square().sum()
        whole = (held_out - held_out.mean(dim=0)).double().square().sum()
    return _median_step(times[WARM_UP:]), float(left / whole)


def batches(rows: torch.Tensor) -> Iterator[torch.Tensor]:
    """Rows in a random order, batch after batch, epoch after epoch."""
    while True:
        order = torch.randperm(len(rows))
        for start in range(0, len(rows) - BATCH + 1, BATCH):
            yield rows[order[start : start + BATCH]]


def _median_step(times: list[float]) -> float:
    return statistics.median(after - before for before, after in pairwise(times))


def _row(
    side: str, threads: int, steps: int, lr: float, step_s: float, fvu: float
) -> dict[str, Any]:
    return {
        "side": side,
        "threads": threads,
        "width": WIDTH,
        "latents": LATENTS,
        "k": K,
        "batch": BATCH,
        "steps": steps,
        "lr": lr,
        "step_ms": round(1e3 * step_s, 2),
        "activations_per_s": round(BATCH / step_s),
        "fvu": round(fvu, 5),
        "torch": torch.__version__,
        "sae_lens": version("sae-lens"),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    print(f"{'':9} {'ms a step':>10} {'activations/s':>14} {'best fvu':>9}   Drumline is")
    medians = {
        side: statistics.median(row["step_ms"] for row in rows if row["side"] == side)
        for side in dict.fromkeys(row["side"] for row in rows)
    }
    for side, step_ms in medians.items():
        fvu = min(row["fvu"] for row in rows if row["side"] == side)
        faster = "" if side == "drumline" else f"{step_ms / medians['drumline']:.1f}x as fast"
        print(f"{side:9} {step_ms:10.1f} {1e3 * BATCH / step_ms:14,.0f} {fvu:9.4f}   {faster}")


if __name__ == "__main__":
    main()

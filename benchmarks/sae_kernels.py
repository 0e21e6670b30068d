"""What a sparse SAE's step is made of, with torch's operators and with Drumline's:
`python benchmarks/sae_kernels.py`.

Times one after the other on the GPU that is there, or on the CPU (smaller, where only the choice of
the largest differs), and prints both and their ratio as a table and as CSV. `skewed` has a few
latents that fire on most samples, as in activations of a language model.

    python benchmarks/sae_kernels.py --out sae_kernels.csv
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from estimate_vs_measured import KeepLines, write
from torch import Tensor

from drumline.tasks.sae import kernels
from drumline.tasks.sae.largest import largest
from drumline.tasks.sae.sparse import Places

REPEATS = 15
Work = Callable[[], Any]


@dataclass(frozen=True)
class Size:
    """An SAE and its batch."""

    name: str
    samples: int
    width: int
    latents: int
    k: int
    dtype: torch.dtype
    skewed: bool = False


GPU = (
    Size("1024 x 16,384", 8192, 1024, 16_384, 32, torch.float32),
    Size("2304 x 32,768", 4096, 2304, 32_768, 32, torch.bfloat16),
    Size("2304 x 65,536", 4096, 2304, 65_536, 64, torch.bfloat16),
    Size("2304 x 65,536", 4096, 2304, 65_536, 64, torch.bfloat16, skewed=True),
)
CPU = (Size("576 x 16,384", 512, 576, 16_384, 32, torch.float32),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=KeepLines)
    parser.add_argument("--out", type=Path, help="CSV file")
    options = parser.parse_args()
    there = torch.cuda.is_available()
    device = torch.device("cuda" if there else "cpu")
    name = torch.cuda.get_device_name() if there else "CPU"
    rows = []
    print(f"{name}, torch {torch.__version__}; ms")
    print(f"{'':38} {'torch':>9} {'Drumline':>9}  faster")
    for size in GPU if there else CPU:
        for what, with_torch, ours in works(size, device):
            before, now = milliseconds(with_torch, device), milliseconds(ours, device)
            label = f"{size.name}{' skewed' * size.skewed}: {what}"
            print(f"{label:38} {before:9.3f} {now:9.3f}  {before / now:5.1f}x", flush=True)
            rows.append(
                {
                    "device": name,
                    "torch": torch.__version__,
                    "samples": size.samples,
                    "width": size.width,
                    "latents": size.latents,
                    "k": size.k,
                    "product": str(size.dtype).removeprefix("torch."),
                    "skewed": size.skewed,
                    "what": what,
                    "torch_ms": round(before, 4),
                    "drumline_ms": round(now, 4),
                }
            )
    if options.out:
        write(rows, options.out)


def works(size: Size, device: torch.device) -> Iterator[tuple[str, Work, Work]]:
    """Each part of a step: what it is, with torch's operators, and with Drumline's."""
    torch.manual_seed(0)
    normal = torch.randn(size.samples, size.latents, device=device)
    if size.skewed:
        often = torch.arange(1, size.latents + 1, device=device).float().log()
        normal -= often + torch.rand_like(normal).log_().neg_().log_()  # Gumbel: a share of 1/rank
    projected = normal.to(size.dtype)
    columns = largest(projected, size.k)
    yield (
        "the k largest",
        lambda: projected.topk(size.k, sorted=False).indices.sort().values,
        lambda: largest(projected, size.k),
    )
    at = Places.from_columns(columns, size.latents)
    values = projected.gather(1, columns).float().view(-1)
    table = torch.randn(size.latents, size.width, device=device)
    inputs = torch.randn(size.samples, size.width, device=device)
    by_column = values[at.by_column]

    def bags(index: Tensor, rows: Tensor, starts: Tensor, weights: Tensor) -> tuple[Work, Work]:
        return (
            lambda: F.embedding_bag(index, rows, starts, per_sample_weights=weights, mode="sum"),
            lambda: kernels.bag_sum(index, rows, starts, weights),
        )

    yield "decode", *bags(at.columns, table, at.row_starts, values)
    yield "a weight's gradient", *bags(at.rows_by_column, inputs, at.column_starts, by_column)
    yield (
        "the values' gradient",
        lambda: torch.ops.aten._embedding_bag_per_sample_weights_backward(
            inputs, table, at.columns, at.row_starts, at.rows, 0
        ),
        lambda: kernels.bag_products(inputs, at.rows, at.columns, table, at.row_starts),
    )
    yield (
        "unit norms",
        lambda: table.div_(table.norm(dim=1, keepdim=True)),
        lambda: kernels.normalise_rows(table),
    )
    gradient = torch.randn_like(table)
    yield (
        "a gradient's parallel part",
        lambda: gradient.addcmul_((gradient * table).sum(1, keepdim=True), table, value=-1),
        lambda: kernels.drop_parallel(gradient, table),
    )


def milliseconds(work: Work, device: torch.device) -> float:
    """Median of some repeats."""
    times = []
    for _ in range(REPEATS + 3):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times[3:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()

"""What each of three ranks does in test_summation_ranks. Called with a folder.

The ranks are forked, which spares importing torch anew. Every gradient is given: the loss is the
sum of each parameter times numbers of this rank. Each writes FOLDER/rank-N.pt.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drumline.distributed.strategies import summation
from drumline.distributed.strategies.compression import Narrow, Packing
from drumline.distributed.strategies.summation import Summation, sum_each

RANKS = 3
SIZES = {"first": 40, "large": 700, "second": 33, "wide": 20, "third": 90, "rare": 7, "last": 50}
SIZES |= {"image": 48}
IMAGE = (4, 3, 2, 2)
LARGE_BYTES, PARCEL_BYTES = 1000, 700
DDP_BUCKET_MB = 300 / 2**20
"""Less than a parcel, so that parcels begin in one of DDP's buckets and end in another."""


class Numbers(nn.Module):
    """Parameters of many sizes; used last to first, so that DDP packs its buckets anew."""

    def __init__(self) -> None:
        super().__init__()
        for name, size in SIZES.items():
            dtype = torch.float64 if name == "wide" else torch.float32
            weight = torch.zeros(size, dtype=dtype)
            if name == "image":
                weight = weight.view(IMAGE).to(memory_format=torch.channels_last)
            setattr(self, name, nn.Parameter(weight))

    def forward(self, given: dict[str, Tensor], without: tuple[str, ...] = ()) -> Tensor:
        names = [name for name in sorted(SIZES) if name not in without]
        return torch.stack([(getattr(self, n) * given[n]).sum().double() for n in names]).sum()


def numbers_of(rank: int) -> dict[str, Tensor]:
    """Of magnitudes so far apart that the order of additions shows."""
    draw = torch.Generator().manual_seed(rank)
    found = {}
    for name, size in SIZES.items():
        spread = 10 ** torch.randint(-3, 4, (size,), generator=draw).double()
        dtype = torch.float64 if name == "wide" else torch.float32
        found[name] = (torch.randn(size, generator=draw, dtype=torch.float64) * spread).to(dtype)
    found["image"] = found["image"].view(IMAGE)
    return found


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def through_ddp(rank: int, packing: Packing | None = None, steps: int = 3) -> list[Any]:
    model = Numbers()
    state = Summation(list(model.parameters()), torch.device("cpu"), packing)
    spread = DistributedDataParallel(
        model, bucket_cap_mb=DDP_BUCKET_MB, gradient_as_bucket_view=True
    )
    spread.register_comm_hook(state, sum_each)
    found = []
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        spread(numbers_of(rank)).backward()
        found.append(gradients(model))
    return found


def at_once(rank: int, without: tuple[str, ...] = ()) -> dict[str, Tensor | None]:
    model = Numbers()
    state = Summation(list(model.parameters()), torch.device("cpu"))
    model(numbers_of(rank), without).backward()
    state.all_at_once()
    return gradients(model)


def counted(work: Callable[[], Any]) -> tuple[Any, int]:
    """What it gives, and how many all-reduces it started."""
    plain, calls = dist.all_reduce, [0]

    def all_reduce(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        return plain(*arguments, **options)

    dist.all_reduce = all_reduce
    try:
        return work(), calls[0]
    finally:
        dist.all_reduce = plain


def one_by_one(rank: int) -> dict[str, Tensor]:
    """The same sums without parcels."""
    found = numbers_of(rank)
    for name in sorted(found):
        dist.all_reduce(found[name])
    return found


def rank_main(rank: int, folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    summation.LARGE_BYTES, summation.PARCEL_BYTES = LARGE_BYTES, PARCEL_BYTES
    ddp, calls = counted(lambda: through_ddp(rank))
    found = {
        "ddp": ddp,
        "calls": calls,
        "at_once": at_once(rank),
        "one_by_one": one_by_one(rank),
        "partly": at_once(rank, ("second", "rare") if rank == 1 else ("rare",)),
        "bf16": through_ddp(rank, Narrow(torch.bfloat16), 2),
        "fp16": through_ddp(rank, Narrow(torch.float16, RANKS), 2),
    }
    torch.save(found, folder / f"rank-{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    folder = Path(sys.argv[1])
    forks = multiprocessing.get_context("fork")
    ranks = [forks.Process(target=rank_main, args=(rank, folder)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in ranks))


if __name__ == "__main__":
    main()

"""What summing gradients over ranks costs: torch's DDP, one collective a parameter, and parcels.

    torchrun --nproc-per-node 2 benchmarks/gradient_sums.py [--rounds 20]

Forward and backward of one model under DistributedDataParallel, three ways: with DDP's own averages
of whole buckets, whose order of additions changes after the first backward; with a collective for
each parameter; and in Drumline's parcels. The ways take turns in blocks of steps, so that all meet
the same clocks; medians over the blocks count. `alone` is the same model without any peers. Models:
a transformer of 42 million parameters with a small batch, and a stack of 200 small layers. One row
a model, as CSV.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from unittest.mock import patch

import torch
from memory_models import LanguageModel, LanguageModelSize, Samples, next_token_loss
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drumline.distributed import World, open_world
from drumline.distributed.strategies import summation
from drumline.distributed.strategies.summation import Summation, sum_each

WARM_UP, BLOCK = 5, 10
COLUMNS = (
    "device,ranks,torch,model,parameters,tensors,parcels,alone_ms,ddp_ms,one_by_one_ms,parcels_ms,"
    "one_by_one_over_ddp,parcels_over_ddp"
)
Step = Callable[[nn.Module], Tensor]


def transformer(device: torch.device) -> tuple[nn.Module, Step]:
    size = LanguageModelSize(dropout=0.0)
    samples = Samples(4, ((size.length + 1,), torch.int64))
    batch = [torch.stack([samples[n][0] for n in range(4)]).to(device)]

    def loss(model: nn.Module) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return next_token_loss(model, batch).mean()

    return LanguageModel(size).to(device), loss


def layers(device: torch.device) -> tuple[nn.Module, Step]:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(200))).to(device)
    rows = torch.randn(256, 64, device=device)
    return model, lambda model: model(rows).square().mean()


MODELS = {"transformer": transformer, "layers": layers}


def spread(model: nn.Module, world: World, way: str) -> nn.Module:
    """The model under DDP; the ways share its parameters, and each has its own reducer."""
    if way == "alone":
        return model
    ids = [world.device.index] if world.device.type == "cuda" else None
    ddp = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    if way != "ddp":
        bound = -1 if way == "one_by_one" else summation.LARGE_BYTES
        with patch.object(summation, "LARGE_BYTES", bound):
            ddp.register_comm_hook(Summation(list(model.parameters()), world.device), sum_each)
    return ddp


def block(model: nn.Module, loss: Step, world: World, steps: int) -> float:
    """Milliseconds a step."""
    world.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        loss(model).backward()
    world.synchronize()
    return 1e3 * (time.perf_counter() - began) / steps


def measure(name: str, world: World, rounds: int) -> str:
    times: dict[str, list[float]] = {way: [] for way in ("alone", "ddp", "one_by_one", "parcels")}
    model, loss = MODELS[name](world.device)
    for number in range(rounds):
        ways = list(times)
        for way in ways[number % 4 :] + ways[: number % 4]:
            replica = spread(model, world, way)
            block(replica, loss, world, WARM_UP)
            world.barrier("warm")
            times[way].append(block(replica, loss, world, BLOCK))
            del replica  # its hooks on the parameters go with it
    found = {way: statistics.median(some) for way, some in times.items()}
    parameters = list(model.parameters())
    device = torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU"
    facts = [
        *(device, world.size, torch.__version__, name, sum(p.numel() for p in parameters)),
        *(len(parameters), len(summation.parcels_of(parameters))),
        *(f"{value:.3f}" for value in found.values()),
        f"{found['one_by_one'] / found['ddp']:.3f}",
        f"{found['parcels'] / found['ddp']:.3f}",
    ]
    return ",".join(map(str, facts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    with open_world() as world:
        if world.is_main:
            print(COLUMNS, flush=True)
        for name in options.models.split(","):
            row = measure(name, world, options.rounds)
            if world.is_main:
                print(row, flush=True)


if __name__ == "__main__":
    main()

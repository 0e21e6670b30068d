"""What watching costs: a step with stability at its defaults, and all on, over one with it off.

    python benchmarks/stability_overhead.py [--pairs 30]
    torchrun --nproc-per-node 2 benchmarks/stability_overhead.py     (with the replica comparison)

Blocks of 100 steps, each with one measurement of those that come every 100, are timed in pairs:
one with and one without, close after each other and in turning order, so that both meet the same
clocks and temperatures. For the defaults both are blocks of the same session, whose watchers are
taken off and put on again: same weights, same memory, same threads. The cost is the median of the
pairs' ratios, with the interval that holds the true median in 95 of 100 such measurements (from the
order of the ratios, so without assuming a distribution). Time is wall time on a GPU; on the CPU it
is the process's own processor time, as other processes of the machine disturb that less.

Where a host's speed varies by more than what is looked for, no number of pairs helps. So the time
spent within stability's own calls is added up, too, as a part of the blocks' whole time (`inside`;
of some blocks the median and the largest). All that the defaults do is done there. It is an upper
bound: taking the times counts, and so does waiting for the device or for other ranks, though a step
without might wait as long elsewhere. One row a size, as CSV.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drumline.config import RunConfig, parse_config
from drumline.distributed import World, open_world
from drumline.run_directory import RunDirectory
from drumline.training.own_model import OwnModelTask
from drumline.training.session import Session, open_session
from drumline.training.stability import Stability

BLOCK = 100
BLOCKS = 10
"""In which the time inside of stability is added up."""
SETTINGS: dict[str, dict[str, Any]] = {
    "off": {"enabled": False},
    "default": {},
    "all": {"activations": ["*"], "activations_every": 10, "update_ratio_every": 10},
}
SETTINGS["all"] |= {"fingerprint_every": 10}
SIZES = [(2, 64), (4, 256), (6, 512), (8, 1024), (12, 2048)]
COLUMNS = (
    "device,ranks,layers,width,parameters,pairs,off_ms,default_over,default_from,default_to,"
    "all_over,all_from,all_to,inside,inside_most"
)


@dataclass(frozen=True)
class Cost:
    """The median of the ratios minus 1, and its 95% interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Cost:
        """From the ratios of pairs: the interval between their k-th smallest and k-th largest,
        where k - 1 or fewer heads in so many throws of a coin come up in 2.5% of all cases.
        """
        found, count = sorted(ratios), len(ratios)
        below, k = 0.0, 0
        while below + math.comb(count, k) / 2**count <= 0.025:
            below += math.comb(count, k) / 2**count
            k += 1
        k = max(k - 1, 0)
        return cls(statistics.median(found) - 1, found[k] - 1, found[-1 - k] - 1)

    def __str__(self) -> str:
        return f"{self.median:+.2%},{self.low:+.2%},{self.high:+.2%}"


def build(layers: int, width: int) -> nn.Module:
    blocks = [
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                      nn.Linear(4 * width, width))
        for _ in range(layers)
    ]  # fmt: skip
    return nn.Sequential(*blocks)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch).square().mean(1)


def config_of(setting: str, batch: int, world: World) -> RunConfig:
    return parse_config(
        {
            "steps": 10**6,
            "global_batch": batch * world.size,
            "precision": "bf16" if world.device.type == "cuda" else "fp32",
            "stability": SETTINGS[setting],
            "logging": {"every_steps": 10**6},
            "distributed": {"balance": {"every_steps": 10**6}},
        }
    )


def session_of(
    config: RunConfig, layers: int, width: int, batch: int, world: World, folder: Path
) -> Session:
    data = torch.randn(8 * batch * world.size, width)
    task = OwnModelTask(lambda: build(layers, width), data, loss)  # type: ignore[arg-type]
    session = open_session(config, task, world, RunDirectory.create(folder))
    session.open_source()
    return session


class Clocked:
    """A watcher or a gate, and the seconds spent within its calls."""

    def __init__(self, inner: Any, clock: Callable[[], float]) -> None:
        self._inner, self._clock = inner, clock
        self._seconds = 0.0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._inner, name)

        def clocked(*arguments: Any) -> Any:
            began = self._clock()
            try:
                return call(*arguments)
            finally:
                self._seconds += self._clock() - began

        return clocked

    def spent(self) -> float:
        """Seconds since it was asked last."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def clock_of(device: torch.device) -> Callable[[], float]:
    return time.perf_counter if device.type == "cuda" else time.process_time


def block(session: Session, steps: int = BLOCK) -> float:
    """Milliseconds a step of the Trainer's loop."""
    progress = session.progress
    clock = clock_of(session.world.device)
    session.world.synchronize()
    began = clock()
    for _ in range(steps):
        batch = next(session.batches)
        session.schedule(batch)
        for watcher in session.watchers:
            watcher.before_step(session, batch)
        outcome = session.step.take(batch, progress.step)
        progress.step += 1
        progress.cursor = batch.cursor
        for watcher in session.watchers:
            watcher.after_step(session, batch, outcome)
    session.world.synchronize()
    return 1000 * (clock() - began) / steps


def switchable(
    session: Session, config: RunConfig
) -> tuple[Callable[[], float], Callable[[], float]]:
    """Blocks of a session as it is, and of the same one with the config's stability on it."""
    states = {"off": (list(session.watchers), session.step.gate)}
    Stability(config).attach(session)
    states["on"] = (list(session.watchers), session.step.gate)

    def timed(state: str) -> float:
        session.watchers[:], session.step.gate = states[state]
        return block(session)

    return lambda: timed("off"), lambda: timed("on")


def inside(session: Session, off: Sequence[Any]) -> list[float]:
    """Parts of the time of some blocks that are spent in what was attached since `off`."""
    clock = clock_of(session.world.device)
    watchers, gate = list(session.watchers), session.step.gate
    clocked = [Clocked(each, clock) for each in watchers if each not in off]
    clocked_gate = Clocked(gate, clock)
    session.watchers[:] = [*off, *clocked]  # type: ignore[list-item]
    session.step.gate = clocked_gate  # type: ignore[assignment]
    parts = []
    for _ in range(BLOCKS):
        seconds = block(session) * BLOCK / 1000
        parts.append(sum(each.spent() for each in (*clocked, clocked_gate)) / seconds)
    session.watchers[:], session.step.gate = watchers, gate
    return parts


def compared(
    off: Callable[[], float], on: Callable[[], float], pairs: int
) -> tuple[list[float], list[float]]:
    """Times without, and ratios of with to without, of pairs in turning order."""
    without, ratios = [], []
    for number in range(pairs):
        times = {each: each() for each in ((off, on) if number % 2 == 0 else (on, off))}
        without.append(times[off])
        ratios.append(times[on] / times[off])
    return without, ratios


def measure(
    layers: int, width: int, options: argparse.Namespace, world: World, folder: Path
) -> tuple[int, float, Cost, Cost, list[float]]:
    """Parameters, milliseconds a step without, what the defaults and everything add, and the parts
    of blocks with the defaults that are spent inside of them.
    """
    configs = {name: config_of(name, options.batch, world) for name in SETTINGS}
    plain, watched = (
        session_of(configs[name], layers, width, options.batch, world, folder / name)
        for name in ("off", "all")
    )
    before = list(plain.watchers)
    off, on = switchable(plain, configs["default"])
    for warm in (off, on, lambda: block(watched)):
        warm()
    without, ratios = compared(off, on, options.pairs)
    _, of_all = compared(off, lambda: block(watched), max(6, options.pairs // 4))
    on()
    parts = inside(plain, before)
    count = sum(p.numel() for p in plain.model.parameters())
    for session in (plain, watched):
        session.strategy.teardown()
        session.events.close()
    return count, statistics.median(without), Cost.of(ratios), Cost.of(of_all), parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="pairs of blocks of each size")
    parser.add_argument("--batch", type=int, default=256, help="samples of each rank")
    parser.add_argument("--sizes", default="0,1,2", help="which of the sizes, with commas")
    options = parser.parse_args()
    with open_world() as world, tempfile.TemporaryDirectory() as folder:
        name = torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU"
        if world.is_main:
            print(COLUMNS)
        for layers, width in (SIZES[int(number)] for number in options.sizes.split(",")):
            place = Path(folder) / f"{layers}-{width}"
            count, ms, *costs, parts = measure(layers, width, options, world, place)
            row = [name, world.size, layers, width, count, options.pairs]
            row += [round(ms, 4), *costs]
            row += [f"{of(parts):.3%}" for of in (statistics.median, max)]
            if world.is_main:
                print(",".join(map(str, row)), flush=True)


if __name__ == "__main__":
    main()

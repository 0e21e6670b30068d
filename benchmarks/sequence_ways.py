"""What the ways of two LSTMs over sequences with episode cuts cost, forward and backward, as CSV.

    python benchmarks/sequence_ways.py [--sizes 2,16,64,256] [--threads 1]
    python benchmarks/sequence_ways.py --device cuda --sizes 64,256,1024 --precision tf32

Sequences of 128 steps; two LSTMs of 256 (actor and critic) over 32 features. `episode` is the mean
length of episodes, which end at random; 0: none begins but the first. `chosen` is the fused way
that `find_cuts` takes. Then milliseconds: of torch's fused LSTMs over stretches in which no
sequence has a cut; over padded pieces (CPU) or one packed call of the pieces (GPU); of the loop;
and on a GPU of the loop as CUDA graphs. The constants in `pieces` were read from such a table. On a
CPU with one thread time is the process's own, which others on the machine do not lengthen.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import torch

from drumline.config import Precision
from drumline.tasks.clstm_ppo.graphs import gpu_recorder
from drumline.tasks.clstm_ppo.pieces import Cuts, find_buckets, find_cuts, find_pieces
from drumline.tasks.clstm_ppo.recorded_loop import RecordedLoop
from drumline.tasks.clstm_ppo.sequences import Recurrent, Way, loop_together, through_each
from drumline.training.precision import Arithmetic

STEPS, FEATURES, HIDDEN = 128, 32, 256


def milliseconds(run: Callable[[], None], clock: Callable[[], float], least_s: float) -> float:
    """The shortest of a few runs."""
    run()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < least_s and len(times) < 30):
        began = clock()
        run()
        times.append(clock() - began)
    return 1e3 * min(times)


def measure(asked: argparse.Namespace, count: int, episode: int) -> str:
    device = torch.device(asked.device)
    torch.manual_seed(0)
    starts = torch.zeros(STEPS, count, dtype=torch.bool)
    if episode:
        starts = torch.rand(STEPS, count) < 1 / episode
    starts = starts.to(device)
    lstms = [Recurrent(FEATURES, HIDDEN).to(device) for _ in range(2)]
    inputs = torch.randn(STEPS, count, FEATURES, device=device)
    states = [lstm.initial(count) for lstm in lstms]
    chosen, pieces = find_cuts(starts), find_pieces(starts)
    buckets = find_buckets(pieces.sizes.tolist()) if device.type == "cpu" else ()
    arithmetic = Arithmetic(Precision(asked.precision), device)
    arithmetic.apply()
    graphed = [RecordedLoop(gpu_recorder)] if device.type == "cuda" else None
    ways: list[tuple[Cuts, Way | None]] = [
        (Cuts(chosen.steps), "fused"),
        (Cuts(chosen.steps, pieces, buckets), "fused"),
        (chosen, "loop"),
        *([(chosen, None)] if graphed else []),
    ]

    def run(cuts: Cuts, way: Way | None) -> None:
        with arithmetic.autocast():
            if way is None:
                outputs = loop_together(lstms, inputs, starts, states, graphed or [])
            elif way == "loop":
                outputs = through_each(lstms, inputs, starts, states, way)
            else:
                outputs = tuple(
                    lstm(inputs, starts, state, cuts, way)
                    for lstm, state in zip(lstms, states, strict=True)
                )
        torch.autograd.backward(sum(each.float().sum() for each in outputs))
        if device.type == "cuda":
            torch.cuda.synchronize()

    own = device.type == "cpu" and asked.threads == 1
    clock = time.process_time if own else time.perf_counter
    times = [
        milliseconds(functools.partial(run, cuts, way), clock, asked.seconds) for cuts, way in ways
    ]
    facts = [count, episode, len(chosen.steps), len(pieces.sizes), len(buckets)]
    name = "stretches" if chosen.pieces is None else "pieces"
    return ",".join([*map(str, facts), name, *(f"{t:.1f}" for t in times)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="2,16,64,256", help="sequences side by side")
    parser.add_argument("--episodes", default="0,1000,200,50,20")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--seconds", type=float, default=0.5, help="least time of a measurement")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print(
        "sequences,episode,cut_steps,pieces,buckets,chosen,stretches_ms,pieces_ms,loop_ms,graph_ms"
    )
    for count in map(int, asked.sizes.split(",")):
        for episode in map(int, asked.episodes.split(",")):
            print(measure(asked, count, episode), flush=True)


if __name__ == "__main__":
    main()

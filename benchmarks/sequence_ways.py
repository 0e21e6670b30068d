"""What the ways of an LSTM over sequences with episode cuts cost, forward and backward, as CSV.

    python benchmarks/sequence_ways.py [--sizes 2,16,64,256] [--threads 1]

Sequences of 128 steps, an LSTM of 256 over 32 features. `episode` is the mean length of episodes,
which end at random; 0: none begins but the first. Columns: milliseconds of torch's fused LSTM over
stretches in which no sequence has a cut, over padded pieces, and of the loop; and which fused way
`find_cuts` chooses. The constants in `pieces` were read from such a table. With one thread time is
the process's own, which others on the machine do not lengthen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from drumline.tasks.clstm_ppo.pieces import Cuts, find_buckets, find_cuts, find_pieces
from drumline.tasks.clstm_ppo.sequences import Recurrent, Way

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


def measure(count: int, episode: int, clock: Callable[[], float], least_s: float) -> str:
    torch.manual_seed(0)
    starts = torch.zeros(STEPS, count, dtype=torch.bool)
    if episode:
        starts = torch.rand(STEPS, count) < 1 / episode
    lstm, inputs = Recurrent(FEATURES, HIDDEN), torch.randn(STEPS, count, FEATURES)
    state, chosen, pieces = lstm.initial(count), find_cuts(starts), find_pieces(starts)
    buckets = find_buckets(pieces.sizes.tolist())
    ways: list[tuple[Cuts, Way]] = [
        (Cuts(chosen.steps), "fused"),
        (Cuts(chosen.steps, pieces, buckets), "fused"),
        (chosen, "loop"),
    ]

    def run(cuts: Cuts, way: Way) -> None:
        torch.autograd.backward(lstm(inputs, starts, state, cuts, way).sum())

    times = [milliseconds(lambda c=c, w=w: run(c, w), clock, least_s) for c, w in ways]  # type: ignore[misc]
    facts = [count, episode, len(chosen.steps), len(pieces.sizes), len(buckets)]
    name = "padded" if chosen.buckets else "stretches"
    return ",".join([*map(str, facts), *(f"{t:.1f}" for t in times), name])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="2,16,64,256", help="sequences side by side")
    parser.add_argument("--episodes", default="0,1000,200,50,20")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5, help="least time of a measurement")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    clock = time.process_time if asked.threads == 1 else time.perf_counter
    print("sequences,episode,cut_steps,pieces,buckets,stretches_ms,padded_ms,loop_ms,chosen")
    for count in map(int, asked.sizes.split(",")):
        for episode in map(int, asked.episodes.split(",")):
            print(measure(count, episode, clock, asked.seconds), flush=True)


if __name__ == "__main__":
    main()

"""Training steps a second beside two peers in one run, on one trading environment, as CSV: ours,
sb3-contrib's RecurrentPPO, and the loop of `plain_recurrent_ppo`.

    pip install -e '.[rl,peers]'
    taskset -c 0,1 python benchmarks/reinforcement_peers.py [--sizes 8:10,256:4,4096:4]

All have rollouts of 128 steps, four minibatches a pass, an LSTM of 256 each for actor and critic,
heads of 64 and 64, and Adam; a size is environments and passes. Peers step Gymnasium environments,
ours the batched form of the same. Prices are a random walk made here. `ours short` cuts a rollout
into sequences of 32 steps, each begun with the state the policy had there, where the peers' go on
over what lies between two episodes; `ours bf16` multiplies in bf16, where the peers' are in fp32. A
first rollout warms up, unless it takes all the time there is. `ratio` is `ours` over the side.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from plain_recurrent_ppo import PlainPPO
from reinforcement_speed import HIDDEN, MINIBATCHES, STEPS, config_of, opened, rollout

from drumline.config import ClusterEnvironment
from drumline.distributed import World, open_world
from drumline.tasks.clstm_ppo.trading.config import PortfolioConfig
from drumline.tasks.clstm_ppo.trading.gymnasium_portfolio import GymnasiumPortfolio
from drumline.tasks.clstm_ppo.trading.market import load_market

STOCKS, DAYS, SHORT = 6, 1500, 32
SIDES = ("ours", "ours short", "ours bf16", "sb3", "plain")
SB3_MOST = 256
"""Environments: beyond, one of its rollouts takes minutes."""
COLUMNS = "environments,epochs,side,threads,training_steps_per_s,ratio,rollouts,seconds,torch"
Rollout = Callable[[], object]


def write_prices(path: Path) -> dict[str, Any]:
    """Random walks of some stocks; the environment that trades them."""
    draw = np.random.default_rng(0).normal(3e-4, 0.015, (DAYS, STOCKS))
    closes = 100 * np.exp(draw.cumsum(axis=0))
    days = np.datetime64("2015-01-01") + np.arange(2 * DAYS)
    days = days[np.is_busday(days)][:DAYS]
    lines = ["date,symbol,close"]
    for day, row in zip(days, closes, strict=True):
        lines += [f"{day},S{stock},{close:.4f}" for stock, close in enumerate(row)]
    path.write_text("\n".join(lines) + "\n")
    until = str(days[DAYS * 4 // 5])
    return {"name": "portfolio", "data": str(path), "train_until": until, "actions": "weights"}


@contextmanager
def ours(
    asked: argparse.Namespace, world: World, environment: dict[str, Any], size: Any, **changes: Any
) -> Iterator[Rollout]:
    asked = argparse.Namespace(**{**vars(asked), **changes})
    with opened(config_of(asked, *size, environment), world) as session:
        yield lambda: rollout(session, world)


@contextmanager
def sb3(make: Callable[[], gymnasium.Env[Any, Any]], size: Any) -> Iterator[Rollout]:
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    count, epochs = size
    model = RecurrentPPO(
        "MlpLstmPolicy",
        DummyVecEnv([make] * count),
        n_steps=STEPS,
        batch_size=STEPS * count // MINIBATCHES,
        n_epochs=epochs,
        policy_kwargs={"lstm_hidden_size": HIDDEN, "enable_critic_lstm": True},
        device="cpu",
    )
    yield lambda: model.learn(STEPS * count, reset_num_timesteps=False)


@contextmanager
def plain(make: Callable[[], gymnasium.Env[Any, Any]], size: Any) -> Iterator[Rollout]:
    count, epochs = size
    side = PlainPPO(make, count, STEPS, epochs, MINIBATCHES, HIDDEN)
    yield side.rollout
    side.envs.close()


def timed(take: Rollout, least_s: float) -> tuple[int, float]:
    """Rollouts, and the seconds they took."""
    began = time.perf_counter()
    take()
    first = time.perf_counter() - began
    if first > least_s:
        return 1, first
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < least_s:
        take()
        count += 1
    return count, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="8:10,256:4,4096:4", help="environments:epochs, ...")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--seconds", type=float, default=20.0, help="least time of a measurement")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="fp32", help="of ours")
    parser.add_argument("--micro-batch", type=int, help="of ours")
    asked = parser.parse_args()
    asked.sequences, asked.sequence_length = "auto", None
    asked.graphs = True
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as folder:
        environment = write_prices(Path(folder) / "prices.csv")
        keys = PortfolioConfig(**environment)
        market = load_market(keys)

        def make() -> gymnasium.Env[Any, Any]:
            return GymnasiumPortfolio(market, keys)

        first = config_of(asked, MINIBATCHES, 1, environment)
        with open_world(first, ClusterEnvironment.detect()) as world:
            print(COLUMNS, flush=True)
            for text in asked.sizes.split(","):
                size = tuple(map(int, text.split(":")))
                sides = {
                    "ours": partial(ours, asked, world, environment, size),
                    "ours short": partial(
                        ours, asked, world, environment, size, sequence_length=SHORT
                    ),
                    "ours bf16": partial(ours, asked, world, environment, size, precision="bf16"),
                    "sb3": partial(sb3, make, size),
                    "plain": partial(plain, make, size),
                }
                compare(asked, size, {n: sides[n] for n in asked.sides.split(",")})


def compare(asked: argparse.Namespace, size: tuple[int, ...], sides: dict[str, Any]) -> None:
    """A row for each side at one size."""
    base = None
    for name, open_side in sides.items():
        if name == "sb3" and size[0] > SB3_MOST:
            continue
        with open_side() as take:
            count, seconds = timed(take, asked.seconds)
        speed = count * size[0] * STEPS / seconds
        base = base or speed
        facts = [*size, name, torch.get_num_threads(), f"{speed:.0f}", f"{base / speed:.2f}"]
        row = [*facts, count, f"{seconds:.1f}", torch.__version__]
        print(",".join(map(str, row)), flush=True)


if __name__ == "__main__":
    main()

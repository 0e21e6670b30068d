"""The on-policy source: rolls out the present policy, then gives its transitions as minibatches.

All environments of the run are numbered, and ranks own consecutive ones. What an environment does,
the order of minibatches and every scale depend on these numbers and on sums over all ranks, so the
number of ranks does not matter. A rollout is used for some passes, then the next begins; the source
ends when the budget of steps or episodes is used up.

The cursor counts rollouts (epoch) and the transitions given from the present one (offset).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

from drumline.distributed import World
from drumline.distributed.kind import is_gpu
from drumline.errors import BadInput
from drumline.planning.shares import cut_shares
from drumline.tasks.clstm_ppo.config import CLSTMPPOConfig
from drumline.tasks.clstm_ppo.environments.build import build_environments
from drumline.tasks.clstm_ppo.exchange import gathered, own_part
from drumline.tasks.clstm_ppo.experience import SUMS, Experience
from drumline.tasks.clstm_ppo.graphs import gpu_recorder
from drumline.tasks.clstm_ppo.minibatches import Sequences, minibatch_order
from drumline.tasks.clstm_ppo.policy import Policy
from drumline.tasks.clstm_ppo.progress import Counts
from drumline.tasks.clstm_ppo.rollout import Actor
from drumline.training.noise import mixed
from drumline.training.precision import Arithmetic
from drumline.training.source import Cursor, ShareOfStep, Source, StepBatch

ENVIRONMENT, NOISE, EVALUATION = range(3)
"""What a seed is mixed with, so that nothing shares its random numbers with anything else."""


class Collector(Source):
    """Transitions of a policy in its environments.

    Args:
        config: The task's keys.
        seed: The run's seed.
        world: This rank's world.
        policy: Gives the policy as it is now.
        arithmetic: Of the policy's forward.
        episode_limit: Steps an episode can have at most, where that is known.
    """

    def __init__(
        self,
        config: CLSTMPPOConfig,
        seed: int,
        world: World,
        policy: Callable[[], Policy],
        arithmetic: Arithmetic,
        episode_limit: int | None,
    ) -> None:
        self.config, self.seed, self.world = config, seed, world
        self.policy, self.arithmetic, self.episode_limit = policy, arithmetic, episode_limit
        self.experience = Experience(config, world)
        self.actor: Actor | None = None
        self.sequences: Sequences | None = None
        self._loaded: dict[str, Any] | None = None
        self._owned = (0, 0)
        self._bounds: list[int] = []
        self._used = self._abandoned = False
        self._rollout = 0
        self._has_values = True

    @property
    def updates(self) -> int:
        """Minibatches of a rollout, over all passes; see `open` for the size of one."""
        return self.config.rollout_epochs * (self.config.rollout_size // self._global_batch)

    def steps_in_epochs(self, epochs: int, global_batch: int) -> int:
        """Steps of so many rollouts."""
        per_rollout = self.config.rollout_size // global_batch
        return epochs * self.config.rollout_epochs * per_rollout

    def planned_steps(self, global_batch: int) -> int | None:
        """Steps until the budget is used up, at most; None if there is none.

        Raises:
            BadInput: If episodes are counted and may be of any length.
        """
        config, rollouts = self.config, []
        if config.total_steps is not None:
            rollouts.append(config.total_steps // config.rollout_size)
        if config.num_episodes is not None and self.episode_limit is not None:
            longest = (config.num_episodes + config.environments) * self.episode_limit
            rollouts.append(-(-longest // config.rollout_size))
        if rollouts:
            return self.steps_in_epochs(min(rollouts), global_batch)
        if config.num_episodes is not None:
            raise BadInput(
                "task.num_episodes alone does not bound this run: an episode may be of any length.",
                remedy="Give task.total_steps, too.",
            )
        return None

    @property
    def counts(self) -> Counts:
        """How far the run is in its environments."""
        return self.experience.counts

    def abandon(self) -> None:
        """Leave out the rest of the present rollout's minibatches. All ranks call it together."""
        self._abandoned = True

    def open(self, share: ShareOfStep, cursor: Cursor) -> Iterator[StepBatch]:
        """Minibatches from `cursor` on, until the budget is used up."""
        self._global_batch = share.global_batch
        owned = _owned(self.config.environments, share.weights)
        bounds = [sum(owned[:rank]) for rank in range(len(owned) + 1)]
        if bounds != self._bounds:
            if self.actor is not None and self._loaded is None:
                self._loaded = self.state_dict()  # environments move to other ranks
            self._bounds, self._owned = bounds, (bounds[share.rank], bounds[share.rank + 1])
            self.close()
        self._prepare()
        there = self.sequences is not None and cursor.epoch == self._rollout and not self._abandoned
        if there:
            return self._batches(share, cursor.epoch, cursor.offset // share.global_batch)
        self.sequences = None
        return self._batches(share, cursor.epoch + (cursor.offset > 0), 0)

    def shapes(self, share: ShareOfStep) -> Iterator[StepBatch]:
        """Acting and minibatches of the sizes they have; which sequences are in one is not known
        without values.
        """
        self._has_values = False
        batches = self.open(share, Cursor())
        assert self.actor is not None, "it is made when the source is opened"
        self.actor.leave_out_steps()
        return batches

    def _batches(self, share: ShareOfStep, rollout: int, place: int) -> Iterator[StepBatch]:
        while True:
            if self.sequences is None:
                if self._is_over():
                    return
                self._rollout, self._abandoned, self._used = rollout, False, False
                self.sequences = self._collect()
            for batch in self._minibatches(share, rollout, place):
                self._used = batch.cursor.epoch > rollout
                yield batch
                if self._abandoned:
                    break
            self.sequences, rollout, place = None, rollout + 1, 0

    def _minibatches(self, share: ShareOfStep, rollout: int, place: int) -> Iterator[StepBatch]:
        assert self.sequences is not None
        length, batch = self.config.granularity, share.global_batch
        per_environment = self.config.rollout_steps // length
        bounds = [bound * per_environment for bound in self._bounds]
        per_pass = self.config.rollout_size // batch
        for number in range(place, self.updates):
            epoch, minibatch = divmod(number, per_pass)
            if not self._has_values:
                edges = [batch // length * bound // bounds[-1] for bound in bounds]
                chosen = torch.arange(edges[-1])
            elif minibatch == 0 or number == place:
                order = minibatch_order(
                    self.seed, rollout, epoch, bounds[-1], batch // length
                ).contiguous()
            if self._has_values:
                chosen = order[minibatch]
                edges = torch.searchsorted(chosen, torch.tensor(bounds)).tolist()
            counts = tuple((b - a) * length for a, b in pairwise(edges))
            mine = chosen[edges[share.rank] : edges[share.rank + 1]] - bounds[share.rank]
            used_up = number + 1 == self.updates
            yield StepBatch(
                data=self.sequences.pick(mine.to(self.world.device)) if len(mine) else None,
                count=counts[share.rank],
                global_count=batch,
                counts=counts,
                first=sum(counts[: share.rank]),
                cursor=Cursor(rollout + 1) if used_up else Cursor(rollout, (number + 1) * batch),
                epoch=rollout,
                planned=rollout * self.updates + number,
            )

    def _is_over(self) -> bool:
        config, counts = self.config, self.counts
        if config.num_episodes is not None and counts.episodes >= config.num_episodes:
            return True
        after = counts.environment_steps + config.rollout_size
        return config.total_steps is not None and after > config.total_steps

    def _collect(self) -> Sequences:
        """Roll out, and make of it what the loss takes. Collective."""
        assert self.actor is not None
        self.experience.scale_observations(self.policy())
        return self.experience.of(self.actor.collect())

    def _prepare(self) -> None:
        """Environments, an actor and its state for the environments this rank owns."""
        first, last = self._owned
        device, loaded = self.world.device, self._loaded
        numbers = torch.arange(first, last, device=device)
        if self.actor is None:
            environments = build_environments(
                self.config.environment, last - first, device, self.arithmetic.weights
            )
            graphed = self.config.graphs and environments.capturable and is_gpu(device)
            self.actor = Actor(
                self.policy,
                environments,
                mixed(self.seed, NOISE, numbers),
                self.config.rollout_steps,
                self.config.granularity,
                self.arithmetic.autocast,
                gpu_recorder() if graphed else None,
            )
            if loaded is None:
                self.actor.reset(mixed(self.seed, ENVIRONMENT, numbers))
                self.experience.begin(last - first)
        if loaded is not None:
            self._take(loaded)
            self._loaded = None

    def state_dict(self) -> dict[str, Any]:
        """Counts, scales, the state of all environments and of the policy in them, and what is
        left of a rollout. All ranks call it together.
        """
        assert self.actor is not None
        sums = {f"sum.{name}": value for name, value in self.experience.sums.items()}
        state = self.experience.state_dict() | {
            "steps_done": self.actor.steps_done,
            "rollout": self._rollout,
            "actor": gathered(self.actor.state_dict() | sums, self.world, dim=0),
        }
        state["steps"] = state["states"] = None
        if self.sequences is not None and not (self._used or self._abandoned):
            state["steps"] = gathered(self.sequences.steps, self.world, dim=1)
            state["states"] = gathered(self.sequences.states, self.world, dim=0)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave, once `open` says which environments are here."""
        self._loaded = state

    def _take(self, state: dict[str, Any]) -> None:
        assert self.actor is not None
        first, last = self._owned
        device = self.world.device
        self.experience.load_state_dict(state)
        self._rollout = int(state["rollout"])
        self._used = self._abandoned = False
        mine = own_part(state["actor"], first, last, device, dim=0)
        self.experience.sums = {name: mine.pop(f"sum.{name}") for name in SUMS}
        self.actor.load_state_dict(mine, int(state["steps_done"]))
        self.sequences = None
        if state["steps"] is not None:
            each = self.config.rollout_steps // self.config.granularity
            bounds = (first * each, last * each)
            self.sequences = Sequences(
                own_part(state["steps"], *bounds, device, dim=1),
                own_part(state["states"], *bounds, device, dim=0),
            )

    def close(self) -> None:
        """Let go of the environments."""
        if self.actor is not None:
            self.actor.environments.close()
            self.actor = None


def _owned(environments: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Environments of each rank, about in proportion to its share, and at least one.

    Raises:
        BadInput: If there are fewer environments than ranks.
    """
    ranks = len(weights)
    if environments < ranks:
        raise BadInput(
            f"{environments} environments cannot be shared by {ranks} ranks: each needs one.",
            remedy=f"Set task.environments to {ranks} or more, or use fewer devices.",
        )
    owned = cut_shares(environments, weights)
    if 0 in owned:
        owned = tuple(1 + more for more in cut_shares(environments - ranks, weights))
    return owned

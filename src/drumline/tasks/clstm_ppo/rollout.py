"""Acting: some steps of the policy in all environments of a rank, written into fixed storage.

On a GPU a step reads nothing back and has fixed shapes, so that it can be recorded (`graphs`). What
can be computed for all steps at once (noise, log-probabilities) is computed before or after. Ranks,
normalisers and minibatches are left to the collector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drumline.distributed.kind import is_gpu
from drumline.tasks.clstm_ppo.environments.interface import Environments, Transition
from drumline.tasks.clstm_ppo.environments.tensor_environments import where_rows
from drumline.tasks.clstm_ppo.graphs import Recorder, recorded
from drumline.tasks.clstm_ppo.policy import Policy, State
from drumline.training.noise import uniform


@dataclass(frozen=True)
class Rollout:
    """T steps in E environments. Its tensors are overwritten by the next rollout.

    Attributes:
        observations: [T, E, F], what was acted on.
        starts: bool [T, E], whether it was the first of an episode.
        actions: [T, E, *shape], as the policy drew them.
        log_probs: [T, E], of the actions.
        values: [T, E], of the observations.
        next_values: [T, E], of what the actions led to, before any new episode; without meaning
            where the episode terminated.
        rewards: [T, E].
        terminated: bool [T, E], whether the episode ended of itself with the step.
        truncated: bool [T, E], whether it was cut off there.
        states: The policy's state before every `every`-th step, [T / every, E, ...] by name.
    """

    observations: Tensor
    starts: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    next_values: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    states: State

    @property
    def ended(self) -> Tensor:
        """Whether an episode ended with a step, bool [T, E]."""
        return self.terminated | self.truncated


class Actor:
    """A policy at work in its environments. Goes on where it stopped, rollout after rollout.

    Args:
        policy: Gives the policy, whose weights change between rollouts.
        environments: Where it acts.
        noise_seeds: int64 [E], of the action noise of each environment.
        steps: Steps of a rollout, T.
        every: Steps between policy states that are kept; divides T.
        autocast: The context for the policy's forward.
        record: Records a step, so that from the second rollout on it is one launch; None: never.
            Only for environments with `capturable`.
    """

    def __init__(
        self,
        policy: Callable[[], Policy],
        environments: Environments,
        noise_seeds: Tensor,
        steps: int,
        every: int,
        autocast: Callable[[], AbstractContextManager[Any]],
        record: Recorder | None = None,
    ) -> None:
        self.policy, self.environments, self.noise_seeds = policy, environments, noise_seeds
        self.steps, self.every, self.autocast = steps, every, autocast
        self.record = record
        self.steps_done = 0
        self.observations = torch.empty(0)
        self.starts = torch.empty(0)
        self.state: State = {}
        self.final_observations = torch.empty(0)
        self._storage: dict[str, Tensor] = {}
        self._cut_off = _CutOff(steps, environments)
        self._at = torch.zeros(1, dtype=torch.int64, device=noise_seeds.device)
        self._again: Callable[[], object] | None = None
        self._steps_taken: Sequence[int] = range(steps)

    def leave_out_steps(self) -> None:
        """Act in the first steps of a rollout and in its last: the others are like them, where only
        shapes matter.
        """
        self._steps_taken = sorted({*range(min(3, self.steps)), self.steps - 1})

    def reset(self, seeds: Tensor) -> None:
        """Begin the first episodes, each environment by its seed."""
        self.steps_done, self._again = 0, None
        self.observations = self.environments.reset(seeds)
        self.starts = torch.ones_like(seeds, dtype=torch.bool, device=self.observations.device)
        self.state = self.policy().initial_state(len(seeds))

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Act for T steps."""
        policy = self.policy()
        self._put("noise", self._noise(policy.actions.draws))
        self._at.zero_()
        self._cut_off.begin()
        self.environments.foresee(self.steps)
        one = self._again or self._step
        for step in self._steps_taken:
            if step % self.every == 0:
                place = torch.full_like(self._at, step // self.every)
                for name, value in self.state.items():
                    self._write(f"state.{name}", place, value, self.steps // self.every)
            one()
        self.steps_done += self.steps
        if self.record is not None and self._again is None:
            self._again = recorded(self._step, self._carried, self._bind, self.record)
        return self._finished(policy)

    def state_dict(self) -> dict[str, Tensor]:
        """What is needed to go on, environments in dim 0 of every tensor."""
        there = {"observations": self.observations, "starts": self.starts}
        there |= {f"policy.{name}": value for name, value in self.state.items()}
        environments = self.environments.state_dict()
        return there | {f"environment.{name}": value for name, value in environments.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], steps_done: int) -> None:
        """Go on from what `state_dict` gave after so many steps."""
        self.steps_done, self._again = steps_done, None
        self.observations, self.starts = state["observations"], state["starts"]
        self.state = _below(state, "policy.")
        self.environments.load_state_dict(_below(state, "environment."))

    def _carried(self) -> dict[str, Tensor]:
        """What a step hands on to the next, and to what comes after the last."""
        return self.state_dict() | {"final_observations": self.final_observations}

    def _bind(self, carried: Mapping[str, Tensor]) -> None:
        self.observations, self.starts = carried["observations"], carried["starts"]
        self.final_observations = carried["final_observations"]
        self.state = _below(carried, "policy.")
        self.environments.bind(_below(carried, "environment."))

    def _step(self) -> None:
        """One step, written to the row `_at`."""
        policy, at = self.policy(), self._at
        with self.autocast():
            acted = policy.act(self.observations, self.starts, self.state)
        outputs = acted.outputs.to(self.observations.dtype)
        actions = policy.actions.sample(outputs, self._storage["noise"].index_select(0, at)[0])
        transition = self.environments.step(policy.actions.for_environment(actions))
        row = {
            "observations": self.observations,
            "starts": self.starts,
            "actions": actions,
            "outputs": outputs,
            "values": acted.values,
            "rewards": transition.rewards,
            "terminated": transition.terminated,
            "truncated": transition.truncated,
        }
        for name, value in row.items():
            self._write(name, at, value, self.steps)
        self._cut_off.note(at, transition, acted.state)
        self.observations, self.state = transition.observations, acted.state
        self.final_observations = transition.final_observations
        self.starts = transition.terminated | transition.truncated
        at.add_(1)

    def _finished(self, policy: Policy) -> Rollout:
        kept = self._storage
        with self.autocast():
            beyond = policy.value(self.final_observations, self.state)
            next_values = torch.cat([kept["values"][1:], beyond.to(kept["values"]).unsqueeze(0)])
            self._cut_off.put_values(next_values, policy)
        return Rollout(
            observations=kept["observations"],
            starts=kept["starts"],
            actions=kept["actions"],
            log_probs=policy.actions.log_prob(kept["outputs"], kept["actions"]),
            values=kept["values"],
            next_values=next_values,
            rewards=kept["rewards"],
            terminated=kept["terminated"],
            truncated=kept["truncated"],
            states={name: kept[f"state.{name}"] for name in self.state},
        )

    def _noise(self, draws: int) -> Tensor:
        """Numbers in (0, 1) for every action of the rollout, [T, E, draws]: a function of the
        environment's seed and of the step, counted from the run's start.
        """
        seeds = self.noise_seeds
        steps = torch.arange(self.steps_done, self.steps_done + self.steps, device=seeds.device)
        return uniform(seeds.unsqueeze(0), steps.unsqueeze(1), numbers=draws)

    def _write(self, name: str, place: Tensor, value: Tensor, rows: int) -> None:
        """Write to a row of the storage; `place` is int64 [1], on the device."""
        if name not in self._storage:
            dtype = value.dtype
            if value.is_floating_point():
                dtype = self.observations.dtype  # not the narrower one of an autocast
            shape = (rows, *value.shape)
            self._storage[name] = torch.empty(shape, dtype=dtype, device=value.device)
        kept = self._storage[name]
        kept.index_copy_(0, place, value.to(kept.dtype).unsqueeze(0))

    def _put(self, name: str, value: Tensor) -> None:
        """Write all rows of the storage."""
        if name in self._storage:
            self._storage[name].copy_(value)
        else:
            self._storage[name] = value


def _below(state: Mapping[str, Tensor], prefix: str) -> State:
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


class _CutOff:
    """What truncated steps led to, put aside until the rollout is done and valued all at once.

    An environment has as many places as it can be cut off within a rollout.
    """

    def __init__(self, steps: int, environments: Environments) -> None:
        limit = environments.episode_limit
        self.places = steps if limit is None else steps // limit + 1
        self._kept: State = {}
        self._used = self._rows = torch.empty(0, dtype=torch.int64)

    def begin(self) -> None:
        """A new rollout, in which nothing was cut off yet."""
        self._used.zero_()

    def note(self, at: Tensor, transition: Transition, state: State) -> None:
        """Put aside the observations and the policy's state where an episode was cut off.

        Args:
            at: int64 [1], the step.
            transition: What it led to.
            state: The policy's after it.
        """
        cut = transition.truncated
        if not is_gpu(cut.device) and not bool(cut.any()):
            return  # looking is cheap there
        row = {f"state.{name}": value for name, value in state.items()}
        row["observations"] = transition.final_observations
        row["step"] = at.expand(len(cut))
        if not self._kept:
            self._kept = {
                name: value.new_zeros(self.places, *value.shape) for name, value in row.items()
            }
            self._used = torch.zeros_like(cut, dtype=torch.int64)
            self._rows = torch.arange(len(cut), device=cut.device)
        place = self._used.clamp(max=self.places - 1)
        for name, value in row.items():
            kept = self._kept[name]
            kept[place, self._rows] = where_rows(cut, value, kept[place, self._rows])
        self._used.add_(cut)

    def put_values(self, next_values: Tensor, policy: Policy) -> None:
        """Write the values of what was put aside to their steps, in [T, E]."""
        if not self._kept:
            return
        for place in range(self.places):
            row = {name: kept[place] for name, kept in self._kept.items()}
            step, observations = row.pop("step"), row.pop("observations")
            state = {name.removeprefix("state."): value for name, value in row.items()}
            values = policy.value(observations, state).to(next_values.dtype)
            there = (step, self._rows)
            next_values[there] = torch.where(self._used > place, values, next_values[there])

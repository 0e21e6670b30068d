"""Acting: some steps of the policy in all environments of a rank, written into fixed storage.

On a GPU a step reads nothing back and has fixed shapes. What can be computed for all steps at once
(noise, log-probabilities) is computed before or after. Ranks, normalisers and minibatches are left
to the collector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.environments.interface import Environments, Transition
from drumline.tasks.clstm_ppo.environments.tensor_environments import where_rows
from drumline.tasks.clstm_ppo.policy import Acted, Policy, State
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
    """

    def __init__(
        self,
        policy: Callable[[], Policy],
        environments: Environments,
        noise_seeds: Tensor,
        steps: int,
        every: int,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.policy, self.environments, self.noise_seeds = policy, environments, noise_seeds
        self.steps, self.every, self.autocast = steps, every, autocast
        self.steps_done = 0
        self.observations = torch.empty(0)
        self.starts = torch.empty(0)
        self.state: State = {}
        self._storage: dict[str, Tensor] = {}
        self._steps_taken: Sequence[int] = range(steps)

    def leave_out_steps(self) -> None:
        """Act in the first steps of a rollout and in its last: the others are like them, where only
        shapes matter.
        """
        self._steps_taken = sorted({*range(min(3, self.steps)), self.steps - 1})

    def reset(self, seeds: Tensor) -> None:
        """Begin the first episodes, each environment by its seed."""
        self.steps_done = 0
        self.observations = self.environments.reset(seeds)
        self.starts = torch.ones_like(seeds, dtype=torch.bool, device=self.observations.device)
        self.state = self.policy().initial_state(len(seeds))

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Act for T steps."""
        policy = self.policy()
        noise = self._noise(policy.actions.draws)
        cut_off = _CutOff(self.steps, self.environments)
        for step in self._steps_taken:
            if step % self.every == 0:
                self._write(step // self.every, {f"state.{k}": v for k, v in self.state.items()})
            acted, actions, transition = self._step(policy, noise[step])
            row = {
                "observations": self.observations,
                "starts": self.starts,
                "actions": actions,
                "outputs": acted.outputs,
                "values": acted.values,
                "rewards": transition.rewards,
                "terminated": transition.terminated,
                "truncated": transition.truncated,
            }
            self._write(step, row)
            if step == self.steps - 1:
                with self.autocast():
                    beyond = policy.value(transition.final_observations, acted.state)
            else:
                cut_off.note(step, transition, acted.state)
            self._go_on(transition, acted.state)
        return self._finished(policy, beyond, cut_off)

    def state_dict(self) -> dict[str, Tensor]:
        """What is needed to go on, environments in dim 0 of every tensor."""
        there = {"observations": self.observations, "starts": self.starts}
        there |= {f"policy.{name}": value for name, value in self.state.items()}
        environments = self.environments.state_dict()
        return there | {f"environment.{name}": value for name, value in environments.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], steps_done: int) -> None:
        """Go on from what `state_dict` gave after so many steps."""
        self.steps_done = steps_done
        self.observations, self.starts = state["observations"], state["starts"]
        self.state = _below(state, "policy.")
        self.environments.load_state_dict(_below(state, "environment."))

    def _step(self, policy: Policy, noise: Tensor) -> tuple[Acted, Tensor, Transition]:
        with self.autocast():
            acted = policy.act(self.observations, self.starts, self.state)
        outputs = acted.outputs.to(self.observations.dtype)
        actions = policy.actions.sample(outputs, noise)
        transition = self.environments.step(policy.actions.for_environment(actions))
        return acted._replace(outputs=outputs), actions, transition

    def _go_on(self, transition: Transition, state: State) -> None:
        self.observations, self.state = transition.observations, state
        self.starts = transition.terminated | transition.truncated
        self.steps_done += 1

    def _finished(self, policy: Policy, beyond: Tensor, cut_off: _CutOff) -> Rollout:
        kept = self._storage
        next_values = torch.cat([kept["values"][1:], beyond.to(kept["values"]).unsqueeze(0)])
        with self.autocast():
            cut_off.put_values(next_values, policy)
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

    def _write(self, place: int, row: Mapping[str, Tensor]) -> None:
        for name, value in row.items():
            if name not in self._storage:
                rows = self.steps // self.every if name.startswith("state.") else self.steps
                dtype = value.dtype
                if value.is_floating_point():
                    dtype = self.observations.dtype  # not the narrower one of an autocast
                shape = (rows, *value.shape)
                self._storage[name] = torch.empty(shape, dtype=dtype, device=value.device)
            self._storage[name][place] = value


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

    def note(self, step: int, transition: Transition, state: State) -> None:
        """Put aside the observations and the policy's state where an episode was cut off."""
        cut = transition.truncated
        if cut.device.type == "cpu" and not bool(cut.any()):
            return  # looking is cheap there
        row = {f"state.{name}": value for name, value in state.items()}
        row["observations"] = transition.final_observations
        row["step"] = torch.full_like(cut, step, dtype=torch.int64)
        if not self._kept:
            self._kept = {
                name: value.new_zeros(self.places, *value.shape) for name, value in row.items()
            }
            self.used = torch.zeros_like(row["step"])
            self.rows = torch.arange(len(cut), device=cut.device)
        place = self.used.clamp(max=self.places - 1)
        for name, value in row.items():
            kept = self._kept[name]
            kept[place, self.rows] = where_rows(cut, value, kept[place, self.rows])
        self.used = self.used + cut

    def put_values(self, next_values: Tensor, policy: Policy) -> None:
        """Write the values of what was put aside to their steps, in [T, E]."""
        if not self._kept:
            return
        for place in range(self.places):
            row = {name: kept[place] for name, kept in self._kept.items()}
            step, observations = row.pop("step"), row.pop("observations")
            state = {name.removeprefix("state."): value for name, value in row.items()}
            values = policy.value(observations, state).to(next_values.dtype)
            there = (step, self.rows)
            next_values[there] = torch.where(self.used > place, values, next_values[there])

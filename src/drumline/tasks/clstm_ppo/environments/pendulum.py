"""Swinging up a pendulum as Gymnasium's Pendulum-v1 has it, without the angular velocity."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.environments.config import PendulumMemoryConfig
from drumline.tasks.clstm_ppo.environments.spaces import Box
from drumline.tasks.clstm_ppo.environments.tensor_environments import State, TensorEnvironments

GRAVITY, INTERVAL_S, FASTEST, STRONGEST = 10.0, 0.05, 8.0, 2.0


class Pendulum(TensorEnvironments):
    """The cost is the squared angle from upright, and a little for speed and torque."""

    capturable, draws = True, 2

    def __init__(
        self,
        config: PendulumMemoryConfig,
        count: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(count, device, dtype, config.episode_limit)
        self.velocities = config.velocities
        high = (1.0, 1.0, FASTEST) if config.velocities else (1.0, 1.0)
        self.observation_space = Box(tuple(-bound for bound in high), high)
        self.action_space = Box((-STRONGEST,), (STRONGEST,))
        self.farthest_start = torch.tensor([math.pi, 1.0], dtype=dtype, device=device)

    def first(self, uniforms: Tensor) -> State:
        """Any angle, turning slowly."""
        return {"physics": (2 * uniforms - 1) * self.farthest_start}

    def advance(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """One step of 50 ms; a rod of mass and length 1."""
        angle, speed = state["physics"].unbind(dim=1)
        torque = actions[:, 0].to(self.dtype).clamp(-STRONGEST, STRONGEST)
        from_upright = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = from_upright.square() + 0.1 * speed.square() + 0.001 * torque.square()
        speed = speed + (1.5 * GRAVITY * angle.sin() + 3.0 * torque) * INTERVAL_S
        speed = speed.clamp(-FASTEST, FASTEST)
        physics = torch.stack([angle + speed * INTERVAL_S, speed], dim=1)
        return {"physics": physics}, -cost, torch.zeros_like(cost, dtype=torch.bool)

    def observe(self, state: State) -> Tensor:
        """Cosine and sine of the angle, [E, 2]; and the velocity, [E, 3], if asked for."""
        angle, speed = state["physics"].unbind(dim=1)
        seen = [angle.cos(), angle.sin()]
        return torch.stack([*seen, speed] if self.velocities else seen, dim=1)

"""CartPole (Barto, Sutton and Anderson 1983) as Gymnasium's CartPole-v1 has it, without velocities.

Without them one observation does not say which way the pole falls: the policy has to remember.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.environments.config import CartPoleMemoryConfig
from drumline.tasks.clstm_ppo.environments.spaces import Box, Discrete
from drumline.tasks.clstm_ppo.environments.tensor_environments import State, TensorEnvironments

GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH, FORCE, INTERVAL_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
MASS, POLE_MOMENT = CART_MASS + POLE_MASS, POLE_MASS * HALF_LENGTH
FARTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360
START = 0.05


class CartPole(TensorEnvironments):
    """Reward 1 a step until the pole falls or the cart leaves the track."""

    capturable, draws = True, 4

    def __init__(
        self,
        config: CartPoleMemoryConfig,
        count: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(count, device, dtype, config.episode_limit)
        self.velocities = config.velocities
        positions = (2 * FARTHEST, 2 * STEEPEST)
        high = (positions[0], math.inf, positions[1], math.inf) if config.velocities else positions
        self.observation_space = Box(tuple(-bound for bound in high), high)
        self.action_space = Discrete(2)

    def first(self, uniforms: Tensor) -> State:
        """Position, velocity, angle and angular velocity within 0.05 of rest."""
        return {"physics": (2 * uniforms - 1) * START}

    def advance(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """One explicit Euler step of 20 ms."""
        x, x_dot, angle, angle_dot = state["physics"].unbind(dim=1)
        force = (2 * actions - 1).to(self.dtype) * FORCE
        cosine, sine = angle.cos(), angle.sin()
        pushed = (force + POLE_MOMENT * angle_dot.square() * sine) / MASS
        turning = (GRAVITY * sine - cosine * pushed) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine.square() / MASS)
        )
        moving = pushed - POLE_MOMENT * turning * cosine / MASS
        x, angle = x + INTERVAL_S * x_dot, angle + INTERVAL_S * angle_dot
        physics = torch.stack(
            [x, x_dot + INTERVAL_S * moving, angle, angle_dot + INTERVAL_S * turning], dim=1
        )
        fallen = (x.abs() > FARTHEST) | (angle.abs() > STEEPEST)
        return {"physics": physics}, torch.ones_like(x), fallen

    def observe(self, state: State) -> Tensor:
        """Position and angle, [E, 2]; with their velocities between, [E, 4], if asked for."""
        return state["physics"] if self.velocities else state["physics"][:, ::2]

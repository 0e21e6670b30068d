"""A task that only memory solves: a cue is shown once, and asked for some steps later."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from drumline.tasks.clstm_ppo.environments.config import EnvironmentConfig
from drumline.tasks.clstm_ppo.environments.spaces import Box, Discrete
from drumline.tasks.clstm_ppo.environments.tensor_environments import State, TensorEnvironments


class RecallConfig(EnvironmentConfig):
    """The observation is (cue, asked); an answer other than the cue when asked pays nothing."""

    implementation: ClassVar[str] = "recall:Recall"
    name: Literal["recall:RecallConfig"] = Field("recall:RecallConfig", description="this one")
    delay: int = Field(3, description="steps between cue and question")


class Recall(TensorEnvironments):
    """Chance gets a mean return of 1/2, memory 1."""

    draws = 1

    def __init__(
        self, config: RecallConfig, count: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(count, device, dtype, None)
        self.delay = config.delay
        self.observation_space = Box((-1.0, 0.0), (1.0, 1.0))
        self.action_space = Discrete(2)

    def first(self, uniforms: Tensor) -> State:
        cue = (uniforms[:, 0] > 0.5).to(torch.int64)
        return {"cue": cue, "step": torch.zeros_like(cue)}

    def advance(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        asked = state["step"] == self.delay
        right = asked & (actions == state["cue"])
        return {**state, "step": state["step"] + 1}, right.to(self.dtype), asked

    def observe(self, state: State) -> Tensor:
        shown = torch.where(state["step"] == 0, 2 * state["cue"] - 1, 0)
        return torch.stack([shown, state["step"] == self.delay], dim=1).to(self.dtype)

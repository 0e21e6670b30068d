"""Every key of the CLSTM-PPO task, and the rules between them. Needs no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    model_validator,
)

from drumline.config import RunConfig, Section, TaskConfig
from drumline.tasks.clstm_ppo.environments.config import EnvironmentConfig, environment_config

Discount = Annotated[float, Field(gt=0, le=1)]


class PolicyConfig(Section):
    """The cascaded LSTM policy. Without a window it is a plain recurrent one."""

    window: PositiveInt | None = Field(
        None,
        description="latest observations that a first LSTM extracts features from; null: the "
        "observation itself is the feature",
    )
    features: PositiveInt = Field(64, description="size of the first LSTM")
    attention_heads: NonNegativeInt = Field(
        0, description="heads of an attention over the window's features; 0: none"
    )
    hidden: PositiveInt = Field(128, description="size of the second LSTM")
    layers: PositiveInt = Field(1, description="layers of the second LSTM")
    shared: bool = Field(False, description="one second LSTM for actor and critic")
    heads: list[PositiveInt] = Field([64], description="hidden layers between LSTM and output")
    layer_norm: bool = Field(False, description="LayerNorm after each LSTM stage")
    carry_state: bool = Field(
        True, description="without it the second LSTM's state is zeroed at every step"
    )
    sequences: Literal["auto", "fused", "loop"] = Field(
        "auto",
        description="an LSTM over a sequence: torch's fused kernel, cut at episodes in the way "
        "that is fastest by a rule that was measured, or a loop over the steps; auto: fused, "
        "but a loop recorded as a CUDA graph on a GPU, unless in bf16 or fp16",
    )
    continuous: Literal["squashed", "clipped"] = Field(
        "squashed", description="continuous actions: a Gaussian through tanh, or cut at the bounds"
    )
    initial_deviation: PositiveFloat = Field(
        1.0, description="continuous actions: the Gaussian's standard deviation at the start"
    )

    @model_validator(mode="after")
    def _attention(self) -> PolicyConfig:
        if not self.attention_heads:
            return self
        if self.window is None:
            raise ValueError(
                f"attention_heads {self.attention_heads} needs a window to attend over: set window"
            )
        if self.features % self.attention_heads:
            raise ValueError(
                f"features {self.features} cannot be cut into {self.attention_heads} "
                "attention_heads: give a multiple"
            )
        return self


class LossConfig(Section):
    """PPO's loss (Schulman et al. 2017, arXiv 1707.06347)."""

    clip: PositiveFloat = Field(0.2, description="bound on the change of an action's probability")
    value_clip: PositiveFloat | None = Field(
        None, description="bound on the change of a value; null: none"
    )
    value: NonNegativeFloat = Field(0.5, description="weight of half the squared value error")
    entropy: NonNegativeFloat = Field(0.0, description="weight of the entropy")
    target_kl: PositiveFloat | None = Field(
        None,
        description="once a minibatch's KL divergence is above, over all ranks, the rest of the "
        "rollout's minibatches is left out; null: never",
    )


class NormaliseConfig(Section):
    """What is brought to unit scale, by statistics over the environments of all ranks."""

    observations: bool = Field(True, description="by the mean and deviation of all so far")
    rewards: bool = Field(True, description="by the deviation of all discounted returns so far")
    advantages: bool = Field(True, description="by the mean and deviation of the rollout's")
    bound: PositiveFloat = Field(
        10.0, description="normalised observations and rewards are cut at this size"
    )


class PlayConfig(Section):
    """How a policy is evaluated."""

    episodes: PositiveInt = Field(100, description="episodes, each in an environment of its own")
    deterministic: bool = Field(True, description="take the likeliest action instead of a sample")
    seed: NonNegativeInt = Field(1, description="of the evaluation's environments")
    most_steps: PositiveInt = Field(100_000, description="steps after which an episode is given up")


class CLSTMPPOConfig(TaskConfig):
    """Proximal policy optimization with a cascaded LSTM. `global_batch` counts transitions of all
    devices together, and a minibatch is whole sequences of them.
    """

    implementation: ClassVar[str] = "drumline.tasks.clstm_ppo.task:CLSTMPPOTask"
    name: Literal["clstm_ppo"] = Field("clstm_ppo", description="this task")
    environment: Annotated[
        SerializeAsAny[EnvironmentConfig], BeforeValidator(environment_config)
    ] = Field(description="what the policy acts in; environment.name picks its keys")
    environments: PositiveInt = Field(8, description="environments of all devices together")
    rollout_steps: PositiveInt = Field(
        128, description="steps in each environment between two updates"
    )
    sequence_length: PositiveInt | None = Field(
        None, description="steps of one training sequence; null: the whole rollout"
    )
    graphs: bool = Field(
        True,
        description="on a GPU, launch a step of acting as one CUDA graph where the environment can "
        "be recorded, and an LSTM's loop while learning where policy.sequences is auto",
    )
    rollout_epochs: PositiveInt = Field(10, description="passes over each rollout")
    total_steps: PositiveInt | None = Field(
        None, description="stop after so many steps in all environments together"
    )
    num_episodes: PositiveInt | None = Field(
        None, description="stop once so many episodes have ended, of all devices together"
    )
    gamma: Discount = Field(0.99, description="discount of a step")
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="decay of generalised advantage estimation"
    )
    policy: PolicyConfig = Field(PolicyConfig(), description="the network")
    loss: LossConfig = Field(LossConfig(), description="the objective")
    normalise: NormaliseConfig = Field(NormaliseConfig(), description="scales")
    evaluation: PlayConfig = Field(PlayConfig(), description="how a policy is evaluated")

    @property
    def granularity(self) -> int:
        """Minibatches, shares and micro-batches are whole sequences."""
        return self.sequence_length or self.rollout_steps

    @property
    def rollout_size(self) -> int:
        """Transitions of one rollout over all devices."""
        return self.environments * self.rollout_steps

    @property
    def sets_length(self) -> bool:
        """Whether the task's own keys say when a run ends."""
        return self.total_steps is not None or self.num_episodes is not None

    @property
    def untraced(self) -> tuple[str, ...]:
        """A trace sees learning only."""
        return ("acting in the environments (timed with --calibrate)",)

    def check(self) -> None:
        """Look for the environment."""
        self.environment.check()

    def problem_with(self, run: RunConfig) -> str | None:
        """Minibatches must be whole sequences, and cut a rollout evenly."""
        size, batch, length = self.rollout_size, run.global_batch, self.granularity
        if size % batch or batch % length:
            fitting = [b for b in range(length, size + 1, length) if size % b == 0]
            near = sorted(sorted(fitting, key=lambda b: abs(b - batch))[:3])
            return (
                f"global_batch {batch} does not cut a rollout of {size} transitions "
                f"({self.environments} environments x {self.rollout_steps} steps) into whole "
                f"sequences of {length}; near it fit: {', '.join(map(str, near))}"
            )
        return None

    @model_validator(mode="after")
    def _sequences(self) -> CLSTMPPOConfig:
        if self.rollout_steps % self.granularity:
            raise ValueError(
                f"sequence_length {self.sequence_length} does not divide rollout_steps "
                f"{self.rollout_steps}: give one that does"
            )
        return self

    @model_validator(mode="after")
    def _at_least_one_rollout(self) -> CLSTMPPOConfig:
        if self.total_steps is not None and self.total_steps < self.rollout_size:
            raise ValueError(
                f"total_steps {self.total_steps} is less than one rollout of {self.rollout_size}: "
                "raise it, or lower environments or rollout_steps"
            )
        return self

"""What is watched during training, and what is done about each finding."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from drumline.config.section import Section


class StabilityConfig(Section):
    """Numerical stability. The defaults only skip what is not finite and warn of the rest."""

    enabled: bool = Field(True, description="watch at all; without it non-finite steps are skipped")
    non_finite: Literal["skip", "lower_lr", "widen_precision", "rollback", "stop"] = Field(
        "skip", description="besides the skip that every non-finite loss or gradient gets"
    )
    loss_spike: Literal["warn", "skip", "clip", "lower_lr", "rollback", "stop"] = Field(
        "warn", description="for a loss far above its running mean"
    )
    gradient_growth: Literal["warn", "skip", "clip", "lower_lr", "rollback", "stop"] = Field(
        "warn", description="for a gradient norm far above its running mean"
    )
    update_ratio: Literal["warn", "lower_lr", "rollback", "stop"] = Field(
        "warn", description="for a module whose weights one step changes too much"
    )
    replica: Literal["stop", "repair"] = Field(
        "stop", description="for a rank whose weights differ: stop, or copy them from one in step"
    )
    window: PositiveInt = Field(200, description="steps over which running statistics fade")
    warmup_steps: PositiveInt = Field(
        100, description="values a running statistic needs before anything is judged by it"
    )
    spike_deviations: PositiveFloat = Field(
        6.0, description="standard deviations above its mean that make a loss a spike"
    )
    growth_deviations: PositiveFloat = Field(
        6.0, description="the same for the logarithm of the gradient norm"
    )
    growth_factor: PositiveFloat = Field(
        3.0, description="and at least this many times the running norm"
    )
    max_update_ratio: PositiveFloat = Field(
        0.1, description="norm of a step's change over the norm of a module's weights"
    )
    update_ratio_every: NonNegativeInt = Field(
        100, description="steps between measurements of the change; 0: never"
    )
    activations: list[str] = Field(
        [], description="modules whose outputs are measured, by name or pattern such as layers.*"
    )
    activations_every: PositiveInt = Field(100, description="steps between those measurements")
    fingerprint_every: NonNegativeInt = Field(
        100, description="steps between comparisons of the replicas' weights; 0: never"
    )
    clip_factor: PositiveFloat = Field(
        1.0, description="policy clip: bound on the norm as a multiple of the running norm"
    )
    lr_factor: float = Field(
        0.5, gt=0, lt=1, description="policy lower_lr: factor on the learning rate"
    )
    lr_steps: PositiveInt = Field(100, description="policy lower_lr: for so many steps")
    cooldown_steps: NonNegativeInt = Field(
        10, description="steps after a warning or lower_lr in which the same finding gets no other"
    )
    max_rollbacks: PositiveInt = Field(
        3, description="policy rollback: so many times in a run, then stop"
    )
    max_diagnoses: NonNegativeInt = Field(
        20, description="non-finite steps that are repeated to name the first bad tensor"
    )

    @property
    def policies(self) -> dict[str, str]:
        """The policy of every finding of the training itself."""
        return {
            "non_finite": self.non_finite,
            "loss_spike": self.loss_spike,
            "gradient_growth": self.gradient_growth,
            "update_ratio": self.update_ratio,
        }

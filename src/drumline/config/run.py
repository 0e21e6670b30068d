"""The sections of a RunConfig, and the rules between them."""

from __future__ import annotations

from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

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
from pydantic_core import PydanticCustomError

from drumline.config.modes import (
    BalanceConfig,
    DDPConfig,
    MeshConfig,
    PipelineConfig,
    ShardedConfig,
)
from drumline.config.performance import PerformanceConfig
from drumline.config.section import Section, TaskConfig, task_config_class
from drumline.config.stability import StabilityConfig
from drumline.errors import ConfigError

Fraction = Annotated[float, Field(ge=0, lt=1)]


class Mode(StrEnum):
    """How the model is spread over the devices."""

    AUTO = "auto"
    NONE = "none"
    DATAPARALLEL = "dataparallel"
    DISTRIBUTED = "distributed"
    SHARDED = "sharded"
    HYBRID = "hybrid"

    @property
    def needs_group(self) -> bool:
        """Whether it exchanges tensors even when there is one rank."""
        return self in (Mode.DISTRIBUTED, Mode.SHARDED, Mode.HYBRID)

    @property
    def one_process(self) -> bool:
        """Whether one process does it all."""
        return self in (Mode.NONE, Mode.DATAPARALLEL)


class Precision(StrEnum):
    """The arithmetic of forward and backward. Weights and optimizer state stay in float32
    (float64 for fp64).
    """

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


def _shares(value: Any) -> Any:
    """Refuse in one line what is none of the three; a key left empty means equal."""
    if value is None:
        return "equal"
    counts = isinstance(value, list | tuple) and value and all(map(_is_count, value))
    if counts or value in ("equal", "measured"):
        return value
    near = get_close_matches(str(value), ("equal", "measured"), n=1)
    remedy = f"Did you mean {near[0]}?" if near else "Use equal, measured, or a list like [9, 3]."
    what = "is neither a way to share nor samples for each rank"
    raise PydanticCustomError("shares", "{what}", {"what": what, "remedy": remedy})


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


Shares = Annotated[Literal["equal", "measured"] | list[NonNegativeInt], BeforeValidator(_shares)]


class DistributedConfig(Section):
    """How the run is spread and how its ranks talk."""

    mode: Mode = Field(
        Mode.AUTO, description="auto: none on one device, on more what the plan chooses"
    )
    allow_single_device: bool = Field(
        False, description="whether auto may end up on one device when spreading fails"
    )
    backend: Literal["auto", "nccl", "gloo"] = Field(
        "auto", description="data plane; auto: nccl on GPUs, gloo on the CPU"
    )
    timeout_s: PositiveFloat = Field(
        600.0, description="a data-plane collective that takes longer is a failure"
    )
    control_timeout_s: PositiveFloat = Field(
        300.0, description="a vote on the control plane that takes longer names the missing rank"
    )
    shares: Shares = Field(
        "equal",
        description="how ranks share the global batch: equally, in proportion to their measured "
        "speed, or so many samples for each",
    )
    balance: BalanceConfig = Field(
        BalanceConfig(), description="measuring ranks, and shares=measured"
    )
    bucket_cap_mb: PositiveFloat = Field(25.0, description="size of DDP's gradient buckets")
    sync_buffers: bool | None = Field(
        None,
        description="send rank 0's buffers to all at each step; by default where the model keeps "
        "running statistics",
    )
    find_unused_parameters: bool = Field(
        False, description="for models whose forward leaves parameters out"
    )
    sync_batchnorm: bool = Field(
        False, description="batch normalisation over the micro-batches of all ranks together"
    )
    ddp: DDPConfig = Field(DDPConfig(), description="options of mode distributed")
    sharded: ShardedConfig = Field(ShardedConfig(), description="options of mode sharded")
    mesh: MeshConfig = Field(MeshConfig(), description="axes of mode hybrid")
    pipeline: PipelineConfig = Field(
        PipelineConfig(), description="options of hybrid's pipeline axis"
    )
    max_restarts: NonNegativeInt = Field(
        3, description="how often the launcher starts the ranks again after a failure"
    )

    @model_validator(mode="after")
    def _can_be_measured(self) -> DistributedConfig:
        in_step = self.mode in (Mode.SHARDED, Mode.HYBRID) or self.sync_batchnorm
        if self.shares == "measured" and in_step:
            what = "sync_batchnorm" if self.sync_batchnorm else f"mode {self.mode.value}"
            raise ValueError(
                f"shares=measured needs ranks that work each at its own pace, and {what} lets them "
                "wait for each other in every layer; give samples for each rank, or equal"
            )
        return self

    @property
    def fixed_shares(self) -> list[int] | None:
        """Samples for each rank, where the config gives them."""
        return self.shares if isinstance(self.shares, list) else None

    @property
    def pipeline_size(self) -> int:
        """Ranks along the pipeline axis; 1 in all modes but hybrid."""
        return self.mesh.pipeline if self.mode is Mode.HYBRID else 1

    @model_validator(mode="after")
    def _pipeline_goes_with(self) -> DistributedConfig:
        if self.pipeline_size == 1:
            return self
        if self.sync_batchnorm:
            raise ValueError(
                "sync_batchnorm cannot be combined with mesh.pipeline: each stage normalises over "
                "one micro-batch; leave it out"
            )
        if self.sharded != ShardedConfig():
            raise ValueError("the options of sharded do nothing with mesh.pipeline; leave them out")
        return self


class OptimizerConfig(Section):
    """The optimizer, as in torch.optim."""

    name: Literal["adam", "adamw", "sgd"] = Field("adam", description="torch.optim's class")
    lr: PositiveFloat = Field(1e-3, description="peak learning rate")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), description="Adam's decay rates")
    eps: PositiveFloat = Field(1e-8, description="Adam's epsilon")
    momentum: NonNegativeFloat = Field(0.0, description="momentum of sgd")
    weight_decay: NonNegativeFloat = Field(0.0, description="weight decay")
    implementation: Literal["auto", "fused", "foreach", "plain"] = Field(
        "auto", description="auto: fused where torch has it for the device, else foreach"
    )


class ScheduleConfig(Section):
    """The learning rate over the steps, as a factor on its peak."""

    name: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="shape of the decay"
    )
    warmup_steps: NonNegativeInt = Field(0, description="steps from 0 up to the peak")
    decay_steps: NonNegativeInt | None = Field(
        None, description="length of the decay at the end; by default all after the warm-up"
    )
    final_fraction: float = Field(
        0.0, ge=0, le=1, description="learning rate at the end, as a fraction of the peak"
    )


class KeepBest(Section):
    """Which checkpoint counts as the best."""

    metric: str = Field(description="a metric of the evaluation, for example fvu")
    goal: Literal["min", "max"] = Field("min", description="whether less or more is better")


class CheckpointConfig(Section):
    """When the whole state is saved, and how much is kept."""

    every_steps: PositiveInt | None = Field(
        None, description="steps between checkpoints; by default only at the end and on a stop"
    )
    keep_last: PositiveInt = Field(3, description="newest checkpoints to keep")
    keep_best: KeepBest | None = Field(None, description="also keep the best by a metric")
    at_end: bool = Field(True, description="save one when the run is done")


class EvaluationConfig(Section):
    """When the task evaluates."""

    every_steps: PositiveInt | None = Field(
        None, description="steps between evaluations; by default only at the end"
    )
    at_end: bool = Field(True, description="evaluate when the run is done")


class LoggingConfig(Section):
    """What is written how often, and who reads it besides the terminal."""

    every_steps: PositiveInt = Field(10, description="steps between metric events")
    trackers: list[Literal["tensorboard", "wandb"]] = Field(
        [], description="readers of the events started with the run"
    )
    wandb_project: str = Field("drumline", description="project name in Weights & Biases")
    wandb_mode: Literal["online", "offline"] = Field(
        "offline", description="offline writes to the run directory and needs no network"
    )


def _task(value: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str | int):
        return value
    try:
        task_class = task_config_class(str(value["name"]))
    except ConfigError as error:  # so that it is listed with the problems of other keys
        problem = error.problems[0]
        raise PydanticCustomError(
            "task_name", "{what}", {"what": problem.what, "remedy": problem.remedy}
        ) from error
    return task_class.model_validate(value)


class RunConfig(Section):
    """One training, from data to result. What it says decides the result; how many devices run
    it does not.
    """

    name: str = Field("run", description="shown in lists; part of the run directory's name")
    task: Annotated[SerializeAsAny[TaskConfig] | None, BeforeValidator(_task)] = Field(
        None, description="what is trained; task.name picks its keys"
    )
    seed: NonNegativeInt = Field(0, description="of data order, initial weights and dropout")
    steps: PositiveInt | None = Field(None, description="optimizer steps; or give epochs")
    epochs: PositiveInt | None = Field(None, description="passes over the data; or give steps")
    global_batch: PositiveInt = Field(256, description="samples a step over all devices")
    micro_batch: PositiveInt | None = Field(
        None, description="samples one forward holds; changes memory, never the result"
    )
    epoch_end: Literal["short", "wrap", "drop"] = Field(
        "short",
        description="a last batch that is not full: use it short, fill it from the next epoch, "
        "or drop it",
    )
    precision: Precision = Field(Precision.FP32, description="arithmetic of forward and backward")
    clip_norm: PositiveFloat | None = Field(None, description="bound on the global gradient norm")
    max_skipped_steps: PositiveInt = Field(
        100, description="non-finite steps in a row before the run stops"
    )
    data_workers: NonNegativeInt = Field(0, description="loader processes of each rank")
    devices: str = Field(
        "auto", description="auto, all, N, indices or UUIDs with commas, cpu or cpu:N"
    )
    distributed: DistributedConfig = Field(DistributedConfig(), description="how the run is spread")
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="the optimizer")
    schedule: ScheduleConfig = Field(ScheduleConfig(), description="the learning rate over steps")
    checkpoint: CheckpointConfig = Field(CheckpointConfig(), description="saving the state")
    evaluation: EvaluationConfig = Field(EvaluationConfig(), description="when to evaluate")
    logging: LoggingConfig = Field(LoggingConfig(), description="metric events and trackers")
    stability: StabilityConfig = Field(
        StabilityConfig(), description="what is watched, and what is done about it"
    )
    performance: PerformanceConfig = Field(
        PerformanceConfig(), description="switches that make steps faster"
    )
    run_dir: Path | None = Field(None, description="the run directory; by default new in runs_dir")
    runs_dir: Path = Field(Path("runs"), description="folder of run directories")

    @model_validator(mode="after")
    def _lengths(self) -> RunConfig:
        own = self.task is not None and self.task.sets_length
        given = (self.steps is not None) + (self.epochs is not None)
        if own and given:
            raise ValueError("the task's own keys say when it ends: leave out steps and epochs")
        if not own and given != 1:
            what = "both were given" if given else "neither was given"
            raise ValueError(f"give either steps or epochs; {what}")
        return self

    @model_validator(mode="after")
    def _task_fits(self) -> RunConfig:
        problem = None if self.task is None else self.task.problem_with(self)
        if problem:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _shares_sum(self) -> RunConfig:
        shares = self.distributed.fixed_shares
        if shares is not None and sum(shares) != self.global_batch:
            raise ValueError(
                f"distributed.shares {shares} sum to {sum(shares)}, "
                f"but global_batch is {self.global_batch}"
            )
        return self

    @model_validator(mode="after")
    def _policies_can_act(self) -> RunConfig:
        policies = self.stability.policies
        rollback = [name for name, policy in policies.items() if policy == "rollback"]
        if rollback and self.checkpoint.every_steps is None:
            raise ValueError(
                f"stability.{rollback[0]}=rollback needs checkpoints to go back to: set "
                "checkpoint.every_steps"
            )
        narrow = (Precision.BF16, Precision.FP16)
        if policies["non_finite"] == "widen_precision" and self.precision not in narrow:
            raise ValueError(
                "stability.non_finite=widen_precision needs precision fp16 or bf16; with "
                f"{self.precision.value} nothing can be widened"
            )
        return self

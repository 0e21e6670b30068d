"""The options of single modes: replicas, shards, and the axes of a mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from drumline.config.section import Section
from drumline.errors import BadInput


def _axis(size: int) -> int:
    if size == 0:
        raise ValueError("an axis has at least one rank; -1 takes the rest")
    return size


Axis = Annotated[int, Field(ge=-1), AfterValidator(_axis)]


class DDPConfig(Section):
    """Mode distributed: a replica on every rank."""

    static_graph: bool = Field(
        False, description="the same parameters are used in every step, which saves DDP a search"
    )
    compression: Literal["none", "bf16", "fp16", "powersgd"] = Field(
        "none",
        description="what gradients are sent as; all but none round them, so that results depend "
        "on the number of ranks, and powersgd's restarts are not equal bit for bit",
    )
    powersgd_rank: PositiveInt = Field(1, description="rank of powersgd's approximation")
    shard_optimizer: bool = Field(
        False, description="each rank keeps a part of the optimizer's state (ZeRO stage 1)"
    )
    delayed_all_reduce: bool = Field(
        False,
        description="send gradients after the backward, not during it: slower, but running out of "
        "memory is then answered in every step",
    )


class ShardedConfig(Section):
    """Mode sharded, and hybrid's shard axis: every rank keeps a part of every parameter."""

    reshard_after_forward: bool = Field(
        True, description="free gathered weights between forward and backward; less memory, slower"
    )
    cpu_offload: bool = Field(
        False, description="keep weights, gradients and optimizer state in host memory; slow"
    )
    activation_checkpointing: bool = Field(
        False, description="recompute the activations of each unit in the backward"
    )
    gather_dtype: Literal["weights", "precision"] = Field(
        "weights",
        description="send weights as they are, or in the run's precision: half the traffic, but "
        "norms and the like are then computed in it too, so that results differ between modes",
    )
    reduce_dtype: Literal["weights", "bf16"] = Field(
        "weights", description="what gradients are summed in; bf16 rounds them"
    )


class BalanceConfig(Section):
    """Measuring what each rank does in a time of its own, without its waits for others."""

    every_steps: PositiveInt | None = Field(
        500,
        description="steps between measurements of each rank's own speed; null: none after those "
        "at the start with shares=measured",
    )
    change_at: Literal["epoch", "once"] = Field(
        "epoch",
        description="when new measured shares take effect, after those at the start: with the "
        "next epoch, or at once",
    )


class PipelineConfig(Section):
    """Hybrid's pipeline axis: the order in which stages work on micro-batches."""

    schedule: Literal["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"] = Field(
        "1f1b",
        description="gpipe: all forwards, then all backwards; 1f1b: each backward as soon as it "
        "can be, so that fewer activations are held; interleaved_1f1b: several stages a rank, a "
        "smaller bubble and more messages; zero_bubble: gradients of weights fill the bubble",
    )
    stages_per_rank: PositiveInt | None = Field(
        None, description="stages of the model on each rank; by default 2 for interleaved_1f1b, 1"
    )

    @property
    def stages(self) -> int:
        """Stages on each rank."""
        return self.stages_per_rank or (2 if self.schedule == "interleaved_1f1b" else 1)

    @model_validator(mode="after")
    def _fits_the_schedule(self) -> PipelineConfig:
        if self.schedule in ("gpipe", "1f1b") and self.stages > 1:
            raise ValueError(f"{self.schedule} has one stage a rank; use interleaved_1f1b")
        if self.schedule == "interleaved_1f1b" and self.stages == 1:
            raise ValueError("interleaved_1f1b needs stages_per_rank of 2 or more; or use 1f1b")
        return self


@dataclass(frozen=True)
class MeshShape:
    """Sizes of a mesh's axes. Ranks are numbered along tensor first, then shard, data, pipeline."""

    data: int
    shard: int
    tensor: int
    pipeline: int = 1


class MeshConfig(Section):
    """Mode hybrid: sizes of the mesh's axes; their product is the number of ranks."""

    data: Axis = Field(-1, description="replicas; -1: all ranks that the other axes leave")
    shard: Axis = Field(1, description="ranks that share out one replica's parameters")
    tensor: Axis = Field(1, description="ranks that split single layers, as the task declares")
    pipeline: PositiveInt = Field(
        1, description="ranks that each hold some of the model's stages, as the task declares"
    )

    @model_validator(mode="after")
    def _one_rest(self) -> MeshConfig:
        if [self.data, self.shard, self.tensor].count(-1) > 1:
            raise ValueError("only one axis can be -1, the rest")
        if self.pipeline > 1 and self.shard != 1:
            raise ValueError("pipeline and shard cannot be combined; one of them must be 1")
        return self

    def shape(self, world_size: int) -> MeshShape:
        """The axes' sizes on a number of ranks.

        Raises:
            BadInput: If they do not multiply to it.
        """
        sizes = {name: getattr(self, name) for name in ("data", "shard", "tensor", "pipeline")}
        fixed = 1
        for size in sizes.values():
            fixed *= 1 if size == -1 else size
        rest = world_size // fixed if -1 in sizes.values() else 1
        if fixed * rest != world_size:
            axes = " x ".join(f"{name} {size}" for name, size in sizes.items())
            raise BadInput(
                f"A mesh of {axes} does not fit {world_size} ranks.",
                remedy="Let the axes' sizes multiply to the number of ranks, or one of them be -1.",
            )
        return MeshShape(**{name: rest if size == -1 else size for name, size in sizes.items()})

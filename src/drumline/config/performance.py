"""Which switches that make steps faster a run uses, and whether it finds out by measuring."""

from __future__ import annotations

from pydantic import Field, model_validator

from drumline.config.section import Section

_CHOICE = "true: use it; false: never; null: as measured, if `measure` is on"


class PerformanceConfig(Section):
    """Performance switches. By default none, so that the result depends on nothing measured."""

    measure: bool = Field(
        False,
        description="at the start, try on real steps which switches help on these devices, and "
        "keep those that change results by no more than rounding",
    )
    compile: bool | None = Field(None, description=f"torch.compile; {_CHOICE}")
    cuda_graphs: bool | None = Field(
        None, description=f"launch compiled code as CUDA graphs; {_CHOICE}"
    )
    channels_last: bool | None = Field(
        None, description=f"layout of two-dimensional convolutions; {_CHOICE}"
    )
    cudnn_autotune: bool = Field(
        False,
        description="let cuDNN time its algorithms; it chooses anew in every process, so a "
        "resumed run is not equal bit for bit, and it is never measured",
    )
    nccl: bool = Field(True, description="measure settings of NCCL, too")
    loader: bool = Field(True, description="measure other numbers of data_workers, too")

    @property
    def wanted(self) -> bool:
        """Whether anything is to be done at all."""
        named = (self.compile, self.cuda_graphs, self.channels_last, self.cudnn_autotune)
        return self.measure or True in named

    @model_validator(mode="after")
    def _graphs_are_of_compiled_code(self) -> PerformanceConfig:
        if self.cuda_graphs and not self.compile:
            raise ValueError("cuda_graphs=true needs compile=true: it launches compiled code")
        return self

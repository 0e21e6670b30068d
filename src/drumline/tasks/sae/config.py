"""Every key of the SAE task, and the rules between them. Needs no torch.

Coefficients and thresholds are meant for inputs scaled to a mean norm of sqrt(d_in), which is what
`scale_inputs` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from drumline.config import Section, TaskConfig

Architecture = Literal["topk", "batchtopk", "jumprelu", "gated", "standard"]
DEFAULT_EXPANSION = 8.0
BY_COUNT = ("topk", "batchtopk")
"""Architectures that keep a number of latents instead of paying for each."""


class SparsityConfig(Section):
    """What an active latent costs; topk and batchtopk keep k latents instead and pay nothing."""

    l1: NonNegativeFloat = Field(
        5.0, description="standard and gated: cost of a latent's size, in units of squared error"
    )
    l0: NonNegativeFloat = Field(
        0.5, description="jumprelu: cost of each active latent, in units of squared error"
    )
    warmup_steps: NonNegativeInt = Field(
        1000, description="steps over which the cost rises from 0 in a line"
    )


class JumpReLUConfig(Section):
    """JumpReLU's threshold (Rajamanoharan et al. 2024, arXiv 2407.14435). The paper's 0.001 at
    unit norm is 0.001 * sqrt(d_in) here.
    """

    threshold: PositiveFloat = Field(0.05, description="initial threshold of every latent")
    bandwidth: PositiveFloat = Field(
        0.05, description="width of the rectangle kernel that estimates the threshold's gradient"
    )


class ResamplingConfig(Section):
    """Giving dead latents the direction of a badly reconstructed sample (Bricken et al. 2023)."""

    every_steps: PositiveInt | None = Field(
        None, description="steps between resamplings; null: never"
    )
    until_step: PositiveInt | None = Field(
        None, description="no resampling after this step; null: until the end"
    )
    samples: PositiveInt = Field(
        65_536, description="samples whose loss decides where dead latents go"
    )


class HeldOutConfig(Section):
    """The held-out end of the activations."""

    samples: NonNegativeInt | None = Field(
        None,
        description="last rows of the set, never trained on; null: a tenth of it, at most 16384",
    )
    chunk: PositiveInt = Field(1024, description="rows one forward of the evaluation holds")
    dense_above: float = Field(
        0.1, gt=0, lt=1, description="a latent that fires on more than this part of them is dense"
    )


class ExplainedLossConfig(Section):
    """How much of a language model's loss survives when the SAE stands in for its activations."""

    model: Path = Field(description="Hugging Face model folder or GGUF file")
    layer: NonNegativeInt = Field(description="the layer whose output the SAE was trained on")
    text: list[Path] | Literal["builtin"] = Field(
        "builtin", description="text files or folders; builtin: the Python documentation topics"
    )
    sequences: PositiveInt = Field(32, description="sequences to read")
    length: PositiveInt = Field(128, description="tokens in a sequence")


class SAETaskConfig(TaskConfig):
    """A sparse autoencoder, or with `targets` a transcoder, on cached activations."""

    implementation: ClassVar[str] = "drumline.tasks.sae.task:SAETask"
    name: Literal["sae"] = Field("sae", description="this task")
    activations: Path = Field(description="folder or file of activations to read")
    targets: Path | None = Field(
        None, description="activations to predict, row by row with the former: a transcoder"
    )
    architecture: Architecture = Field(
        "topk",
        description="topk (arXiv 2406.04093), batchtopk (2412.06410), jumprelu (2407.14435), "
        "gated (2404.16014), standard (ReLU and L1)",
    )
    latents: PositiveInt | None = Field(None, description="number of latents; or give expansion")
    expansion: PositiveFloat | None = Field(
        None, description="latents as a multiple of the input width; 8 if neither is given"
    )
    k: PositiveInt = Field(32, description="topk and batchtopk: latents kept for a sample")
    batchtopk_group: PositiveInt = Field(
        64,
        description="batchtopk: consecutive samples among which the k*group largest are kept",
    )
    matryoshka: list[PositiveInt] | None = Field(
        None,
        description="ascending numbers of first latents that must each reconstruct alone, the "
        "last being all (arXiv 2503.17547)",
    )
    sparsity: SparsityConfig = Field(SparsityConfig(), description="cost of active latents")
    jumprelu: JumpReLUConfig = Field(JumpReLUConfig(), description="JumpReLU's threshold")
    dead_after_samples: PositiveInt = Field(
        10_000_000, description="a latent silent for this many samples is dead"
    )
    aux_k: NonNegativeInt | None = Field(
        None,
        description="topk and batchtopk: dead latents that model what is left over; null: the "
        "power of two up to half the input width; 0: none",
    )
    aux_coefficient: NonNegativeFloat = Field(
        1 / 32, description="weight of the error of those dead latents"
    )
    resampling: ResamplingConfig = Field(ResamplingConfig(), description="reviving dead latents")
    decoder_norm: bool = Field(True, description="hold every decoder row at unit norm")
    tied_init: bool | None = Field(
        None,
        description="start the encoder as the decoder's transpose; null: yes, but no for a "
        "transcoder",
    )
    bias_init: Literal["geometric_median", "zero"] = Field(
        "geometric_median", description="start of the decoder bias"
    )
    bias_samples: PositiveInt = Field(
        8192, description="first samples of the data order that set bias, scale and mean"
    )
    scale_inputs: bool = Field(
        True, description="scale inputs to a mean norm of sqrt(width); kept in the weights"
    )
    evaluation: HeldOutConfig = Field(HeldOutConfig(), description="the held-out samples")
    explained_loss: ExplainedLossConfig | None = Field(
        None, description="splice the SAE into its language model at every evaluation"
    )

    @property
    def granularity(self) -> int:
        """Shares and micro-batches are whole groups: BatchTopK couples the samples of one."""
        return self.batchtopk_group if self.architecture == "batchtopk" else 1

    def latent_count(self, d_in: int) -> int:
        """Number of latents for inputs of this width."""
        return self.latents or max(1, round((self.expansion or DEFAULT_EXPANSION) * d_in))

    def aux_count(self, d_in: int) -> int:
        """Dead latents in AuxK; by default as in Gao et al. 2024, appendix B.1."""
        if self.architecture not in BY_COUNT or self.aux_coefficient == 0:
            return 0
        if self.aux_k is not None:
            return self.aux_k
        return 1 << (max(1, d_in // 2).bit_length() - 1)

    def sparsity_coefficient(self, step: int) -> float:
        """Cost of active latents at a step, counted from 0."""
        if self.architecture in BY_COUNT:
            return 0.0
        full = self.sparsity.l0 if self.architecture == "jumprelu" else self.sparsity.l1
        return full * min(1.0, step / max(1, self.sparsity.warmup_steps))

    def size_problem(self, latents: int) -> str | None:
        """What contradicts this number of latents, with a remedy; None if nothing does."""
        if self.architecture in BY_COUNT and self.k > latents:
            return f"k is {self.k}, but there are only {latents} latents: lower k or raise latents"
        if self.aux_k is not None and self.aux_k > latents:
            return (
                f"aux_k is {self.aux_k}, but there are only {latents} latents: "
                f"give at most {latents}"
            )
        if self.matryoshka and self.matryoshka[-1] != latents:
            return (
                f"the last of matryoshka {self.matryoshka} must be all {latents} latents: "
                f"end it with {latents}"
            )
        return None

    def check(self) -> None:
        """Look at the activations and files that the config names, by their headers.

        Raises:
            BadInput: If one is missing, damaged, or does not fit the others or a key.
        """
        from drumline.tasks.sae.before_start import check_task

        check_task(self)

    @model_validator(mode="after")
    def _size(self) -> SAETaskConfig:
        if self.latents is not None and self.expansion is not None:
            raise ValueError(
                f"latents {self.latents} and expansion {self.expansion:g} are both given: "
                "leave one out"
            )
        problem = self.size_problem(self.latents) if self.latents is not None else None
        if problem:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _prefixes(self) -> SAETaskConfig:
        sizes = self.matryoshka
        if sizes is not None and (not sizes or sorted(set(sizes)) != sizes):
            raise ValueError(
                f"matryoshka {sizes} must be ascending numbers: sort it, each number once, "
                "or give null"
            )
        return self

    @model_validator(mode="after")
    def _architecture_rules(self) -> SAETaskConfig:
        if self.aux_k and self.architecture not in BY_COUNT:
            raise ValueError(
                f"aux_k {self.aux_k} belongs to topk and batchtopk, not to {self.architecture}: "
                "leave it out, or revive dead latents with resampling.every_steps"
            )
        if self.architecture == "gated" and not self.decoder_norm:
            raise ValueError(
                "gated needs decoder_norm true, or its L1 term only shrinks the encoder: "
                "leave decoder_norm out"
            )
        if self.explained_loss is not None and self.targets is not None:
            raise ValueError(
                "explained_loss puts the reconstruction in the place of the layer it was read "
                "from, and a transcoder (targets) does not reconstruct it: leave one out"
            )
        if self.tied_init and self.targets is not None:
            raise ValueError(
                "tied_init true does not fit a transcoder, whose decoder lives in the space of "
                "the targets: leave tied_init out"
            )
        return self

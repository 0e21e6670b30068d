"""What `drumline activations extract` is asked for. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from drumline.config import Section

ModelType = Literal["bfloat16", "float32"]


class ExtractOptions(Section):
    """Which activations of which model on which text, and where they go."""

    model: str = Field(
        description="folder of a Hugging Face causal model, a GGUF file, or builtin:smollm2"
    )
    layer: int = Field(ge=0, description="take the residual stream after this layer, from 0")
    text: tuple[str, ...] = Field(
        min_length=1, description=".txt, .md or .jsonl files, folders of them, or builtin:pydoc"
    )
    out: Path = Field(description="folder for the shards and their manifest")
    length: int = Field(default=128, ge=2, description="tokens of a sequence")
    tokens: PositiveInt | None = Field(
        default=None, description="read at most this many tokens; by default all of the text"
    )
    held_out: int = Field(
        default=64,
        ge=0,
        description="sequences at the end of the text left out, for the explained loss",
    )
    drop_first: bool = Field(
        default=True,
        description="leave out position 0 of each sequence, whose norm is far from all others",
    )
    outlier_ratio: PositiveFloat | None = Field(
        default=10.0,
        description="leave out positions with a norm of more than this many times the median of "
        "their sequence: attention sinks; null keeps them, and all rows of two layers aligned",
    )
    dtype: ModelType = Field(
        default="bfloat16", description="type the model computes in and activations are stored in"
    )
    sequences_per_shard: PositiveInt = Field(default=64, description="sequences in a shard file")
    batch: PositiveInt | None = Field(
        default=None,
        description="sequences in a forward pass; by default 8 on a CPU and a shard on a GPU",
    )

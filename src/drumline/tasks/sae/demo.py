"""What `drumline demo` extracts and trains: a real model and real text that packages carry."""

from __future__ import annotations

from pathlib import Path

from drumline.tasks.sae.extract_options import ExtractOptions

DEMO_CONFIG = Path(__file__).with_name("demo.yaml")
"""The training, but for the folder of the activations."""


def demo_extraction(out: Path) -> ExtractOptions:
    """The residual stream after layer 15 of SmolLM2-135M-Instruct on Python's documentation."""
    return ExtractOptions(
        model="builtin:smollm2", layer=15, text=("builtin:pydoc",), out=out, tokens=180_000
    )

"""From the config's words to a model."""

from __future__ import annotations

from drumline.tasks.sae.before_start import refuse_size
from drumline.tasks.sae.config import SAETaskConfig
from drumline.tasks.sae.model import SAE, SAESize
from drumline.tasks.sae.penalised import GatedSAE, JumpReLUSAE, StandardSAE
from drumline.tasks.sae.topk import BatchTopKSAE, TopKSAE


def build_sae(config: SAETaskConfig, d_in: int, d_out: int | None = None) -> SAE:
    """The SAE a config describes, with initial weights from torch's default generator.

    Args:
        config: The task's config.
        d_in: Width of the inputs.
        d_out: Width of the targets of a transcoder; None for an autoencoder.

    Raises:
        ConfigError: If a key contradicts the number of latents.
    """
    latents = config.latent_count(d_in)
    refuse_size(config, latents)
    transcoder = d_out is not None
    size = SAESize(
        d_in=d_in,
        d_out=d_out if d_out is not None else d_in,
        latents=latents,
        prefixes=tuple(config.matryoshka or (latents,)),
        transcoder=transcoder,
        tied=not transcoder if config.tied_init is None else config.tied_init,
    )
    return _of_architecture(config, size)


def _of_architecture(config: SAETaskConfig, size: SAESize) -> SAE:
    auxiliary = config.aux_count(size.d_in), config.aux_coefficient
    match config.architecture:
        case "topk":
            return TopKSAE(size, config.k, *auxiliary)
        case "batchtopk":
            return BatchTopKSAE(size, config.k, config.batchtopk_group, *auxiliary)
        case "jumprelu":
            return JumpReLUSAE(size, config.jumprelu.threshold, config.jumprelu.bandwidth)
        case "gated":
            return GatedSAE(size)
        case "standard":
            return StandardSAE(size)

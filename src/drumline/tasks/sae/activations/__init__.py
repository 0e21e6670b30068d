"""Sets of activations on disk, read by row number, in any of the formats in docs/activations.md.

Importing this needs no torch, so that a plan can be made from what a set says of itself.
"""

from drumline.tasks.sae.activations.activation_set import ActivationSet, open_activations
from drumline.tasks.sae.activations.manifest import Manifest, ShardRecord, read_manifest

__all__ = ["ActivationSet", "Manifest", "ShardRecord", "open_activations", "read_manifest"]

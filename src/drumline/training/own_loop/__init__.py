"""For people who keep their own loop: a World that also prepares, sums, steps and saves."""

from drumline.training.own_loop.loader import PreparedLoader
from drumline.training.own_loop.world import OwnLoop, open_world

__all__ = ["OwnLoop", "PreparedLoader", "open_world"]

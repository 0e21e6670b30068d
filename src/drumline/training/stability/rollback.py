"""Going back to the last good checkpoint and past the samples that spoiled the run.

The order of samples is deterministic, so going through the same samples again would only arrive
where the run is now. What was trained since the checkpoint is given up, and the run goes on with
the checkpoint's state and the samples after the offending ones (as Chowdhery et al., "PaLM" (2022),
section 5.1, did by hand). The step keeps its number: schedule, length and epochs are as configured,
and the steps given up count as skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

if TYPE_CHECKING:
    from drumline.training.checkpoint import Checkpoint
    from drumline.training.session import Session


def roll_back(session: Session) -> int | None:
    """Restore the newest good checkpoint on all ranks and go on after the present batch.

    Returns:
        The step of that checkpoint, or None if there is none and nothing was changed.
    """
    found = next(_good(session), None) if session.world.is_main else None
    checkpoint = session.world.control.broadcast(found)
    if checkpoint is None:
        return None
    progress = session.progress
    here = replace(progress)
    session.strategy.load_weights(load_file(checkpoint.weights_path))
    session.state.load_state_dict(checkpoint.load_state())
    progress.skipped += here.step - checkpoint.step
    progress.step, progress.samples, progress.cursor = here.step, here.samples, here.cursor
    progress.skipped_in_a_row = 0
    session.open_source()
    return checkpoint.step


def _good(session: Session) -> Iterator[Checkpoint]:
    """Whole checkpoints of this run up to now whose weights are finite, newest first."""
    for path, checkpoint, reason in session.checkpoints.examine():
        if checkpoint is not None and checkpoint.step > session.progress.step:
            continue  # of an attempt that went further and was given up
        if checkpoint is not None and _is_finite(checkpoint):
            yield checkpoint
        else:
            why = reason or f"{path} holds weights that are not finite"
            session.events.emit("checkpoint_refused", path=str(path), reason=why)


def _is_finite(checkpoint: Checkpoint) -> bool:
    weights = load_file(checkpoint.weights_path).values()
    return all(bool(torch.isfinite(w).all()) for w in weights if w.is_floating_point())

"""Errors of the queue: what was asked cannot be done to this training, or the lease is lost."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.errors import BadInput, DrumlineError


class UnknownTraining(BadInput):
    """There is no training of that id."""

    code = "unknown_training"

    def __init__(self, training_id: str) -> None:
        super().__init__(
            f"There is no training {training_id}.",
            remedy="List those there are; deleted ones are gone.",
            training=training_id,
        )


class WrongState(BadInput):
    """The training's state does not allow what was asked."""

    code = "wrong_state"

    def __init__(self, training_id: str, state: str, asked: str, allowed: list[str]) -> None:
        super().__init__(
            f"Training {training_id} is {state} and cannot be {asked}.",
            remedy=f"Only trainings that are {' or '.join(allowed)} can.",
            training=training_id,
            state=state,
            allowed=allowed,
        )


class IdempotencyConflict(BadInput):
    """The same idempotency key came with another content."""

    code = "idempotency_conflict"

    def __init__(self, key: str, training_id: str) -> None:
        super().__init__(
            f"The idempotency key {key!r} belongs to training {training_id}, which asks for "
            "something else.",
            remedy="Use a new key for each new training.",
            key=key,
            training=training_id,
        )


class LeaseLost(DrumlineError):
    """The token counts no more: the lease ran out and was taken back, or the attempt has ended."""

    code = "lease_lost"

    def __init__(self) -> None:
        super().__init__(
            "The lease of this attempt is lost: it ran out and was taken back, or it has ended.",
            remedy="End the attempt's processes; the training goes on in another attempt.",
        )


class DeviceTaken(BadInput):
    """A device asked for is somebody else's."""

    code = "device_taken"

    def __init__(self, holders: Mapping[str, str]) -> None:
        told = "; ".join(f"{uuid}: {holder}" for uuid, holder in sorted(holders.items()))
        super().__init__(
            f"Devices are taken: {told or 'by somebody who was faster'}.",
            remedy="Choose others, or queue the training.",
            devices=dict(holders),
        )

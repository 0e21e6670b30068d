"""What a client asks for, made into what the queue takes: the config within the rules, the devices,
whether it is spread.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from drumline.errors import BadInput
from drumline.jobs.training import Request
from drumline.server.config_rules import permitted
from drumline.server.services import Services
from drumline.server.views.trainings import Asked, CreateTraining

_SPREAD = "distributed"


def request_of(body: CreateTraining, owner: str, key: str | None, services: Services) -> Request:
    """The queue's request for what a client has posted.

    Raises:
        ConfigError: If the config cannot be used, or names what it may not.
        BadInput: If fields contradict each other.
    """
    config = config_of(body, body.config, services)
    return Request(
        config=config,
        owner=owner,
        name=body.name,
        gpu_ids=tuple(body.gpu_ids),
        gpus=gpus_of(body),
        memory_bytes=body.memory_bytes,
        host=body.host,
        priority=body.priority,
        expected_s=body.expected_s,
        draft=body.draft,
        idempotency_key=key,
        max_attempts=body.max_attempts,
    )


def config_of(
    asked: Asked, config: Mapping[str, Any], services: Services, devices: str | None = None
) -> dict[str, Any]:
    """The config, checked, with mode as `distributed` asks, for these devices if any are named."""
    given = copy.deepcopy(dict(config))
    if devices is not None:
        given["devices"] = devices
    if asked.distributed is not None:
        part = given.setdefault(_SPREAD, {})
        if not isinstance(part, dict):
            part = given[_SPREAD] = {"mode": part}
        if not asked.distributed:
            part["mode"] = "none"
        elif part.get("mode") == "none":
            part["mode"] = "auto"
    return permitted(given, services.settings)


def gpus_of(asked: Asked) -> Any:
    """How many devices are asked for, where none is named.

    Raises:
        BadInput: If several are to be used although the training is not to be spread.
    """
    if asked.distributed is False:
        many = len(asked.gpu_ids) > 1 or asked.gpus == "all"
        if many or (isinstance(asked.gpus, int) and asked.gpus > 1):
            raise BadInput(
                "distributed is false, but several devices are asked for.",
                remedy="Ask for one, or leave `distributed` out.",
                field="distributed",
            )
        return 1 if asked.gpus in (None, "auto") and not asked.gpu_ids else asked.gpus
    return asked.gpus

"""What the commands of the service share: its settings, its log, and a word on its extra."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drumline.errors import MissingPackage

if TYPE_CHECKING:
    from drumline.config.service import ServiceSettings


@contextmanager
def with_service(command: str) -> Iterator[None]:
    """Within it, a package of the `service` extra that is not installed is told of as such.

    Raises:
        MissingPackage: If one is not.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("drumline"):
            raise
        raise MissingPackage(str(error.name), "service", command) from error


def read_settings(**given: Any) -> ServiceSettings:
    """The settings, with what the command line says on top; see `drumline.config.service`."""
    with with_service("The service"):
        from drumline.config.service import read_settings as read

        return read(**{name: value for name, value in given.items() if value is not None})


def service_logging() -> None:
    """One line for each message, on standard error."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    for chatty in ("celery", "alembic", "uvicorn.error", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

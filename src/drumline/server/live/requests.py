"""What a client may ask over the live connection, and how it is answered.

Every request is one JSON object with a `type`. A wrong one is answered by an error message with a
code; the connection goes on.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from drumline.errors import BadInput, DrumlineError
from drumline.server.live.channel import as_json
from drumline.server.live.hub import Client, TooManyChannels

CHANNEL = re.compile(r"gpus/aggregate|queue|(gpu|training)/[A-Za-z0-9][\w.:/-]{0,126}", re.ASCII)


class BadRequest(BadInput):
    """A message that is not one of the protocol's requests."""

    code = "bad_request"


class UnknownChannel(BadInput):
    """A channel whose name is none of those there are."""

    code = "unknown_channel"


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Subscribe(_Request):
    """Get these channels from now on; `since` has the last number seen of some, in `epoch`."""

    type: Literal["subscribe"]
    channels: list[str] = Field(min_length=1)
    since: dict[str, Annotated[int, Field(ge=0)]] = {}
    epoch: str | None = None


class Unsubscribe(_Request):
    """Get nothing more of these channels."""

    type: Literal["unsubscribe"]
    channels: list[str] = Field(min_length=1)


class Ping(_Request):
    """Is the service there? For browsers, which do not see the protocol's own ping."""

    type: Literal["ping"]


_REQUEST: TypeAdapter[Subscribe | Unsubscribe | Ping] = TypeAdapter(
    Annotated[Subscribe | Unsubscribe | Ping, Field(discriminator="type")]
)


def handle(client: Client, text: str) -> None:
    """Do what one message asks; errors become answers.

    Raises:
        TooManyAnswers: If the client does not read its answers.
    """
    try:
        request = _parse(text)
    except BadRequest as error:
        client.answer(error_text(error))
        return
    if isinstance(request, Ping):
        client.answer('{"type":"pong"}')
    elif isinstance(request, Unsubscribe):
        for name in request.channels:
            client.unsubscribe(name)
        client.answer(as_json({"type": "unsubscribed", "channels": request.channels}))
    else:
        _subscribe(client, request)


def error_text(error: DrumlineError) -> str:
    """An error as the message that clients get."""
    return as_json({"type": "error", **error.as_dict()})


def _parse(text: str) -> Subscribe | Unsubscribe | Ping:
    try:
        request = _REQUEST.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadRequest(
            f"{where or 'The message'}: {first['msg']}.",
            remedy='Send {"type":"subscribe","channels":["queue"]}, "unsubscribe" or "ping".',
        ) from error
    if isinstance(request, Subscribe) and request.since and request.epoch is None:
        raise BadRequest(
            "since means nothing without the epoch its numbers are of.",
            remedy="Send the epoch of the hello that came before them.",
        )
    return request


def _subscribe(client: Client, request: Subscribe) -> None:
    unknown = [name for name in request.channels if not CHANNEL.fullmatch(name)]
    if unknown:
        client.answer(error_text(_unknown(unknown)))
    try:
        for name in request.channels:
            if CHANNEL.fullmatch(name):
                client.subscribe(name, since=request.since.get(name), epoch=request.epoch)
    except TooManyChannels as error:
        client.answer(error_text(error))


def _unknown(names: list[str]) -> UnknownChannel:
    shown = [name[:160] for name in names[:20]]
    return UnknownChannel(
        f"There is no channel {', '.join(shown)}.",
        remedy="Channels are gpu/UUID, gpus/aggregate, training/ID and queue.",
        channels=shown,
    )

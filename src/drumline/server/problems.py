"""Errors as RFC 9457 problem documents, the only form in which this service tells of one.

Where errors come from is left to those who raise them; here a `DrumlineError` gets its status, and
what nobody foresaw gets a number under which the log has all of it and the answer nothing.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drumline.errors import BadInput, ConfigError, ConfigProblem, DrumlineError
from drumline.events import finite

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

STATUS: dict[str, int] = {
    "token_needed": 401,
    "not_allowed": 403,
    "foreign_origin": 403,
    "not_found": 404,
    "unknown_training": 404,
    "wrong_state": 409,
    "idempotency_conflict": 409,
    "device_taken": 409,
    "lease_lost": 409,
    "too_large": 413,
    "unknown_host": 421,
    "too_often": 429,
    "database": 503,
    "overloaded": 503,
    "took_too_long": 504,
}
"""By the code of the error. Other bad input is 422, any other error 500."""

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 429: "too_often"}
_HTTP_REMEDIES = {
    404: "Paths are listed in /api/v1/openapi.json.",
    405: "The header Allow tells which methods there are.",
}
_LONGEST_VALUE = 200
_SECRETS = frozenset({"token", "authorization", "cookie"})


class FieldProblem(BaseModel):
    """What is wrong with one field of a request, or one key of a config."""

    field: str = Field(description="Which one, its parts joined by dots.")
    what: str = Field(description="What is wrong, in words.")
    value: Any = Field(None, description="The value given; null where none was.")
    remedy: str = Field("", description="What to do about it; may be empty.")


class Problem(BaseModel):
    """Why a request was not carried out (RFC 9457)."""

    type: str = Field(description="A URI that names the kind of problem.")
    title: str = Field(description="The kind of problem, in words.")
    status: int = Field(description="The HTTP status.", ge=400, le=599)
    detail: str = Field(description="What happened, with the values involved.")
    code: str = Field(description="The kind of problem, for programs.")
    remedy: str = Field("", description="What can be done about it; may be empty.")
    field: str | None = Field(None, description="The one field that is wrong, if it is one.")
    fields: list[FieldProblem] = Field([], description="Every field that is wrong.")
    values: dict[str, Any] = Field({}, description="The values involved, by name.")
    id: str | None = Field(
        None, description="Of an unexpected error: the number under which the log tells more."
    )


EXAMPLE = {
    "type": "urn:drumline:problem:wrong_state",
    "title": "Conflict",
    "status": 409,
    "detail": "Training 5f0c2a9b1d3e is succeeded and cannot be cancelled.",
    "code": "wrong_state",
    "remedy": "Only trainings that are draft or queued or running can.",
    "field": None,
    "fields": [],
    "values": {"training": "5f0c2a9b1d3e", "state": "succeeded"},
    "id": None,
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these problems."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {
                MEDIA_TYPE: {
                    "schema": {"$ref": "#/components/schemas/Problem"},
                    "example": EXAMPLE,
                }
            },
        }
        for status in statuses
    }


EVERYWHERE = documented(400, 401, 403, 413, 421, 422, 429, 500, 503)
"""Problems that any route may have."""


def problem_of(error: DrumlineError) -> Problem:
    """An error as a problem document."""
    status = STATUS.get(error.code, 422 if isinstance(error, BadInput) else 500)
    told = error.as_dict()
    fields = [_field(problem) for problem in getattr(error, "problems", ())]
    one = told["values"].get("field")
    return _problem(
        status,
        error.code,
        _without_list(error) if isinstance(error, ConfigError) else error.message,
        remedy=error.remedy or (fields[0].remedy if len(fields) == 1 else ""),
        field=one if isinstance(one, str) else None,
        fields=fields,
        values=told["values"],
    )


def response_of(problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer that carries a problem."""
    given = dict(headers or {})
    if problem.status == 401:
        given.setdefault("WWW-Authenticate", "Bearer")
    after = problem.values.get("retry_after_s")
    if after is not None:
        given.setdefault("Retry-After", str(after))
    return _Answer(problem.model_dump(), problem.status, headers=given, media_type=MEDIA_TYPE)


class _Answer(JSONResponse):
    """In ASCII, so that a request's text can be told of whatever it holds."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(finite(content), default=str).encode("ascii")


def unexpected(error: BaseException) -> Problem:
    """What is told of an error that nobody foresaw: a number, under which the log has the rest."""
    number = secrets.token_hex(6)
    logger.error("Unexpected error %s.", number, exc_info=error)
    return _problem(
        500,
        "unexpected",
        f"Something went wrong that was not foreseen; the log tells more under {number}.",
        remedy="This is a fault in Drumline: report it with what the log says.",
        id=number,
    )


def add_handlers(app: FastAPI) -> None:
    """Have every error of `app` answered by a problem document."""

    @app.exception_handler(DrumlineError)
    async def _known(_request: Request, error: DrumlineError) -> JSONResponse:
        return response_of(problem_of(error))

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        return response_of(invalid(error.errors()))

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> JSONResponse:
        status = error.status_code
        code = _HTTP_CODES.get(status, "http")
        remedy = _HTTP_REMEDIES.get(status, "")
        return response_of(_problem(status, code, str(error.detail), remedy=remedy), error.headers)


class Unforeseen:
    """Answers where an application fails in a way that nobody foresaw.

    In the place of Starlette's, which raises the error again for the server to print.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; an error after the answer has begun ends the connection."""
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            problem = unexpected(error)
            if begun or scope["type"] != "http":
                raise
            await response_of(problem)(scope, receive, send)


def invalid(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """What pydantic says of a request, each field with what is wrong."""
    fields = [
        FieldProblem(
            field=".".join(str(part) for part in _place(error["loc"])) or "body",
            what=_what(str(error["msg"])),
            value=None if _SECRETS & set(error["loc"]) else _short(error.get("input")),
        )
        for error in errors
    ]
    named = ", ".join(dict.fromkeys(field.field for field in fields))
    return _problem(
        422,
        "bad_request",
        f"The request cannot be understood: {named}.",
        remedy="Fields and their types are described in /api/v1/openapi.json.",
        fields=fields,
    )


def _problem(status: int, code: str, detail: str, **more: Any) -> Problem:
    fields = more.get("fields") or []
    if len(fields) == 1 and more.get("field") is None:
        more["field"] = fields[0].field
    return Problem(
        type=f"urn:drumline:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        **more,
    )


def _field(problem: ConfigProblem) -> FieldProblem:
    return FieldProblem(
        field=problem.key,
        what=problem.what,
        value=_short(problem.as_dict()["value"]),
        remedy=problem.remedy,
    )


def _without_list(error: ConfigError) -> str:
    """The first line: the list that follows it is in `fields`."""
    source = str(error.values.get("source", "The config"))
    keys = ", ".join(dict.fromkeys(problem.key for problem in error.problems))
    return f"{source} cannot be used: {keys}."


def _place(location: Sequence[Any]) -> Sequence[Any]:
    """Without the part of the request, unless that is all there is."""
    inside = location[0] in ("body", "query", "path", "header") and len(location) > 1
    whole = location[0] == "body" and isinstance(location[-1], int) and len(location) == 2
    return location[:1] if whole else location[1:] if inside else location


def _what(message: str) -> str:
    plain = message.removeprefix("Value error, ")
    return plain if plain[:2].isupper() else plain[:1].lower() + plain[1:]


def _short(value: Any) -> Any:
    """The value where it is small and plain; a request is not sent back whole."""
    if isinstance(value, str):
        return value[:_LONGEST_VALUE]
    return value if isinstance(value, int | float | bool | None) else None

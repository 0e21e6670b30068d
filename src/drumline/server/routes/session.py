"""Who I am; logging in with a token, for browsers, and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, SecretStr

from drumline.server.access.gate import COOKIE, session_cookie
from drumline.server.access.identity import Identity, Role
from drumline.server.access.tokens import SESSION_MS
from drumline.server.errors import TokenNeeded
from drumline.server.problems import documented
from drumline.server.services import Given

router = APIRouter(tags=["session"])


class Login(BaseModel):
    """What logs a browser in."""

    token: Annotated[SecretStr, Field(description="A token, as made.", max_length=200)]


class Session(BaseModel):
    """Who asks, and what that allows."""

    name: str | None = Field(description="The token's name; null where nobody is logged in.")
    role: Role | None = Field(description="What it allows; null where nobody is logged in.")
    token_needed: bool = Field(description="Whether there is anything to see without a token.")


@router.get("/session")
def get_session(request: Request) -> Session:
    """Who I am. Anybody may ask."""
    return _shown(request.scope["identity"])


@router.post("/session", responses=documented(429))
def create_session(login: Login, request: Request, response: Response, given: Given) -> Session:
    """Log a browser in: the answer sets a cookie that its scripts cannot read."""
    client = request.client.host if request.client else "?"
    given.logins.take(client, "Logging in")
    found = given.tokens.who(login.token.get_secret_value())
    if found is None:
        raise TokenNeeded(
            "The token is not known, or was revoked.",
            remedy="Make one with: drumline token create",
        )
    response.set_cookie(
        COOKIE,
        given.tokens.open_session(found),
        max_age=SESSION_MS // 1000,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return _shown(found)


@router.delete("/session", status_code=204)
def delete_session(request: Request, response: Response, given: Given) -> None:
    """Log out."""
    secret = session_cookie(request.headers)
    if secret is not None:
        given.tokens.close_session(secret)
    response.delete_cookie(COOKIE, path="/")


def _shown(identity: Identity | None) -> Session:
    if identity is None:
        return Session(name=None, role=None, token_needed=True)
    return Session(name=identity.name, role=identity.role, token_needed=False)

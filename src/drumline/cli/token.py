"""`drumline token`: who may use the service from elsewhere."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.cli.options import Json, new_app

if TYPE_CHECKING:
    from drumline.server.access.tokens import Token, Tokens

app = new_app()


class RoleName(StrEnum):
    """What a token allows."""

    viewer = "viewer"
    operator = "operator"


@app.callback()
def _group() -> None:
    """Make, list and revoke tokens of the service."""


@app.command()
def create(
    role: Annotated[
        RoleName, typer.Option(help="viewer looks; operator does everything.", show_default=False)
    ],
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Whose it is: the owner of what it starts. By default your login."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a token. It is shown once, and kept only as a hash."""
    with _tokens() as tokens:
        from drumline.cli.output import print_json
        from drumline.server.access.identity import Role

        made, secret = tokens.create(name or getpass.getuser(), Role(role.value))
        if as_json:
            print_json({**_plain(made), "token": secret})
            return
        typer.echo(secret)
        typer.echo(f"{made.role} token {made.id} of {made.name}; it is not shown again.", err=True)


@app.command("list")
def list_tokens(as_json: Json = False) -> None:
    """List all tokens, without what lets anybody in."""
    with _tokens() as tokens:
        from drumline.cli.output import print_json

        found = [_plain(token) for token in tokens.list()]
    if as_json:
        print_json(found)
        return
    for one in found:
        revoked = "  revoked" if one["revoked"] else ""
        typer.echo(f"{one['id']}  {one['role']:<8}  {one['name']}{revoked}")


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="As `drumline token list` shows it.")],
) -> None:
    """End a token, and every login that was made with it."""
    with _tokens() as tokens:
        tokens.revoke(token)


@contextmanager
def _tokens() -> Iterator[Tokens]:
    from drumline.cli.service import read_settings, with_service

    with with_service("drumline token"):
        from drumline.server.access.tokens import Tokens
        from drumline.server.serving import ready_database

        database = ready_database(read_settings())
    try:
        yield Tokens(database)
    finally:
        database.close()


def _plain(token: Token) -> dict[str, str | bool]:
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role.value,
        "revoked": token.revoked_ms is not None,
    }

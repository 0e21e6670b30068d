"""`drumline serve`: the service, in one process."""

from __future__ import annotations

from typing import Annotated

import typer

from drumline.cli.options import new_app

app = new_app()

EPILOG = """[bold]Settings[/]  environment variables that begin with DRUMLINE_; see docs/service.md

[bold]Examples[/]

drumline serve

DRUMLINE_SIMULATE=8xH100 drumline serve --port 8000

drumline token create --role operator && drumline serve --host 0.0.0.0"""


@app.command(epilog=EPILOG, no_args_is_help=False)
def serve(
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on; others than this machine's "
            "own need a token. By default DRUMLINE_HOST, or 127.0.0.1.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65_535,
            help="Port to listen on; 0: the system chooses. By default DRUMLINE_PORT, or 8470.",
        ),
    ] = None,
) -> None:
    """Serve the API, and on one machine run the trainings of its queue, until stopped.

    Trainings that run go on when it stops.
    """
    from drumline.cli.service import read_settings, service_logging, with_service

    with with_service("drumline serve"):
        from drumline.server.serving import serve as run

        service_logging()
        run(read_settings(host=host, port=port), _ready)


def _ready(url: str) -> None:
    typer.echo(f"Drumline serves at {url}")
    typer.echo(f"  API      {url}/api/v1/openapi.json")
    typer.echo("  Ctrl-C   ends it; trainings go on")

"""The application: routes, and what stands before them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import APIRoute

from drumline import __version__
from drumline.config.service import ServiceSettings
from drumline.database import Database
from drumline.server.access.envelope import Envelope
from drumline.server.access.gate import Gate
from drumline.server.openapi import describe
from drumline.server.problems import EVERYWHERE, Unforeseen, add_handlers
from drumline.server.routes import ALL, metrics
from drumline.server.services import Services

API = "/api/v1"
DESCRIPTION = """Devices, trainings and their queue. Times are ISO 8601 in UTC; sizes are bytes
unless a name says otherwise; what a device does not report is null, never 0. Errors are problem
documents (RFC 9457)."""

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(
    settings: ServiceSettings,
    database: Database,
    services: Services | None = None,
    lifespan: Lifespan | None = None,
) -> FastAPI:
    """The application of one service.

    Args:
        settings: Of the service.
        database: Migrated.
        services: What the routes work with; made of the other two unless given.
        lifespan: What runs as long as the application does; nothing unless given.
    """
    given = services or Services(settings, database)
    app = FastAPI(
        title="Drumline",
        version=__version__,
        summary="Devices, trainings and their queue.",
        description=DESCRIPTION,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # both load scripts from elsewhere, which the headers forbid
        redoc_url=None,
        responses=EVERYWHERE,
        generate_unique_id_function=_operation_id,
        separate_input_output_schemas=False,
        lifespan=lifespan or _nothing_runs,
    )
    app.state.services = given
    for router in ALL:
        app.include_router(router, prefix=API)
    app.include_router(metrics.router)
    add_handlers(app)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    app.add_middleware(Gate, settings=settings, tokens=given.tokens)  # the last added is outermost
    app.add_middleware(Unforeseen)
    app.add_middleware(Envelope)
    return app


def _operation_id(route: APIRoute) -> str:
    """The name of the function, which is unique and reads well in a generated client."""
    return route.name


@asynccontextmanager
async def _nothing_runs(_app: FastAPI) -> AsyncIterator[None]:
    yield

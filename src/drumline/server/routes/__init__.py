"""Thin: each route reads a request, asks a service, and shapes the answer."""

from drumline.server.routes import gpus, live, queue, reports, session, system, tasks, trainings

ALL = (
    session.router,
    gpus.router,
    system.router,
    trainings.router,
    reports.router,
    queue.router,
    tasks.router,
    live.router,
)
"""All routers, in the order of the description."""

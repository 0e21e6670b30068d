"""Thin: each route reads a request, asks a service, and shapes the answer."""

from drumline.server.routes import live, session

ALL = (session.router, live.router)
"""All routers, in the order of the description."""

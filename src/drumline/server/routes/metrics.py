"""The page for Prometheus; its metrics are told in docs/metrics.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Response

from drumline.server.services import Given

router = APIRouter(tags=["metrics"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def get_prometheus_metrics(given: Given, accept: Annotated[str, Header()] = "") -> Response:
    """Devices, trainings and the service's own health, for Prometheus."""
    page, content_type = given.exposition.page(accept)
    return Response(page, headers={"Content-Type": content_type})

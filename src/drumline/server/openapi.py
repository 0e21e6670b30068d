"""The description of the API, complete enough to generate a client's types from."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from drumline.server.access.gate import COOKIE, SESSION_PATH
from drumline.server.problems import FieldProblem, Problem

_REFERENCE = "#/components/schemas/{model}"
_UNUSED = ("HTTPValidationError", "ValidationError")
SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token made with `drumline token create`.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "What a browser gets for a token at POST /api/v1/session.",
    },
}


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of `app`, made once."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    made = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
        separate_input_output_schemas=app.separate_input_output_schemas,
    )
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for model in (Problem, FieldProblem):
        schema = model.model_json_schema(ref_template=_REFERENCE, mode="serialization")
        schema.pop("$defs", None)
        schemas[model.__name__] = schema
    for name in _UNUSED:
        schemas.pop(name, None)
    components["securitySchemes"] = SECURITY_SCHEMES
    for path, operations in made["paths"].items():
        for operation in operations.values():
            anybody = path == SESSION_PATH
            operation["security"] = [{"bearer": []}, {"cookie": []}] if not anybody else [{}]
    app.openapi_schema = made
    return made

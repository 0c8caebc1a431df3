"""Adds a server's hot routes to its /openapi.json, next to the routes that FastAPI documents automatically."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import FastAPI

from rollyard.records.types import Json
from rollyard.services.http.request import Handler
from rollyard.services.http.response_failures import PROBLEM_TYPE


def document(app: FastAPI, handlers: Callable[[], Mapping[str, Handler]]) -> None:
    """Add the routes that `handlers` returns (path -> handler) to the OpenAPI schema of `app`."""
    fastapi_schema = app.openapi

    def openapi() -> Json:
        schema = fastapi_schema()
        for path, handler in handlers().items():
            schema["paths"].setdefault(path, {"post": _describe_route(handler)})
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_route(handler: Handler) -> Json:
    text = (handler.__doc__ or "").strip()
    body = {"content": {"application/json": {"schema": {"type": "object"}}}}
    problem = {"description": "A problem (RFC 9457)", "content": {PROBLEM_TYPE: {"schema": {"type": "object"}}}}
    return {
        "summary": text.partition("\n")[0],
        "description": text,
        "requestBody": {**body, "required": True},
        "responses": {"200": {"description": "OK", **body}, "default": problem},
    }

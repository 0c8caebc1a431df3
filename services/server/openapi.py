"""The OpenAPI document of a server. What a hot route takes and returns is declared as a Shape beside the route.

FastAPI describes its own routes. The types of shapes are analysed when the document is first requested, because this
takes longer than to make a server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from rollyard.records.types import PROBLEMS, Json, Problem

JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a hot route takes and returns. They are types that pydantic can describe."""

    body: Any = Json
    answer: Any = Json
    streams: bool = False
    """Whether it may answer with server-sent events instead."""
    errors: Any = Problem
    """Its error responses: problems, or JSON of this type."""


ANY = Shape()


@dataclass(frozen=True, slots=True)
class Documented:
    """A POST route of the document."""

    path: str
    text: str
    """Its description; the first line is the summary."""
    shape: Shape


def document(app: FastAPI, routes: Callable[[], Iterable[Documented]]) -> None:
    """Add routes that FastAPI does not know to the document of `app`."""
    fastapi_document = app.openapi

    def openapi() -> Json:
        if app.openapi_schema is None:
            found = fastapi_document()
            shared: Json = {}
            for route in routes():
                found["paths"].setdefault(route.path, {})["post"] = _operation(route, shared)
            components = found.setdefault("components", {})
            components["schemas"] = {**shared, **components.get("schemas", {})}
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _schema(of_type: Any, mode: JsonSchemaMode, shared: Json) -> Json:
    """Return the JSON schema of a type, and add the schemas to which it refers to `shared`."""
    schema = TypeAdapter(of_type).json_schema(ref_template="#/components/schemas/{model}", mode=mode)
    shared |= schema.pop("$defs", {})
    return schema


def _operation(route: Documented, shared: Json) -> Json:
    shape = route.shape
    answers: Json = {JSON_TYPE: {"schema": _schema(shape.answer, "serialization", shared)}}
    if shape.streams:
        answers["text/event-stream"] = {}
    if shape.errors is Problem:
        errors = PROBLEMS["default"]
    else:
        content = {JSON_TYPE: {"schema": _schema(shape.errors, "serialization", shared)}}
        errors = {"description": "An error", "content": content}
    body = {JSON_TYPE: {"schema": _schema(shape.body, "validation", shared)}}
    operation: Json = {
        "summary": route.text.partition("\n")[0],
        "description": route.text,
        "operationId": f"post{route.path}",
        "requestBody": {"content": body, "required": True},
        "responses": {"200": {"description": "OK", "content": answers}, "default": errors},
    }
    if names := re.findall(r"{(\w+)}", route.path):
        parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
        operation["parameters"] = parameters
    return operation

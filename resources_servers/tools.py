"""A method becomes a tool: its signature is the JSON schema, and a bad argument comes back as a sentence."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from services.types import WORLD_PATHS, Json

Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])

_MARK = "__rollyard_tool__"


class ToolMistake(ValueError):
    """The model called a tool wrongly. Its text is what the model reads; nothing was executed."""


def tool(method: Method) -> Method:
    """Mark an async method of an Environment as a tool that the model may call.

    Its name, docstring and signature are the tool's name, description and schema. What it returns is the tool's
    output, as JSON; of a string the model reads the text itself. Raising ToolMistake answers with words; any other
    exception is a failure of the world.
    """
    setattr(method, _MARK, True)
    return method


@dataclass(frozen=True)
class Tool:
    """One tool of an Environment class: how to read its arguments, how to describe it."""

    name: str
    description: str
    arguments: type[BaseModel]
    method: Callable[..., Awaitable[Any]]

    def parse(self, body: bytes) -> dict[str, Any]:
        """Keyword arguments from the JSON text the model wrote. Raises ToolMistake in words for the model."""
        try:
            read = self.arguments.model_validate_json(body or b"{}")
        except ValidationError as error:
            raise ToolMistake(self._explain(error)) from error
        return {name: getattr(read, name) for name in self.arguments.model_fields}

    def schema(self) -> Json:
        """The tool as a Responses function tool, ready for `responses_create_params.tools`."""
        parameters = self.arguments.model_json_schema()
        parameters.pop("title", None)
        for field in parameters.get("properties", {}).values():
            field.pop("title", None)
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": parameters,
            "strict": False,
        }

    def _explain(self, error: ValidationError) -> str:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the arguments"
        expected = ", ".join(
            f"{name}: {orjson.dumps(field).decode()}"
            for name, field in self.schema()["parameters"]["properties"].items()
        )
        wanted = f"Expected a JSON object with {expected or 'nothing'}."
        return f"Invalid call of {self.name}: {where}: {first['msg']}. {wanted}"


def tools_of(owner: type) -> dict[str, Tool]:
    """The tools of an Environment class, by name; inherited ones too.

    Raises TypeError for a sync method and for a name that is taken by the wire format.
    """
    found: dict[str, Tool] = {}
    for name, method in inspect.getmembers(owner, inspect.isfunction):
        if not getattr(method, _MARK, False):
            continue
        if not inspect.iscoroutinefunction(method):
            raise TypeError(f"tool {owner.__name__}.{name} must be an async method")
        if name in WORLD_PATHS:
            raise TypeError(f"tool {owner.__name__}.{name} needs another name: POST /{name} belongs to the wire format")
        found[name] = Tool(name, inspect.getdoc(method) or name, _arguments(name, method), method)
    return found


def _arguments(name: str, method: Callable[..., Any]) -> type[BaseModel]:
    """A model of the method's parameters. Arguments the tool does not know are the model's mistake."""
    hints = get_type_hints(method)
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    return create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)

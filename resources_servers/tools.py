"""A method becomes a tool: its signature is the JSON schema, and a bad argument comes back as a sentence."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from rollyard.resources_servers.argument_checks import check_values, exact
from rollyard.resources_servers.environment import BadTask, ToolResult
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.types import WORLD_PATHS, Json

Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])

log = logging.getLogger(__name__)

_MARK = "__rollyard_tool__"


class InvalidToolCall(ValueError):
    """The model called a tool wrongly. Its text is what the model reads; nothing was executed."""


def tool(method: Method) -> Method:
    """Mark an async method of an Environment as a tool that the model may call.

    Its name, docstring and signature are the tool's name, description and schema. What it returns is the tool's
    output, as JSON; of a string the model reads the text itself. `"done": true` in an object, or a ToolResult, ends
    the episode. Raising InvalidToolCall answers with words; any other exception is a failure of the environment.
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
        """Keyword arguments from the JSON text the model wrote. Raises InvalidToolCall in words for the model."""
        body = body or b"{}"
        try:
            # What pydantic lets through where the signature says nothing: NaN, half a surrogate pair, endless depth.
            check_values(orjson.loads(body))
            read = self.arguments.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            # Of a union, pydantic names the branch beside the place: our validators' names tell a model nothing.
            parts = [str(part) for part in first["loc"] if not str(part).startswith("function-")]
            where = ".".join(parts)[:200] or "the arguments"
            raise InvalidToolCall(self._explain(f"{where}: {first['msg'].removeprefix('Value error, ')}")) from error
        except ValueError as error:
            raise InvalidToolCall(self._explain(f"the arguments: {error}")) from error
        return {field.alias or name: getattr(read, name) for name, field in self.arguments.model_fields.items()}

    async def call(self, owner: object, arguments: dict[str, Any]) -> bytes:
        """What the tool answers to parsed arguments, as JSON. Raises InvalidToolCall in words for the model."""
        with as_invalid_tool_call(f"the call of {self.name}", sized=bool(arguments)):
            return _as_json(await self.method(owner, **arguments))

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

    def _explain(self, found: str) -> str:
        expected = ", ".join(
            f"{name}: {orjson.dumps(field).decode()}"
            for name, field in self.schema()["parameters"]["properties"].items()
        )
        wanted = f"Expected a JSON object with {expected or 'nothing'}."
        return f"Invalid call of {self.name}: {found}. {wanted}"


@contextlib.contextmanager
def as_invalid_tool_call(what: str, *, sized: bool = True) -> Iterator[None]:
    """Raises what can only be the model's fault as InvalidToolCall: none of it may void or repeat the rollout.

    That is a refusal of the row, which was good when the session was opened, and, where the model chose the size of
    what was worked on, running out of numbers, stack or memory.
    """
    try:
        yield
    except BadTask as error:
        raise InvalidToolCall(str(error)) from error
    except Failure as failure:
        if failure.kind not in (FailureKind.BAD_TASK, FailureKind.BAD_REQUEST):
            raise
        raise InvalidToolCall(failure.problem.detail) from failure
    except (OverflowError, RecursionError, MemoryError) as error:
        if not sized:
            raise
        log.warning("%s raised %r: the model reads that it is too large", what, error)
        raise InvalidToolCall(f"{what} is too large: {type(error).__name__}") from error


def tools_of(owner: type) -> dict[str, Tool]:
    """The tools of an Environment class, by name; inherited ones too.

    Raises TypeError for a sync method, a name that is taken by the wire format, and a parameter without a name in JSON.
    """
    found: dict[str, Tool] = {}
    for name, method in inspect.getmembers(owner, inspect.isfunction):
        if not getattr(method, _MARK, False):
            continue
        if not inspect.iscoroutinefunction(method):
            raise TypeError(f"tool {owner.__name__}.{name} must be an async method")
        if name.lower() in WORLD_PATHS:
            raise TypeError(f"tool {owner.__name__}.{name} needs another name: POST /{name} belongs to the wire format")
        found[name] = Tool(name, inspect.getdoc(method) or name, _arguments(name, method), method)
    return found


def _as_json(result: Any) -> bytes:
    if isinstance(result, ToolResult):
        result = result.json
    try:
        return orjson.dumps(result)
    except TypeError:  # integers beyond 64 bits, half a surrogate pair, deep nesting: the standard library writes them
        try:
            return json.dumps(result).encode()
        except ValueError as error:  # more digits than Python writes
            raise OverflowError(str(error)) from error


def _arguments(name: str, method: Callable[..., Any]) -> type[BaseModel]:
    """A model of the method's parameters. Arguments that the tool does not know are the model's mistake."""
    hints = get_type_hints(method, include_extras=True)
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(list(inspect.signature(method).parameters.values())[1:]):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            kind = parameter.kind.description
            raise TypeError(
                f"tool {name}: {parameter} is {kind}, which a JSON object cannot name; use plain parameters"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        # Under an alias any name works: as fields, `_x` would be private and `schema` a method of pydantic's.
        fields[f"p{number}"] = (exact(hints.get(parameter.name, Any)), Field(default, alias=parameter.name))
    return create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields)

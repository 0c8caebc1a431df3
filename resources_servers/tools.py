"""Turns methods into tools: the signature becomes the JSON schema, and invalid arguments become readable messages."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.fields import FieldInfo

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import RESERVED_PATHS, Json
from rollyard.resources_servers.checks import IsExact, check_values, exact, exact_object_test, storable, tool_result
from rollyard.resources_servers.environment import BadTask, Environment, S

Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])

log = logging.getLogger(__name__)

_MARK = "__rollyard_tool__"
_MEMBERS = frozenset({*dir(Environment), *Environment.__annotations__, "task", "settings"})
"""Names that tools cannot have, because they would override members of Environment. For example, a tool `seed` would be
called at the start of every episode.
"""


class InvalidToolCall(ValueError):
    """The model made an invalid tool call. The message is shown to the model; nothing was executed."""


def tool(method: Method) -> Method:
    """Mark an async method of an Environment as a tool that the model may call.

    Its name, docstring and signature become the tool's name, description and schema. The return value is the tool's
    output as JSON; a string is shown to the model as plain text. An object with `"done": true`, or a ToolResult, ends
    the episode. InvalidToolCall becomes an error message for the model; any other exception is a failure of the
    environment.
    """
    if isinstance(method, staticmethod | classmethod):
        raise TypeError(f"tool {method.__name__} must be a plain method, not a {type(method).__name__}")
    setattr(method, _MARK, True)
    return method


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    arguments: type[BaseModel]
    method: Callable[..., Awaitable[Any]]
    defaults: Json
    """Those of the optional parameters that are simple values."""
    is_exact: IsExact
    """Whether all arguments are what pydantic would make of them, so that it need not be asked: it takes longer."""

    def parse(self, body: bytes) -> dict[str, Any]:
        """Parse the model's JSON into keyword arguments. Raises InvalidToolCall with a message for the model."""
        body = body or b"{}"
        try:
            given = orjson.loads(body)
            if isinstance(given, dict) and self.is_exact(arguments := {**self.defaults, **given}):
                return arguments
            # Pydantic accepts NaN, lone surrogates and unlimited nesting for untyped parameters.
            check_values(given)
            parsed = self.arguments.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            # For a union, pydantic adds the branch to the location. A model cannot make sense of validator names.
            parts = [str(part) for part in first["loc"] if not str(part).startswith("function-")]
            location = ".".join(parts)[:200] or "invalid arguments"
            raise InvalidToolCall(self._explain(f"{location}: {first['msg'].removeprefix('Value error, ')}")) from error
        except ValueError as error:
            raise InvalidToolCall(self._explain(f"invalid arguments: {error}")) from error
        return {field.alias or name: getattr(parsed, name) for name, field in self.arguments.model_fields.items()}

    async def call(self, owner: object, arguments: dict[str, Any]) -> bytes:
        try:
            return _encoded(tool_result(await self.method(owner, **arguments)))
        except MODELS_ERRORS as error:
            raise as_invalid_call(error, f"the call to {self.name}", sized=bool(arguments)) from error

    def schema(self) -> Json:
        """Return the tool as a Responses function tool, ready for `responses_create_params.tools`."""
        parameters = self.arguments.model_json_schema()
        parameters.pop("title", None)
        for field in parameters.get("properties", {}).values():
            field.pop("title", None)
        about = {"type": "function", "name": self.name, "description": self.description}
        return {**about, "parameters": parameters, "strict": False}

    def _explain(self, found: str) -> str:
        fields = self.schema()["parameters"]["properties"].items()
        expected = ", ".join(f"{name}: {orjson.dumps(field).decode()}" for name, field in fields)
        return f"Invalid call to {self.name}: {found}. Expected a JSON object with {expected or 'nothing'}."


def _encoded(result: Any) -> bytes:
    try:
        return orjson.dumps(result)
    except TypeError:  # the standard library supports integers beyond 64 bits, lone surrogates and deep nesting
        try:
            return json.dumps(result).encode()
        except ValueError as error:  # the integer has more digits than Python converts to a string
            raise OverflowError(str(error)) from error


MODELS_ERRORS = (BadTask, Failure, OverflowError, RecursionError, MemoryError)
"""What the model's input may cause."""


def as_invalid_call(error: Exception, what: str, *, sized: bool = True) -> InvalidToolCall:
    """Return the message to the model for an error that only its input can have caused, which is no failure.

    Raises any other error again.

    These errors are BadTask and the Failure for it, because the row was valid when the session was opened. If the model
    determined the size of the input (`sized`), OverflowError, RecursionError and MemoryError are among them.
    """
    if isinstance(error, BadTask):
        return InvalidToolCall(str(error))
    if isinstance(error, Failure) and error.kind in (FailureKind.BAD_TASK, FailureKind.BAD_REQUEST):
        return InvalidToolCall(error.problem.detail)
    if isinstance(error, Failure) or not sized:
        raise error
    log.warning("%s raised %r; it is reported to the model as too large", what, error)
    return InvalidToolCall(f"{what} is too large: {type(error).__name__}")


def tools_of(owner: type) -> dict[str, Tool]:
    """Return the tools of an Environment class by name, including inherited ones.

    Raises TypeError for a synchronous method, a method without `self`, a name that the wire format or Environment uses,
    and a parameter that a JSON object cannot contain, such as `*args`, or that a JSON schema cannot describe.
    """
    found: dict[str, Tool] = {}
    for name, method in inspect.getmembers(owner, inspect.isfunction):
        if not getattr(method, _MARK, False):
            if any(getattr(base.__dict__.get(name), _MARK, False) for base in owner.__mro__):
                remedy = f"decorate it as well, or remove the tool with `{name} = None`"
                raise TypeError(f"{owner.__name__}.{name} replaces a tool but is not decorated with @tool: {remedy}")
            continue
        if not inspect.iscoroutinefunction(method):
            raise TypeError(f"tool {owner.__name__}.{name} must be an async method")
        if name.lower() in RESERVED_PATHS:
            reason = f"tool {owner.__name__}.{name} needs a different name: POST /{name} is part of the wire format"
            raise TypeError(reason)
        if name in _MEMBERS:
            raise TypeError(f"tool {owner.__name__}.{name} needs a different name: Environment defines {name}")
        try:
            found[name] = _tool(name, method)
            found[name].schema()
        except (PydanticUserError, NameError) as error:
            reason = str(error).partition("\n")[0]
            raise TypeError(f"tool {owner.__name__}.{name}: its signature has no JSON schema: {reason}") from error
    return found


def _tool(name: str, method: Callable[..., Awaitable[Any]]) -> Tool:
    hints = get_type_hints(method, include_extras=True)
    fields: dict[str, Any] = {}
    annotations: dict[str, Any] = {}
    defaults: Json = {}
    parameters = list(inspect.signature(method).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise TypeError(f"tool {name} has no `self`: its first parameter must be the episode")
    for number, parameter in enumerate(parameters[1:]):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            kind = parameter.kind.description
            reason = f"tool {name}: {parameter} is {kind}, which a JSON object cannot contain; use plain parameters"
            raise TypeError(reason)
        hint, description = hints.get(parameter.name, Any), None
        default = ... if parameter.default is parameter.empty else parameter.default
        if isinstance(default, FieldInfo):  # `count: int = Field(3, ge=1)`
            hint = Annotated[(hint, *default.metadata)] if default.metadata else hint
            description = default.description
            default = ... if default.is_required() else default.get_default(call_default_factory=True)
        # An alias can be any name. As a field name, `_x` would be private, and `schema` would shadow a pydantic method.
        stated: dict[str, Any] = {} if description is None else {"description": description}
        fields[f"p{number}"] = (exact(hint), Field(default, alias=parameter.name, **stated))
        annotations[parameter.name] = hint
        if isinstance(default, str | int | float | None):
            defaults[parameter.name] = default
    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    arguments = create_model(f"{name}_arguments", __config__=config, **fields)
    return Tool(name, inspect.getdoc(method) or name, arguments, method, defaults, exact_object_test(annotations))


class EpisodeTools(Environment[S]):
    """Base class of environments in which each episode has its own tools. `@tool` methods work beside them."""

    def episode_tools(self) -> list[Json]:
        """Return the episode's tools as Responses function tools. Called after `seed`; a row's own tools win."""
        raise NotImplementedError(f"{type(self).__name__} must define episode_tools")

    async def call_episode_tool(self, name: str, arguments: Json) -> Any:
        """Call a tool and return its result, like a `@tool` method. `name` and `arguments` are the model's words: raise
        InvalidToolCall with a message for the model if there is no such tool or the arguments are wrong.
        """
        raise NotImplementedError(f"{type(self).__name__} must define call_episode_tool")


async def call_episode_tool(episode: EpisodeTools[Any], name: str, body: bytes) -> bytes:
    """Call an episode's tool with the model's JSON. Raises InvalidToolCall with a message for the model."""
    try:
        arguments = orjson.loads(body or b"{}")
    except ValueError as error:
        raise InvalidToolCall(f"Invalid call to {name[:200]}: the arguments are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        raise InvalidToolCall(f"Invalid call to {name[:200]}: found a JSON {kind}. Expected a JSON object.")
    try:
        return orjson.dumps(storable(tool_result(await episode.call_episode_tool(name, arguments))))
    except MODELS_ERRORS as error:
        raise as_invalid_call(error, f"the call to {name[:200]}", sized=bool(arguments)) from error


def with_episode_tools(added: Json, row: Mapping[str, Any], tools: Sequence[Json]) -> Json:
    """Return the additions of `/seed_session` with the episode's tools, unless the row has its own."""
    params = row.get("responses_create_params")
    if not tools or (isinstance(params, Mapping) and params.get("tools") is not None):
        return added
    additions = added.get("additions", {})
    return {"additions": {**additions, "tools": [*additions.get("tools", ()), *tools]}}

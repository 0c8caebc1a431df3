"""Methods made of tool schemas, with the signature and the docstring that TRL and transformers read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from rollyard.records.errors import OperatorError
from rollyard.records.io.json_values import mapping
from rollyard.records.types import Json

CallTool = Callable[[Any, str, Json], str]
"""Called with the environment, the name of the tool and its arguments; returns the text for the model."""

_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}


def tool_method(schema: Mapping[str, Any], call: CallTool) -> Callable[..., str]:
    """Return a method for a function tool of the Responses API. Raises OperatorError if it cannot be one.

    Types that Python's annotations do not express, such as the bounds of a number, stay with the environment, which
    answers an invalid call with a message for the model.
    """
    name, parameters = str(schema.get("name")), mapping(schema.get("parameters"))
    properties, required = mapping(parameters.get("properties")), parameters.get("required") or []
    if not name.isidentifier() or name.startswith("_") or name in ("reset", "get_reward"):
        raise OperatorError(f"the tool {name!r} cannot be a method of a TRL environment: rename it")

    def method(self: Any, **arguments: Any) -> str:
        return call(self, name, arguments)

    kinds = {argument: annotation_of(mapping(found)) for argument, found in properties.items()}
    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    signature += [
        inspect.Parameter(argument, keyword, annotation=kind)
        if argument in required
        else inspect.Parameter(argument, keyword, annotation=kind, default=mapping(properties[argument]).get("default"))
        for argument, kind in kinds.items()
    ]
    method.__name__ = method.__qualname__ = name
    method.__annotations__ = {**kinds, "return": str}
    method.__signature__ = inspect.Signature(signature, return_annotation=str)  # type: ignore[attr-defined]
    method.__doc__ = _docstring(str(schema.get("description") or name), properties)
    return method


def annotation_of(schema: Mapping[str, Any]) -> Any:
    """Return the Python type of a JSON schema; Any if it has none."""
    kind = schema.get("type")
    if isinstance(values := schema.get("enum"), list) and values:
        return Literal[tuple(values)]
    if isinstance(kind, list) or "anyOf" in schema:
        options = [{"type": each} for each in kind] if isinstance(kind, list) else schema["anyOf"]
        found = [type(None) if each.get("type") == "null" else annotation_of(each) for each in options]
        union: Any = found[0]
        for each in found[1:]:
            union = union | each
        return union
    if kind == "array":
        return list[annotation_of(mapping(schema.get("items")))]  # type: ignore[misc]
    return _TYPES.get(str(kind), Any)


def _docstring(description: str, properties: Mapping[str, Any]) -> str:
    # One line per argument: transformers parses Google's format.
    lines = [f"{name}: {_line(mapping(found).get('description') or name)}" for name, found in properties.items()]
    arguments = "\n\nArgs:\n" + "\n".join(f"    {line}" for line in lines) if lines else ""
    return f"{_line(description)}{arguments}\n\nReturns:\n    The environment's answer."


def _line(text: Any) -> str:
    return " ".join(str(text).split())

"""Checks the return values of an environment's methods, so that a mistake raises a clear error and no observation is
lost silently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.json_values import is_number
from rollyard.records.rewards import EXPECTED, tidy
from rollyard.records.rollout_types import TurnSteps
from rollyard.records.types import MAX_REWARD, Json, Verdict, is_recorded
from rollyard.resources_servers.argument_checks import MAX_DEPTH, MAX_INTEGER
from rollyard.resources_servers.environment import BadTask, ToolResult, Turn
from rollyard.services.server.app import PLUGIN_EXITS, described

_RECORDED_STEPS = TurnSteps.__optional_keys__
_TRUTH = "True or False"


def seed_items(found: Any) -> list[Json]:
    """Return the items that `seed` returned. Raises TypeError unless they are a list of items or None."""
    if found and not (isinstance(found, list) and all(isinstance(item, dict) for item in found)):
        expected = 'a list of items, such as [{"role": "user", "content": "..."}]'
        raise TypeError(f"seed returned {found!r:.100}; expected {expected}")
    return found or []


def reset_result(found: Any) -> tuple[str, Json]:
    """Return the result of `reset`. Raises TypeError unless it consists of an observation and a dictionary."""
    if not (isinstance(found, tuple) and len(found) == 2 and _is_observation(found[0]) and isinstance(found[1], dict)):
        expected = "(observation, info), such as ('an observation', {})"
        raise TypeError(f"reset returned {found!r:.100}; expected {expected}")
    return found


def turn_result(found: Any) -> Turn:
    """Return the result of `turn`.

    Raises TypeError if it is not a Turn or an attribute has the wrong type. As for a Verdict, raises Failure
    malformed_answer if the reward is not a number.
    """
    if not isinstance(found, Turn):
        raise TypeError(f"turn returned {found!r:.100}; expected a Turn, such as Turn('an observation', reward=0.5)")
    members = (
        ("observation", _is_observation(found.observation), "a string"),
        ("terminated", isinstance(found.terminated, bool), _TRUTH),
        ("truncated", isinstance(found.truncated, bool), _TRUTH),
        ("info", isinstance(found.info, dict), "a dict"),
    )
    for name, valid, expected in members:
        if not valid:
            raise TypeError(f"turn returned a Turn with {_shown(name, getattr(found, name))}; expected {expected}")
    if not is_number(found.reward, MAX_REWARD):
        detail = f"turn returned a Turn with {_shown('reward', found.reward)}; expected a finite int or float"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail)
    return found


def tool_result(found: Any) -> Any:
    """Return a tool's result, converted if it is a ToolResult. Raises TypeError if its `done` is not a boolean."""
    if not isinstance(found, ToolResult):
        return found
    if not isinstance(found.done, bool):
        raise TypeError(f"the tool returned a ToolResult with {_shown('done', found.done)}; expected {_TRUTH}")
    return found.json


def verdict_json(found: Any, declared: Json | None = None, *, turn_based: bool = False) -> Json:
    """Return the verdict as JSON, without the standard fields that the environment did not set.

    `declared`: the `declaration` of the environment's verdict fields, which the row then contains.

    Raises TypeError if it is not a Verdict or contains a field that the rollout already has.
    """
    if not isinstance(found, Verdict):
        raise TypeError(f"verify returned {found!r:.100}; expected a Verdict, such as Verdict(reward=1.0)")
    for name in sorted(found.model_fields_set):
        if is_recorded(name) or (turn_based and name in _RECORDED_STEPS):
            raise TypeError(
                f"verify returned a Verdict with the field {name}, which the rollout already has: use a different name"
            )
    declared = declared or {}
    left_out = {name for name in ("success", "reward_components") if getattr(found, name) is None}
    try:
        return {**_tidied(found.model_dump(exclude=left_out)), **declared}
    except ValueError:  # nested too deeply for pydantic
        more = found.model_fields_set - Verdict.model_fields.keys()
        storable_verdict = found.model_copy(update={name: storable(getattr(found, name)) for name in more})
        return {**_tidied(storable_verdict.model_dump(exclude=left_out)), **declared}


def _tidied(verdict: Json) -> Json:
    """Write sums of decimal fractions as such, so that equal rewards are equal numbers."""
    verdict["reward"] = tidy(verdict["reward"])
    if components := verdict.get("reward_components"):
        verdict["reward_components"] = {name: tidy(value) for name, value in components.items()}
    return verdict


def _is_observation(found: Any) -> bool:
    """Return whether this is text, a list of content parts (such as images), or None, which adds no message."""
    return isinstance(found, str | None) or (isinstance(found, list) and all(isinstance(part, dict) for part in found))


def _shown(name: str, value: Any) -> str:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{name}={value!r:.100} ({module}{kind.__name__})"


def encoded(fields: Mapping[str, Any], source: str) -> bytes:
    """Return the fields as JSON. Raises TypeError with the name of a field that cannot be encoded.

    `source` is the start of the error message, such as `verify returned a Verdict`.
    """
    try:
        return orjson.dumps(fields)
    except TypeError:
        made = {name: storable(value) for name, value in fields.items()}
        for name, value in made.items():
            try:
                orjson.dumps(value)
            except TypeError as error:
                found = f"{name}={value!r:.100} ({type(value).__name__})"
                raise TypeError(f"{source} with {found}, which is not JSON: {error}") from error
        return orjson.dumps(made)


def storable(value: Any, depth: int = 0) -> Any:
    """Return the value without integers, strings and nesting that cannot be encoded as JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        return hex(value)  # in decimal, the conversion takes quadratic time and Python refuses it
    if isinstance(value, dict | list | tuple):
        if depth == MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels"
        if isinstance(value, dict):
            return {storable(name): storable(inner, depth + 1) for name, inner in value.items()}
        return [storable(inner, depth + 1) for inner in value]
    return value


T = TypeVar("T")


async def bad_task_as_failure(work: Awaitable[T]) -> T:
    """Await `work`. Raises Failure bad_task if it raises BadTask, and Failure server_error if it raises what would end
    the server, such as SystemExit.
    """
    try:
        return await work
    except BadTask as error:
        raise Failure(FailureKind.BAD_TASK, str(error)) from error
    except SystemExit as error:
        raise Failure(FailureKind.SERVER_ERROR, f"the environment called sys.exit({error.code!r})") from error
    except PLUGIN_EXITS as error:
        raise Failure(FailureKind.SERVER_ERROR, f"the environment raised {described(error)}") from error


async def checked_verdict(work: Awaitable[Verdict]) -> Verdict:
    """Await the verdict.

    Raises Failure like `bad_task_as_failure`, and Failure malformed_answer if the verdict's reward is invalid.
    """
    try:
        return await bad_task_as_failure(work)
    except ValidationError as error:
        wrong = [each["input"] for each in error.errors() if each["loc"] == ("reward",) and each["type"] != "missing"]
        if not wrong or error.title != Verdict.__name__:
            raise
        detail = f"/verify returned reward {wrong[0]!r:.100}; {EXPECTED}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail) from error

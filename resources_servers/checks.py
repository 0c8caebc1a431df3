"""Checks what an environment's methods return, and rejects arguments that no tool should have to handle.

A mistake of the environment raises a clear error, so that no observation is lost silently.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import annotated_types as marks
import orjson
from pydantic import AfterValidator, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rewards import EXPECTED, tidy
from rollyard.records.rollout_types import TurnSteps
from rollyard.records.types import MAX_REWARD, Json, Verdict, is_number, is_recorded
from rollyard.resources_servers.environment import BadTask, ToolResult, Turn
from rollyard.services.server.app import PLUGIN_EXITS, described

MAX_DEPTH = 64
"""Maximum nesting depth of arguments. Serializers and recursive functions fail at depths that are not much greater."""
MAX_INTEGER = 2**63 - 1
"""The largest integer that JSON parsers, databases and numpy all support."""


def check_values(value: Any, depth: int = 0) -> None:
    """Raises ValueError if the parsed JSON is nested deeper than MAX_DEPTH."""
    if isinstance(value, dict | list):
        if depth == MAX_DEPTH:
            raise ValueError(f"the JSON is nested deeper than {MAX_DEPTH} levels")
        for inner in value.values() if isinstance(value, dict) else value:
            check_values(inner, depth + 1)


def exact(annotation: Any) -> Any:
    """Return the annotation with its numbers made strict: they reject booleans, and integers that exceed 64 bits."""
    if annotation is int:
        return Annotated[int, BeforeValidator(no_bool), AfterValidator(_bounded)]
    if annotation is float:
        return Annotated[float, BeforeValidator(no_bool)]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        plain = any(isinstance(value, bool) for value in inner)
        return annotation if plain else Annotated[annotation, BeforeValidator(no_bool)]
    if origin in (Union, types.UnionType):
        return reduce(or_, (exact(part) for part in inner))
    if origin is Annotated and get_origin(inner[0]) in (Union, types.UnionType):
        union = distributed(get_args(inner[0]), annotation.__metadata__)
        if get_origin(union) is not Annotated:
            return exact(union)
        return Annotated[(exact(get_args(union)[0]), *union.__metadata__)]
    if origin is Annotated:
        made = exact(inner[0])
        base, *own = (get_args(made)[0], *made.__metadata__) if get_origin(made) is Annotated else (made,)
        # The author's constraints come first: pydantic emits `minimum` only for constraints directly after the type.
        return Annotated[(base, *annotation.__metadata__, *own)]
    if origin in (list, dict, tuple, set, frozenset):
        return origin[tuple(part if part is ... else exact(part) for part in inner)]
    return annotation


IsExact = Callable[[Any], bool]
_SIMPLE = frozenset({str, bool, int, float, type(None)})


def exact_test(annotation: Any) -> IsExact:
    """Return a test that is true only of JSON values that pydantic would return unchanged for `exact(annotation)`.

    Only simple types, and unions and lists of these, have such values.
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is list:
        of_item = exact_test(parts[0])
        return lambda value: type(value) is list and all(map(of_item, value))
    kinds = parts if origin in (Union, types.UnionType) else (annotation,)
    if all(isinstance(kind, type) and kind in _SIMPLE for kind in kinds):
        return lambda value: type(value) in kinds and _is_bounded(value)
    tests = [exact_test(kind) for kind in kinds] if kinds is parts else [_never]
    return _never if _never in tests else lambda value: any(test(value) for test in tests)


def exact_object_test(annotations: Mapping[str, Any]) -> IsExact:
    """The same for an object that has exactly these members."""
    tests = {name: exact_test(annotation) for name, annotation in annotations.items()}

    def is_exact(value: Any) -> bool:
        if value.keys() != tests.keys():
            return False
        for name, test in tests.items():  # noqa: SIM110 - a generator takes as long as all tests
            if not test(value[name]):
                return False
        return True

    return is_exact


def _is_bounded(value: Any) -> bool:
    return value <= MAX_INTEGER if type(value) is int else type(value) is not float or math.isfinite(value)


def _never(value: Any) -> bool:
    return False


def no_bool(value: Any) -> Any:
    """Raises ValueError for true and false, which Python treats as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"found {str(value).lower()}, expected a number")
    return value


def only_number(value: Any) -> Any:
    """Raises ValueError for booleans and for strings, which pydantic would parse as numbers."""
    if isinstance(value, str):
        raise ValueError(f"found {json.dumps(value[:40])}, expected a number")
    return no_bool(value)


def _bounded(value: int) -> int:
    if not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        raise ValueError("the integer exceeds 64 bits")
    return value


Integer = Annotated[int, BeforeValidator(only_number)]
"""A strict integer for a row or a tool: accepts `2` and `2.0`, rejects `true` and `"2"`."""


# Moves the constraints of a union to its members: `Annotated[int | None, Field(ge=1)]` bounds the integer.

_KEYS = frozenset({"gt", "ge", "lt", "le", "multiple_of", "allow_inf_nan", "min_length", "max_length", "pattern"})
_NUMBER_MARKS = (marks.Gt, marks.Ge, marks.Lt, marks.Le, marks.MultipleOf, marks.Interval)
_SIZE_MARKS = (marks.MinLen, marks.MaxLen, marks.Len)
_COMPARABLE = (int, float, Decimal, date, datetime, time, timedelta)
_SIZED = (str, bytes, list, dict, tuple, set, frozenset)


def distributed(members: Sequence[Any], metadata: Iterable[Any]) -> Any:
    """Return the union with each constraint moved to the members to which it applies. The rest stays on the union."""
    numbers, sizes, rest = _sorted(metadata)
    # A constraint that applies to no member stays where the author has put it.
    for found, fits in ((numbers, _is_number), (sizes, _is_sized)):
        rest += [] if any(map(fits, members)) else found
    marked = [(each, numbers if _is_number(each) else sizes if _is_sized(each) else []) for each in members]
    made = [Annotated[(member, *found)] if found else member for member, found in marked]
    union = reduce(or_, made)
    return Annotated[(union, *rest)] if rest else union


def _sorted(metadata: Iterable[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the constraints for numbers, those for strings and containers, and the rest, such as descriptions."""
    numbers: list[Any] = []
    sizes: list[Any] = []
    rest: list[Any] = []
    for mark in metadata:
        if isinstance(mark, FieldInfo):
            inner = _sorted(mark.metadata)
            described = copy(mark)
            described.metadata = inner[2]
            described._attributes_set = {key: value for key, value in mark._attributes_set.items() if key not in _KEYS}
            numbers += inner[0]
            sizes += inner[1]
            rest.append(described)
        elif isinstance(mark, _NUMBER_MARKS) or hasattr(mark, "allow_inf_nan"):
            numbers.append(mark)
        elif isinstance(mark, _SIZE_MARKS) or hasattr(mark, "pattern"):
            sizes.append(mark)
        else:
            rest.append(mark)
    return numbers, sizes, rest


def _plain(member: Any) -> Any:
    return get_args(member)[0] if get_origin(member) is Annotated else member


def _is_number(member: Any) -> bool:
    return _plain(member) in _COMPARABLE


def _is_sized(member: Any) -> bool:
    plain = _plain(member)
    return (get_origin(plain) or plain) in _SIZED


_RECORDED_STEPS = TurnSteps.__optional_keys__
_TRUTH = "True or False"


def seed_items(found: Any) -> list[Json]:
    if found and not (isinstance(found, list) and all(isinstance(item, dict) for item in found)):
        expected = 'a list of items, such as [{"role": "user", "content": "..."}]'
        raise TypeError(f"seed returned {found!r:.100}; expected {expected}")
    return found or []


def reset_result(found: Any) -> tuple[str, Json]:
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

"""Checks the row in the body of `/run`, so that a mistake in it is reported by name before an episode starts."""

from __future__ import annotations

from typing import Any

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.json_values import json_kind
from rollyard.records.types import Json

_PARAMS = "responses_create_params"


def create_params(row: Json) -> Json:
    """Return the row's parameters. Raises Failure bad_task if they are invalid.

    They may have no `input`, because the environment can add it.
    """
    if (params := row.get(_PARAMS)) is None:
        return {}
    if not isinstance(params, dict):
        raise _bad(_PARAMS, params, "an object whose `input` is a string or a list")
    given = params.get("input")
    if not isinstance(given, str | list | None):
        raise _bad(f"{_PARAMS}.input", given, "a string or a list of items")
    _check_objects(f"{_PARAMS}.input", given if isinstance(given, list) else None)
    if not isinstance(tools := params.get("tools"), list | None):
        raise _bad(f"{_PARAMS}.tools", tools, "a list of tools")
    _check_objects(f"{_PARAMS}.tools", tools)
    return params


def missing_input(row: Json) -> Failure:
    """Return the failure for a row to which the environment added no message that the model could respond to."""
    keys = ", ".join(sorted(row)[:10]) or "nothing"
    detail = (
        f"the row has no {_PARAMS}.input, and the environment does not add any (the row has {keys}); expected an "
        "`input` (a string or a list), or a user_template in the environment that builds it from the row's fields"
    )
    if row.keys() == {"idx"}:
        detail += ". A row with idx alone needs an environment that serves a dataset"
    return Failure(FailureKind.BAD_TASK, detail)


def _check_objects(field: str, items: list[Any] | None) -> None:
    for index, item in enumerate(items or ()):
        if not isinstance(item, dict):
            raise _bad(f"{field}[{index}]", item, "an object")


def _bad(field: str, found: Any, expected: str) -> Failure:
    return Failure(FailureKind.BAD_TASK, f"the row's {field} is {json_kind(found)}; expected {expected}")

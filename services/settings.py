"""Typed settings and options: how they are read, what is said when they are wrong, what is never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from services.errors import OperatorError, nearest

REDACTED = "***"
_SECRET = re.compile(r"(^|_)(key|token|secret|password|credentials?)$", re.IGNORECASE)

M = TypeVar("M", bound=BaseModel)


def is_secret(name: str) -> bool:
    """True for the names of settings whose value is never logged, printed or served."""
    return bool(_SECRET.search(name))


def parse_settings(model: type[M], raw: Mapping[str, Any], owner: str) -> M:
    """`raw` as `model`. Raises OperatorError: every unknown, missing or mistyped setting, with the nearest name."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        problems = [_worded(problem, model) for problem in error.errors(include_url=False)]
        raise OperatorError("; ".join(f"{owner}: {problem}" for problem in problems)) from None


def _worded(problem: Any, model: type[BaseModel]) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = ", ".join(sorted(model.model_fields))
        return f"unknown option {name!r}{nearest(name, model.model_fields)} (known: {known})"
    if problem["type"] == "missing":
        return f"{name!r} is missing"
    found = REDACTED if is_secret(name) else repr(problem.get("input"))
    return f"{name!r} is {found}, but: {problem['msg']}"

"""Typed settings and options: how they are read, what is said when they are wrong, what is never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from services.errors import OperatorError, nearest
from services.types import Json

REDACTED = "***"
_SECRET = re.compile(r"(^|_)(key|token|secret|password|credentials?)$", re.IGNORECASE)

M = TypeVar("M", bound=BaseModel)


class ServerSettings(BaseModel):
    """What every server's settings share; plug-ins subclass it. The nested YAML is parsed into it once, at the door."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    entrypoint: str = "app.py"
    """File of the server's folder that defines `server`."""
    host: str = "127.0.0.1"
    """Address to bind; anything beyond loopback needs a run token."""
    port: int = 0
    """0: the process takes a free port and reports it."""
    replicas: int = 1
    """Instances of this server; episodes go to the least busy one and stay there."""
    domain: str | None = None
    """NeMo Gym's catalogue entry; not used when serving."""
    description: str | None = None
    """As `domain`."""
    value: str | None = None
    """As `domain`."""
    verified: bool | None = None
    """As `domain`."""
    datasets: list[Json] = []
    """As `domain`."""


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

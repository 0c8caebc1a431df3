"""Typed settings and options: parsing, error messages, and redaction of secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from rollyard.services.errors import OperatorError, did_you_mean
from rollyard.services.server.setting_types import merged_unions, takes_list
from rollyard.services.types import Json

REDACTED = "***"
_SECRET = re.compile(r"(^|_)(key|token|secret|password|credentials?)$", re.IGNORECASE)

M = TypeVar("M", bound=BaseModel)


class ServerSettings(BaseModel):
    """Settings that all servers share. Plug-ins subclass it. The YAML is parsed into it once, at startup."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, coerce_numbers_to_str=True)

    NOT_IDENTITY: ClassVar[frozenset[str]] = frozenset(
        {"host", "port", "base_url", "replicas", "start_timeout_s"}
        | {"datasets", "domain", "description", "license", "value", "verified"}
    )
    """Names of settings that do not affect rollouts; a collection can be resumed with different values for them."""

    entrypoint: str = "app.py"
    """File in the server's folder that defines `server`."""
    host: str = "127.0.0.1"
    """Address to bind. Any address other than loopback requires a run token."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on. If 0, the process selects a free port and reports it."""
    replicas: int = Field(default=1, ge=1)
    """Number of instances. Each episode is assigned to the least busy instance and stays with it."""
    start_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds within which the server must become ready; default: the run's ready_timeout_s."""
    domain: str | None = None
    """Part of NeMo Gym's catalogue entry; not used for serving."""
    description: str | None = None
    """Part of NeMo Gym's catalogue entry; not used for serving."""
    value: str | None = None
    """Part of NeMo Gym's catalogue entry; not used for serving."""
    license: str | None = None
    """Part of NeMo Gym's catalogue entry; not used for serving."""
    verified: bool | None = None
    """Part of NeMo Gym's catalogue entry; not used for serving."""
    datasets: list[Json] = []
    """Part of NeMo Gym's catalogue entry; not used for serving."""

    @property
    def token_needed_for(self) -> str:
        """Why these settings require a run token, as a clause; empty if they do not. Subclasses override it."""
        return ""


def settings_argument(owner: type, base: type[M]) -> type[M] | None:
    """Return the settings class that `owner` passes as a type argument: `class Patient(Agent[PatientSettings])`.

    Returns None if there is no such argument, or if it is a type variable. Raises TypeError for an argument that
    should be a settings class but is not, as in `Agent[int]`.
    """
    found = None
    for generic in owner.__dict__.get("__orig_bases__", ()):
        _check_argument(owner, generic)
        for argument in get_args(generic):
            if found is None and isinstance(argument, type) and issubclass(argument, base):
                found = argument
    return found


def _check_argument(owner: type, generic: Any) -> None:
    for parameter, argument in zip(getattr(get_origin(generic), "__parameters__", ()), get_args(generic), strict=False):
        bound = getattr(parameter, "__bound__", None)
        if not (isinstance(bound, type) and issubclass(bound, ServerSettings)):
            continue
        if argument is Any or isinstance(argument, TypeVar):
            continue
        if not (isinstance(argument, type) and issubclass(argument, bound)):
            name = argument.__name__ if isinstance(argument, type) else repr(argument)
            base = f"{get_origin(generic).__name__}[{name}]"
            raise TypeError(f"{owner.__name__} extends {base}; expected a subclass of {bound.__name__} in the brackets")


def is_secret(name: str) -> bool:
    """Return True for the name of a setting whose value must never be logged, printed or served."""
    return bool(_SECRET.search(name)) and name != "dataset_key"  # NeMo-RL's name for a split


COMMAND_LINE = "command line"
"""The owner of settings whose names are shown as options: --num-repeats."""


def dashed(name: str) -> str:
    """Return an option as it is typed: `--num-repeats`."""
    return f"--{name.replace('_', '-')}"


def parse_settings(model: type[M], raw: Mapping[str, Any], owner: str) -> M:
    """Parse `raw` as `model`. A single value for a list setting becomes a list with one item.

    Raises OperatorError, which lists every unknown, missing or invalid setting and suggests the closest known name.
    """
    lists = {
        name for key, field in model.model_fields.items() if takes_list(field.annotation) for name in (key, field.alias)
    }
    values = {
        key: [value] if key in lists and isinstance(value, str | int | float) else value for key, value in raw.items()
    }
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = merged_unions(model, error.errors(include_url=False))
        is_typed = owner == COMMAND_LINE
        messages = dict.fromkeys(_message(problem, model, dashed if is_typed else repr) for problem in problems)
        raise OperatorError("; ".join(messages if is_typed else (f"{owner}: {one}" for one in messages))) from None


def redacted(value: Any, key: str = "") -> Any:
    """Return `value` with the values of all secret keys replaced by `***`."""
    if isinstance(value, SecretStr) or (is_secret(key) and value not in (None, "")):
        return REDACTED
    if isinstance(value, dict):
        return {name: redacted(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return value


_EXPECTED = {
    "path_type": "expected a path",
    "dict_type": "expected a mapping, {key: value}",
    "model_type": "expected a mapping, {key: value}",
    "model_attributes_type": "expected a mapping, {key: value}",
    "list_type": "expected a list, [a, b]",
    "tuple_type": "expected a list, [a, b]",
    "is_instance_of": "a value of this type is not allowed here",
}
"""Replacements for pydantic's messages that mention Python classes."""


def _message(problem: Any, model: type[BaseModel], shown: Callable[[str], str]) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(model, problem["loc"][:-1])
        known = ", ".join(sorted(fields))
        return f"unknown option {shown(name)}{did_you_mean(str(problem['loc'][-1]), fields)} (known: {known})"
    if problem["type"] == "missing":
        return f"{shown(name)} is missing"
    if not name:
        return str(problem["msg"]).removeprefix("Value error, ")
    if problem.get("input") is not None and any(is_secret(str(part)) for part in problem["loc"]):
        return f"{shown(name)} is {REDACTED}{_expectation(problem['msg'])}"
    found, message = redacted(problem.get("input")), problem["msg"].removeprefix("Value error, ")
    expectation = _expectation(_EXPECTED.get(problem["type"], message))
    return f"{shown(name)} is {'null' if found is None else repr(found)}{expectation}"


def _expectation(message: str) -> str:
    """Rewrite pydantic's message, which usually starts with `Input`, so that it can follow `'port' is 0`."""
    return f", but it {message.removeprefix('Input ')}" if message.startswith("Input ") else f": {message}"


def _fields_at(model: type[BaseModel], path: tuple[Any, ...]) -> Collection[str]:
    """Return the field names of the nested model at `path` in `model`."""
    for part in path:
        if isinstance(part, int):
            continue  # a list index: the list's annotation determines the model
        field = model.model_fields.get(str(part))
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        nested = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if nested is None:
            return ()
        model = nested
    return model.model_fields


def without_secrets(tree: Any) -> Any:
    """Return `tree` with all secrets replaced by `***`, even where a reference copied them to another setting."""
    return _replace_secrets(_secret_values(tree), redacted(tree))


def _secret_values(node: Any, key: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for name, item in node.items():
            yield from _secret_values(item, key if is_secret(key) else str(name))
    elif isinstance(node, list):
        for item in node:
            yield from _secret_values(item, key)
    elif isinstance(node, str) and node and is_secret(key):
        yield node


def _replace_secrets(secrets: Iterator[str], node: Any) -> Any:
    # Shorter values are placeholders such as `EMPTY`, the key for engines that require none.
    pattern = re.compile(
        "|".join(re.escape(text) for text in sorted(set(secrets), key=len, reverse=True) if len(text) >= 8)
    )

    def replace_in(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: replace_in(item) for name, item in value.items()}
        if isinstance(value, list):
            return [replace_in(item) for item in value]
        return pattern.sub(REDACTED, value) if isinstance(value, str) and pattern.pattern else value

    return replace_in(node)

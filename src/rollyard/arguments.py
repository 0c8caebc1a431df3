"""Checks the arguments of the Python API, so that an invalid one is reported before anything starts."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.errors import OperatorError, RunError
from rollyard.services.runtime.running_stack import RunningStack
from rollyard.services.server.settings import REDACTED, is_secret

Rule = tuple[Callable[[Any], bool], str]
"""A function that returns whether a value is valid, and a description of valid values."""

_PATH: Rule = (lambda value: isinstance(value, str | os.PathLike), "a path")
_TEXT: Rule = (lambda value: isinstance(value, str), "a string")
_FLAG: Rule = (lambda value: isinstance(value, bool), "True or False")
_COUNT: Rule = (lambda value: _is_integer(value) and value >= 1, "an integer of at least 1")
_SECONDS: Rule = (lambda value: _is_number(value) and value > 0, "more than 0 seconds")
_RULES: dict[str, Rule] = {
    **dict.fromkeys(("folder", "out", "path"), _PATH),
    **dict.fromkeys(("agent_name", "author", "head", "shard", "token", "where"), _TEXT),
    **dict.fromkeys(("accept_changed_code", "colocate", "num_repeats_add_seed", "overwrite", "resume"), _FLAG),
    **dict.fromkeys(("limit", "max_attempts", "num_repeats"), _COUNT),
    "num_samples_in_parallel": (
        lambda value: value == "auto" or _COUNT[0](value),
        'an integer of at least 1, or "auto"',
    ),
    **dict.fromkeys(("ready_timeout_s", "rollout_timeout_s"), _SECONDS),
    "config": (
        lambda value: _is_config(value) or (isinstance(value, Sequence) and all(map(_is_config, value))),
        "a YAML file, a mapping, or a list of these",
    ),
    "head_port": (lambda value: _is_integer(value) and 0 <= value <= 65535, "a port from 0 to 65535"),
    "max_failure_rate": (lambda value: _is_number(value) and 0 <= value <= 1, "a share from 0 to 1"),
    "on_rollout": (
        lambda value: callable(value) and not inspect.iscoroutinefunction(value),
        "a function that is not async",
    ),
    "overrides": (lambda value: all(isinstance(text, str) for text in value), "strings"),
    "print_line": (callable, "a function"),
    "responses_create_params": (
        lambda value: isinstance(value, Mapping) and _is_json(dict(value)),
        "a mapping of JSON values",
    ),
    "rows": (
        lambda value: _PATH[0](value) or (_is_iterable(value) and not isinstance(value, bytes | Mapping)),
        "a file, or rows",
    ),
    "server_roots": (
        lambda value: isinstance(value, Sequence) and not isinstance(value, str) and all(map(_PATH[0], value)),
        "a list of paths",
    ),
    "stack": (lambda value: isinstance(value, RunningStack), "a stack from rollyard.stack or rollyard.connect"),
}
_OPTIONAL = {
    *("agent_name", "author", "folder", "head", "limit", "on_rollout", "responses_create_params", "shard", "token"),
    "where",
}
"""Arguments that may be None."""


def check_arguments(values: Mapping[str, Any]) -> None:
    """Raise OperatorError for the first invalid argument. The message has its name and what was expected."""
    for name, value in values.items():
        is_valid, expected = _RULES[name]
        if not (is_valid(value) or (value is None and name in _OPTIONAL)):
            found = REDACTED if is_secret(name) else f"{value!r:.100}"
            shown = found if isinstance(value, int | float | str | None) else f"{found} ({type(value).__name__})"
            raise OperatorError(f"{name} is {shown}; expected {expected}")


_IN_PYTHON = {
    "--resume false": "resume=False",
    "--resume": "resume=True",
    "the command": "the call",
    "original command": "original call",
}
_NAMES = {"input_jsonl_fpath": "rows", "output_jsonl_fpath": "out", "config_paths": "config"}
_FLAGS = ("overwrite", "accept_changed_code", "colocate", "allow_other_users", "num_repeats_add_seed")
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?: (\.\.\.|\[[^\]\n]*\]|[\w./:{}-]*[\w}]))?")
_VALUED = (
    *("agent_name", "token", "shard", "limit", "num_repeats", "num_samples_in_parallel", "head", "server_roots"),
    *("rows", "out", "config", "ready_timeout_s", "head_port", "max_attempts", "rollout_timeout_s", "max_failure_rate"),
)


@contextmanager
def python_words() -> Iterator[None]:
    """Name the arguments of the Python API, not the options of the commands, in the messages of errors."""
    try:
        yield
    except (OperatorError, RunError) as error:
        error.args = (_in_python(str(error)), *error.args[1:])
        raise


def _in_python(text: str) -> str:
    for command, call in _IN_PYTHON.items():
        text = text.replace(command, call)
    return _OPTION.sub(_argument, text)


def _argument(found: re.Match[str]) -> str:
    name, value = found[1].replace("-", "_"), found[2]
    name = _NAMES.get(name, name)
    if name in _FLAGS:
        return f"{name}=True" + (f" {value}" if value else "")
    if name in _VALUED:
        return f"{name}={value}" if value else name
    return f'"{name}={value}"' if value else name


def _is_config(value: Any) -> bool:
    return isinstance(value, str | Path | Mapping)


def _is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable) or hasattr(type(value), "__getitem__")  # PyTorch datasets define only this


def _is_json(value: Any) -> bool:
    try:
        orjson.dumps(value)
        json.dumps(value, allow_nan=False)  # orjson writes NaN as null
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)

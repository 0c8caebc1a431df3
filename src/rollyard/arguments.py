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

PATH: Rule = (lambda value: isinstance(value, str | os.PathLike), "a path")
PATHS: Rule = (
    lambda value: isinstance(value, Sequence) and not isinstance(value, str) and all(map(PATH[0], value)),
    "a list of paths",
)
TEXT: Rule = (lambda value: isinstance(value, str), "a string")
TEXTS: Rule = (lambda value: all(isinstance(text, str) for text in value), "strings")
FLAG: Rule = (lambda value: isinstance(value, bool), "True or False")
PORT: Rule = (lambda value: _is_integer(value) and 0 <= value <= 65535, "a port from 0 to 65535")
COUNT: Rule = (lambda value: _is_integer(value) and value >= 1, "an integer of at least 1")
SECONDS: Rule = (lambda value: _is_number(value) and value > 0, "more than 0 seconds")
SHARE: Rule = (lambda value: _is_number(value) and 0 <= value <= 1, "a share from 0 to 1")
FUNCTION: Rule = (callable, "a function")
SYNC_FUNCTION: Rule = (
    lambda value: callable(value) and not inspect.iscoroutinefunction(value),
    "a function that is not async",
)
JSON_MAPPING: Rule = (lambda value: isinstance(value, Mapping) and _is_json(dict(value)), "a mapping of JSON values")
STACK: Rule = (lambda value: isinstance(value, RunningStack), "a stack from rollyard.stack or rollyard.connect")
CONFIG: Rule = (
    lambda value: _is_config(value) or (isinstance(value, Sequence) and all(map(_is_config, value))),
    "a YAML file, a mapping, or a list of these",
)
ROWS: Rule = (
    lambda value: PATH[0](value) or (_is_iterable(value) and not isinstance(value, bytes | Mapping)),
    "a file, or rows",
)


def check(name: str, value: Any, rule: Rule, *, optional: bool = False) -> None:
    """Raise OperatorError if the value is invalid. The message has the argument's name and what was expected."""
    is_valid, expected = rule
    if not (is_valid(value) or (optional and value is None)):
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
    *("agent_name", "token", "worker", "limit", "num_repeats", "num_samples_in_parallel", "head", "server_roots"),
    *(
        "rows",
        "out",
        "config",
        "ready_timeout_s",
        "head_port",
        "lease_s",
        "max_attempts",
        "rollout_timeout_s",
        "max_failure_rate",
    ),
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

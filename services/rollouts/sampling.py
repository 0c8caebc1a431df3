"""Checks sampling parameters before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollyard.records.errors import OperatorError

_BOUNDS = {"temperature": (0.0, None), "top_p": (0.0, 1.0), "max_output_tokens": (1, None), "top_logprobs": (0, 20)}

_WHOLE = frozenset(
    {
        *("max_output_tokens", "max_completion_tokens", "max_tokens", "min_tokens", "max_tool_calls", "top_logprobs"),
        *("n", "best_of", "seed", "top_k", "truncate_prompt_tokens", "prompt_logprobs"),
    }
)
"""Parameters that endpoints accept only as an integer."""


def with_whole_numbers(params: Mapping[str, Any], key: str = "responses_create_params") -> dict[str, Any]:
    """Return `params` with integers where endpoints expect them: 1e3 is 1000.0 in YAML and on a command line.

    Raises OperatorError for a value that is no integer.
    """
    whole = dict(params)
    for name in _WHOLE & params.keys():
        value = params[name]
        if isinstance(value, float) and value.is_integer():
            whole[name] = int(value)
        elif value is not None and type(value) is not int:
            raise OperatorError(f"{key}.{name} is {value!r}; expected an integer, such as 1000")
    return whole


def check_sampling(params: Mapping[str, Any], key: str = "responses_create_params") -> None:
    """Raise OperatorError for a number that no endpoint accepts. `key`: name of the setting that holds `params`."""
    for name, (least, most) in _BOUNDS.items():
        value = params.get(name)
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or value < least or (most is not None and value > most):
            limits = f"{least} or more" if most is None else f"{least} to {most}"
            raise OperatorError(f"{key}.{name} is {value!r}; expected a number, {limits}")

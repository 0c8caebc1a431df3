"""Checks sampling parameters before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollyard.services.errors import OperatorError

_BOUNDS = {"temperature": (0.0, None), "top_p": (0.0, 1.0), "max_output_tokens": (1, None), "top_logprobs": (0, 20)}


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

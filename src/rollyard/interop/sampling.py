"""A trainer's sampling parameters as parameters of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json

_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_output_tokens",
    "max_new_tokens": "max_output_tokens",
    "max_generate_length": "max_output_tokens",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "min_tokens": (None, 0),
    "min_new_tokens": (None, 0),
    "logit_bias": (None, {}),
    "stop": ([], (), "", None),
}
"""Parameters that change what is sampled, which the Responses API lacks, with the values that have no effect."""


def create_params(sampling: Mapping[str, Any]) -> Json:
    """Return the create parameters of each model call. Lengths are limits of one call, not of an episode.

    Parameters that do not change what is sampled, such as `logprobs`, are ignored. Raises OperatorError for those that
    do and cannot be sent: without them, the recorded log-probabilities would not be what the trainer expects.
    """
    for name, neutral in _NEUTRAL.items():
        if sampling.get(name) not in neutral:
            raise OperatorError(
                f"the trainer samples with {name}={sampling[name]!r}, which agents cannot send; set it to "
                f"{neutral[-1]!r} in the trainer"
            )
    given = {_NAMES[name]: value for name, value in sampling.items() if name in _NAMES and value is not None}
    return {name: given[name] for name in sorted(given)}

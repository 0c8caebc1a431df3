"""Checks the return values of an environment's methods, so that a mistake raises a clear error and no observation is
lost silently.
"""

from __future__ import annotations

from typing import Any

from rollyard.resources_servers.environment import Turn
from rollyard.services.types import Json, Verdict

_ROW_FIELDS = ("response", "responses_create_params")
"""The agent writes these; a verdict's field of the same name would replace them on the rollout."""


def seed_items(found: Any) -> list[Json]:
    """Return the items of `seed`. Raises TypeError for anything but a list of items or None."""
    if found and not (isinstance(found, list) and all(isinstance(item, dict) for item in found)):
        expected = 'a list of items, such as [{"role": "user", "content": "..."}]'
        raise TypeError(f"seed returned {found!r:.100}; expected {expected}")
    return found or []


def turn_result(found: Any) -> Turn:
    """Return the result of `turn`. Raises TypeError for anything but a Turn."""
    if not isinstance(found, Turn):
        raise TypeError(f"turn returned {found!r:.100}; expected a Turn, such as Turn('an observation', reward=0.5)")
    return found


def verdict_json(found: Any) -> Json:
    """Return the verdict as JSON, without the standard fields that the environment does not define.

    Raises TypeError for anything but a Verdict and for a field that the rollout already has.
    """
    if not isinstance(found, Verdict):
        raise TypeError(f"verify returned {found!r:.100}; expected a Verdict, such as Verdict(reward=1.0)")
    for name in _ROW_FIELDS:
        if name in found.model_fields_set:
            raise TypeError(f"verify returned a Verdict with the field {name}, which the rollout has: use another name")
    absent = {"success", "reward_components"} - found.model_fields_set
    return found.model_dump(exclude={name for name in absent if getattr(found, name) is None})

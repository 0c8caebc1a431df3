"""CollectionSettings: how a trainer's rollouts are collected, under the config's top-level key `rollout_collection`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json, Record
from rollyard.services.server.settings import parse_settings
from rollyard.training.endings import EndingRules

KEY = "rollout_collection"


class CollectionSettings(Record):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_attempts: int = Field(default=3, ge=1)
    """Maximum number of attempts per rollout, each in a new session."""
    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    """Timeout for one attempt, in seconds."""
    failed_rollouts: Literal["auto", "mask", "raise"] = "auto"
    """What becomes of a rollout that fails permanently. `mask`: a result with `mask_sample`, which has no loss in NeMo
    RL. `raise`: an exception. `auto`: `mask` in a process that has imported NeMo RL, otherwise `raise`, because other
    trainers do not read the mask and would train on its reward."""
    endings: EndingRules = EndingRules()
    """Which ways to end an episode are masked."""

    @classmethod
    def of_config(cls, tree: Json) -> CollectionSettings:
        """Return the settings in a merged config. Raises OperatorError if they are invalid."""
        given: Any = tree.get(KEY) or {}
        if not isinstance(given, dict):
            raise OperatorError(f"{KEY} is {given!r}; expected a mapping such as {{max_attempts: 3}}")
        return parse_settings(cls, given, KEY)

"""An instruction that a program can check: what it was told, and whether a text follows it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict

Relation = Literal["at least", "less than"]
_HOLDS: dict[Relation, Callable[[int, int], bool]] = {"at least": operator.ge, "less than": operator.lt}


class Instruction(BaseModel):
    """Base of all kinds; the fields are the row's `kwargs`, and keys of other kinds are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def followed(self, text: str) -> bool:
        """True when `text` does what the instruction says; an empty one never does."""
        return bool(text.strip()) and self._holds(text)

    def _holds(self, text: str) -> bool:
        raise NotImplementedError


def counted(found: int, relation: Relation, number: int) -> bool:
    """`found` is at least, or less than, `number`."""
    return _HOLDS[relation](found, number)

"""Defines the base class of verifiable instructions, which parses their arguments and checks whether a text follows
them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

Relation = Literal["at least", "less than"]
_HOLDS: dict[Relation, Callable[[int, int], bool]] = {"at least": operator.ge, "less than": operator.lt}


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"found {value}; expected an integer")
    return value


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError(f"found {text!r}; expected text that is not blank")
    return text


Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
"""A non-negative integer. 3.0 is accepted as 3, because tables that have a column for every argument turn integers into
floats."""
Phrase = Annotated[str, AfterValidator(_not_blank)]
"""Text to search for. It must not be blank, because every text would contain it."""


class Instruction(BaseModel):
    """Base class of all instruction types. Its fields are the row's `kwargs`; arguments of other instructions are
    ignored.

    The docstring of each subclass states when a response follows the instruction.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    def followed(self, text: str) -> bool:
        """Return whether `text` follows the instruction. Blank text never does."""
        return bool(text.strip()) and self._holds(text)

    def _holds(self, text: str) -> bool:
        raise NotImplementedError


def counted(found: int, relation: Relation, number: int) -> bool:
    """Return whether the count `found` is at least `number` or less than `number`, depending on `relation`."""
    return _HOLDS[relation](found, number)


def read(kind: str, instruction_type: type[Instruction], arguments: Any) -> Instruction:
    """Build an instruction from the row's arguments. Raises ValueError with a message that starts with `kind` if they
    are invalid.
    """
    if not isinstance(arguments, Mapping | None):
        raise ValueError(f"{kind}: kwargs are {shown(arguments)}; expected an object")
    try:
        # Tabular datasets contain the arguments of all instructions, with null for the unused ones.
        return instruction_type.model_validate(
            {key: value for key, value in (arguments or {}).items() if value is not None}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found = "" if first["type"] in ("missing", "value_error") else f", found {shown(first['input'])}"
        message = first["msg"].removeprefix("Value error, ") + found
        raise ValueError(": ".join([kind, *map(str, first["loc"]), message])) from error


def shown(value: Any) -> str:
    """Format a value from a row for an error message, in at most 80 characters."""
    return repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."

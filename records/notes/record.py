"""The records of X_notes.jsonl. Each line is one record, and no line is ever changed.

Fields that a newer version adds are ignored when a record is parsed; in the file, they stay.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, ConfigDict, Field, TypeAdapter, ValidationError

from rollyard.records.types import MAX_REWARD, Json, Record

MAX_TEXT = 20_000
"""Maximum number of characters of a note or a reason."""
_LINE = r"^[^\x00-\x1f\x7f\u2028\u2029]*\S[^\x00-\x1f\x7f\u2028\u2029]*$"

Name = Annotated[str, Field(max_length=80, pattern=_LINE)]
"""A label or an author: one line that is not blank."""
Verdict = Literal["correct", "wrong"] | Annotated[float, Field(strict=True, ge=-MAX_REWARD, le=MAX_REWARD)]
"""What a person or a program says about a rollout: correct, wrong, or the reward that it should have."""


class RolloutRef(Record):
    """The identity of a rollout by content, which does not depend on its place in the file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task_key: str = Field(max_length=80)
    """`_ng_task_key`, or `prompt:` and a hash of the prompt if the row has none."""
    response_key: str = Field(max_length=80)
    """A hash of what the model and the tools wrote. A rollout that was collected again has another one."""
    repeat: int
    """`_ng_rollout_index`, which distinguishes equal responses to one task."""
    task: int
    """`_ng_task_index`, which distinguishes duplicate tasks."""


class NoteRecord(Record):
    """What all records have."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str = Field(min_length=1, max_length=80)
    time: AwareDatetime
    """When the record was made, in UTC. The order of records is that of the file, because clocks differ."""
    author: Name
    rollout: RolloutRef


class TextNote(NoteRecord):
    kind: Literal["note"] = "note"
    text: str = Field(min_length=1, max_length=MAX_TEXT)


class LabelAdded(NoteRecord):
    kind: Literal["label"] = "label"
    label: Name


class LabelRemoved(NoteRecord):
    """The author no longer gives the rollout this label. Labels of other authors stay."""

    kind: Literal["unlabel"] = "unlabel"
    label: Name


class Override(NoteRecord):
    """The author's verdict on the rollout, which replaces the author's earlier one."""

    kind: Literal["override"] = "override"
    verdict: Verdict
    reason: str = Field(default="", max_length=MAX_TEXT)


class Removal(NoteRecord):
    """An earlier record no longer applies. If that is a removal, what it removed applies again."""

    kind: Literal["removal"] = "removal"
    removes: str = Field(min_length=1, max_length=80)
    """The id of the earlier record."""


AnyRecord = TextNote | LabelAdded | LabelRemoved | Override | Removal
_PARSER: TypeAdapter[AnyRecord] = TypeAdapter(Annotated[AnyRecord, Field(discriminator="kind")])


def parse_record(value: Mapping[str, Any]) -> AnyRecord:
    """Parse the JSON object of a line. Raises ValueError with what is wrong."""
    try:
        return _PARSER.validate_python(value)
    except ValidationError as error:
        raise ValueError(what_is_wrong(error)) from error


def what_is_wrong(error: ValidationError) -> str:
    """Return what is wrong with a record, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    if "verdict" in first["loc"] and first["type"] != "missing":
        return f"verdict: expected correct, wrong, or a number of at most {MAX_REWARD:g}"
    place = ".".join(str(part) for part in first["loc"])
    is_name = first["type"] == "string_pattern_mismatch"
    problem = "expected one line that is not blank" if is_name else first["msg"]
    return f"{place}: {problem}" if place else problem


def new_record(kind: str, author: str, rollout: RolloutRef, **fields: Any) -> AnyRecord:
    """Make a record with a new id and the current time. Raises ValueError if a field is invalid."""
    common: Json = {"id": secrets.token_hex(8), "time": datetime.now(UTC), "author": author, "rollout": rollout}
    return parse_record({"kind": kind, **common, **fields})

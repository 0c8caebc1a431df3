"""The records of X_notes.jsonl, whose rows they are about, and what currently applies to each rollout.

Each line of the file is one record, and no line is ever changed.
"""

from __future__ import annotations

import os
import pwd
import secrets
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AwareDatetime, ConfigDict, Field, TypeAdapter, ValidationError

from rollyard.records.expression_parser import FieldPath
from rollyard.records.expressions import Column, column_of
from rollyard.records.rollout_keys import digest, prompt_key
from rollyard.records.types import MAX_REWARD, TOKEN_FIELDS, Json, Record, items, mapping, whole_number

MAX_TEXT = 20_000
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


AnyRecord = TextNote | LabelAdded | LabelRemoved | Override | Removal
_PARSER: TypeAdapter[AnyRecord] = TypeAdapter(Annotated[AnyRecord, Field(discriminator="kind")])


def parse_record(value: Mapping[str, Any]) -> AnyRecord:
    """Parse the JSON object of a line. Raises ValueError with what is wrong."""
    try:
        return _PARSER.validate_python(value)
    except ValidationError as error:
        raise ValueError(what_is_wrong(error)) from error


def what_is_wrong(error: ValidationError) -> str:
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


def user_name() -> str:
    """Return the name of the user who runs this process, or `user 1000` if the host does not know the id."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


K = TypeVar("K", bound=Hashable)


@dataclass
class RolloutNotes:
    """What currently applies to one rollout, in the order of the file."""

    added: dict[tuple[str, str], LabelAdded] = field(default_factory=dict)
    """By label and author: each author has labels of their own."""
    judged: dict[str, Override] = field(default_factory=dict)
    texts: list[TextNote] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(label for label, _ in self.added))

    @property
    def override(self) -> Override | None:
        return next(reversed(self.judged.values()), None)

    @property
    def annotators(self) -> list[str]:
        """Everyone whose label, verdict or note applies."""
        labelled = [author for _, author in self.added]
        return list(dict.fromkeys([*labelled, *self.judged, *(note.author for note in self.texts)]))

    def of_author(self, author: str) -> RolloutNotes:
        return RolloutNotes(
            {key: record for key, record in self.added.items() if key[1] == author},
            {name: record for name, record in self.judged.items() if name == author},
            [note for note in self.texts if note.author == author],
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.judged or self.texts)


def fold(records: Iterable[AnyRecord], place_of: Callable[[RolloutRef], K | None]) -> dict[K, RolloutNotes]:
    """Return what applies to each place. Records whose rollout has no place (None) are left out.

    A record that a later one removes does not count, and the earlier one that it replaced applies again.
    """
    all_records = list(records)
    removed = removed_ids(all_records)
    found: dict[K, RolloutNotes] = {}
    for record in all_records:
        if record.id in removed or isinstance(record, Removal):
            continue
        place = place_of(record.rollout)
        if place is None:
            continue
        notes = found.setdefault(place, RolloutNotes())
        match record:
            case TextNote():
                notes.texts.append(record)
            case LabelAdded():
                notes.added.setdefault((record.label, record.author), record)
            case LabelRemoved():
                notes.added.pop((record.label, record.author), None)
            case Override():
                notes.judged.pop(record.author, None)  # so that the last verdict is also the last entry
                notes.judged[record.author] = record
    return {place: notes for place, notes in found.items() if notes}


def removed_ids(records: Iterable[AnyRecord]) -> set[str]:
    """Return the ids of records that do not apply, because a removal that applies names them."""
    removed: set[str] = set()
    for record in reversed([record for record in records if isinstance(record, Removal)]):
        if record.id not in removed:
            removed.add(record.removes)
    return removed


NOTE_FIELDS = ("labels", "override", "annotators", "note_texts", "labels_by", "overrides")
"""`labels`: a list of the labels of all authors. `override`: the last verdict, "correct", "wrong" or a reward.
`annotators`: a list of the authors. `note_texts`: a list of the notes. `labels_by.ann`, `overrides.ann`: labels and
verdict of one author. Rollouts without any have no value (null)."""


def is_note_field(field: FieldPath) -> bool:
    return not field.raw and field.parts[0] in NOTE_FIELDS


def note_values(notes: RolloutNotes) -> Json:
    """Return the values of NOTE_FIELDS, without those that are missing."""
    by_author: dict[str, list[str]] = {}
    for label, author in notes.added:
        by_author.setdefault(author, []).append(label)
    found: Json = {
        "labels": notes.labels,
        "override": None if notes.override is None else notes.override.verdict,
        "annotators": notes.annotators,
        "note_texts": [note.text for note in notes.texts],
        "labels_by": by_author,
        "overrides": {author: one.verdict for author, one in notes.judged.items()},
    }
    return {name: value for name, value in found.items() if value is not None and value not in ([], {})}


def note_columns(
    fields: Sequence[FieldPath], notes: Mapping[int, RolloutNotes], places: Sequence[int]
) -> dict[FieldPath, Column]:
    """Return a column for each of the fields. `notes`: by place; `places`: those of the column's rollouts."""
    values = [note_values(notes[place]) if place in notes else {} for place in places]
    return {field: column_of([field.value(one) for one in values]) for field in fields}


def placed(refs: Iterable[RolloutRef], rows: Iterable[tuple[int, RolloutRef]]) -> dict[RolloutRef, int]:
    """Return the place of each rollout among `rows`, which are places with the identities of their rows.

    A rollout is the row with the same task key, response key and repeat; among duplicate tasks, that with the same task
    index. If no row has its repeat, because a file was merged or its repeats were numbered again, it is a row with the
    same task key and response key that is not another rollout of `refs`. A rollout without such a row is left out: it
    is no longer in the file, and a row with another response never takes its place.
    """
    by_content: defaultdict[tuple[str, str], list[tuple[int, RolloutRef]]] = defaultdict(list)
    for place, row in rows:
        by_content[row.task_key, row.response_key].append((place, row))
    found: dict[RolloutRef, int] = {}
    others: list[RolloutRef] = []
    for ref in dict.fromkeys(refs):
        same = [(place, row) for place, row in by_content.get(_content(ref), ()) if row.repeat == ref.repeat]
        if same:
            found[ref] = next((place for place, row in same if row.task == ref.task), same[0][0])
        else:
            others.append(ref)
    taken = set(found.values())
    for ref in others:
        candidates = [place for place, _ in by_content.get(_content(ref), ())]
        if candidates:
            found[ref] = next((place for place in candidates if place not in taken), candidates[0])
            taken.add(found[ref])
    return found


def _content(ref: RolloutRef) -> tuple[str, str]:
    return ref.task_key, ref.response_key


PROMPT_PREFIX = "prompt:"
_INCIDENTAL = frozenset({"id", "call_id", "status", "annotations", "logprobs", *TOKEN_FIELDS})
"""Keys of an output item, or of a part of its content, that say nothing about what was written. Programs remove or
renew them, as when token ids are stripped from a file."""


def ref_of(row: Mapping[str, Any], task: int | None = None, repeat: int | None = None) -> RolloutRef:
    """Return the identity of a row. `task` and `repeat`: its indexes; default: those in the row, 0 if it has none."""
    if task is None:
        task = whole_number(row.get("_ng_task_index"), least=0) or 0
    if repeat is None:
        repeat = whole_number(row.get("_ng_rollout_index"), least=0) or 0
    return RolloutRef(task_key=task_key_of(row), response_key=response_key(row), repeat=repeat, task=task)


def task_key_of(row: Mapping[str, Any]) -> str:
    """Return `_ng_task_key`, or a hash of the prompt for rows of other programs."""
    key = row.get("_ng_task_key")
    if isinstance(key, str) and len(key) == 16:
        return key
    return prompt_text(prompt_key(row))


def prompt_text(key: int) -> str:
    """Return the task key that stands for a `prompt_key`."""
    return f"{PROMPT_PREFIX}{key & (1 << 64) - 1:016x}"


def response_key(row: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits from the SHA-256 hash of the output: messages, reasoning, calls and results.

    Ids, token ids and log-probabilities do not count, nor do rewards: a row that is scored again is the same rollout.
    """
    output = items(mapping(row.get("response")).get("output"))
    try:
        return digest([_essence(item) for item in output]).hex()
    except RecursionError:  # a row of another program, nested deeper than Rollyard allows
        return ""


def _essence(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    kept = {key: value for key, value in item.items() if key not in _INCIDENTAL}
    for key in ("content", "summary"):
        if isinstance(kept.get(key), list):
            kept[key] = [_essence(part) for part in kept[key]]
    return kept

"""The fields of one file: the columns that the list shows beside each rollout, and the keys that rows have.

`FileFields` answers for a file. A column is the prompt, the fields that explain the reward, or any other field.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from rollyard.analysis.metrics.columns import COMPUTED, Columns, Ints, computed_column
from rollyard.analysis.metrics.selection import stored_fields
from rollyard.analysis.viewer.api_records import ColumnHead, VerdictValue
from rollyard.analysis.viewer.caches import Identity, PacedCache
from rollyard.analysis.viewer.field_values import FieldColumns
from rollyard.analysis.viewer.rollout_list import SORTS
from rollyard.analysis.viewer.run_notes import RunNotes
from rollyard.analysis.viewer.untrusted_values import sanitize
from rollyard.records.expression_parser import ExpressionError, FieldPath, parse, parse_field
from rollyard.records.expressions import LARGEST_EXACT
from rollyard.records.jsonl import lenient, line_at
from rollyard.records.note_records import NOTE_FIELDS, is_note_field, note_columns
from rollyard.records.rewards import OLD_VERDICT, ROLES, VERDICT_FIELDS, fields_of
from rollyard.records.tokens import DERIVED, reader_of
from rollyard.records.types import TOKEN_FIELDS, Json, Record, items, mapping

MAX_PAGE_BYTES = 48 << 20
"""Maximum size of the rows that are read for one page. The values of further rows are left out."""
_SAMPLE = 200
_LINE = ("outcome", *SORTS)
"""Columns that every line of the list has."""
_MAX_PAGES = 8
"""Number of pages whose values are kept, because a page is requested again while the file is searched."""
_MAX_ANSWERS = 16
Cells = tuple[tuple[Any, ...], ...]
Heads = tuple[ColumnHead, ...]
PROMPT, VERDICT = "(prompt)", "(verdict)"
DEFAULT = f"{PROMPT},{VERDICT}"
MAX_COLUMNS = 24
_MAX_BYTES = 300
"""Maximum size of a value of the list, in characters or bytes of JSON."""
_MAX_SHOWN = 20_000
"""The same on the page of a rollout."""
_MAX_BITS = 1000
"""Maximum size of an integer that is shown with all digits."""
_NAME = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')
_PARTS_OF_REWARD = 8
"""Maximum number of parts of the reward that get a column."""
_MAX_PARTS = 100
"""The same on the page of a rollout."""
MAX_KEYS = 400
MAX_NAME = 499
"""Longer names cannot be asked for: a sort key has at most 500 characters, one of which may be the sign."""
_MAX_DEPTH = 4
_MAX_EXAMPLE = 60
_LEFT_OUT = {
    ("responses_create_params", "input"),
    ("responses_create_params", "instructions"),
    ("responses_create_params", "tools"),
    ("response", "output"),
    ("response", "instructions"),
    ("response", "tools"),
    (VERDICT_FIELDS,),
    *((name,) for name in (*TOKEN_FIELDS, *COMPUTED, *DERIVED, *NOTE_FIELDS)),
}
"""The conversation, and keys with the name of a computed field or of a field of notes."""
_KINDS: dict[type, Kind] = {
    bool: "true or false",
    int: "number",
    float: "number",
    str: "text",
    list: "list",
    dict: "object",
}
Kind = Literal["number", "text", "true or false", "list", "object", "mixed"]


class KeyInfo(Record):
    path: str
    kind: Kind
    share: float
    example: str


class FieldKeys(Record):
    """GET /api/runs/{run}/keys: the fields of the file's rows, found in a sample of them."""

    computed: list[str]
    """Fields that the viewer computes for every rollout, and those that it can compute from the sampled rows."""
    keys: list[KeyInfo]
    sampled: int


class ExpressionCheck(Record):
    """GET /api/runs/{run}/expression?text=: whether a text is an expression over the file's rows."""

    error: str
    hint: str = ""
    """A field that no sampled row has, and similar ones. The expression is valid: a rare field may be in other rows."""


class FileFields:
    def __init__(self, path: Path, notes: RunNotes) -> None:
        self._path = path
        self._notes = notes
        self.values = FieldColumns(path, notes)
        self._pages = PacedCache[tuple[Heads, Cells]](_MAX_PAGES)
        self.answers = PacedCache[Any](_MAX_ANSWERS)
        self._keys: tuple[Ints, FieldKeys] | None = None

    def cells(self, columns: Columns, offsets: Sequence[int], places: Sequence[int], names: str) -> tuple[Heads, Cells]:
        """Return the columns, and the values of each of the rows that begin at `offsets` (negative: no row).

        `places`: the index of each row in `columns`, negative for unmeasured ones. Raises ExpressionError if a name is
        not a field, and OSError if the file cannot be read.
        """
        key = names, tuple(offsets), Identity(columns)
        return self._pages.get(
            key, self._notes.current().version, lambda: self._cells(columns, offsets, places, names), final=True
        )

    def _cells(
        self, columns: Columns, offsets: Sequence[int], places: Sequence[int], names: str
    ) -> tuple[Heads, Cells]:
        wanted = requested(names)
        needs_rows = not set(wanted) <= set(_LINE)
        rows = list(self._rows(offsets)) if needs_rows else [None] * len(offsets)
        heads = heads_of(wanted, rows, _LINE)
        readers = [self._reader(head, columns, places, offsets) for head in heads]
        values = tuple(tuple(read(at, row) for read in readers) for at, row in enumerate(rows))
        return tuple(heads), values

    def keys(self, columns: Columns) -> FieldKeys:
        cached = self._keys
        if cached is not None and cached[0] is columns.offset:
            return cached[1]
        offsets = np.sort(columns.offset)
        places = np.unique(np.linspace(0, max(len(offsets) - 1, 0), _SAMPLE).astype(np.intp))[: len(offsets)]
        found = known_keys([row for row in map(sanitize, self._rows(offsets[places].tolist())) if row is not None])
        self._keys = columns.offset, found
        return found

    def check(self, columns: Columns, text: str) -> ExpressionCheck:
        """Return what is wrong with an expression, or which of its fields no sampled row has."""
        try:
            fields = stored_fields(parse(text))
        except ExpressionError as error:
            return ExpressionCheck(error=str(error))
        keys = self.keys(columns)
        names = [parse_field(key.path) for key in keys.keys]
        known = {*map(str, names), *COMPUTED, *DERIVED, *NOTE_FIELDS}
        for field in fields:
            if field.column in DERIVED:
                if field.column in keys.computed:
                    continue
                return ExpressionCheck(error="", hint=f"no sampled row has the tokens that {field} is computed from")
            parts = field.parts
            if not any(name.parts[: len(parts)] == parts or parts[: len(name.parts)] == name.parts for name in names):
                close = difflib.get_close_matches(str(field), known, 2)
                similar = f"; similar: {', '.join(close)}" if close else ""
                return ExpressionCheck(error="", hint=f"no sampled row has the field {field}{similar}")
        return ExpressionCheck(error="")

    def _reader(
        self, head: ColumnHead, columns: Columns, places: Sequence[int], offsets: Sequence[int]
    ) -> Callable[[int, Json | None], Any]:
        """Return a function that returns a column's value in one of the rows."""
        if head.path == PROMPT:
            return lambda at, row: None if row is None else shortened(prompt_of(row))
        field = parse_field(head.path)
        if is_note_field(field):
            noted = note_columns([field], self._notes.current().by_offset, offsets)[field].objects()
            return lambda at, row: shortened(noted[at])
        if head.path in COMPUTED and len(columns):
            values = computed_column(columns, head.path).take(np.maximum(np.array(places, np.intp), 0)).objects()
            return lambda at, row: values[at] if places[at] >= 0 else None
        read = reader_of(field)
        return lambda at, row: None if row is None else shortened(read(row))

    def forget(self) -> None:
        """Forget the answers, because they belong to an older list of rollouts, which they would keep in memory."""
        for kept in (self._pages, self.answers):
            kept.clear()
        self.values.forget()

    def stop(self) -> None:
        self.values.stop()
        self.forget()
        self._keys = None

    def _rows(self, offsets: Iterable[int]) -> Iterable[Json | None]:
        """Yield the rows as they are in the file, because sanitizing entire rows takes longer than parsing them."""
        budget = MAX_PAGE_BYTES
        for offset in offsets:
            if offset < 0 or budget <= 0:
                yield None
                continue
            line = line_at(self._path, offset)
            budget -= len(line)
            yield _as_it_is(line)


def _as_it_is(line: bytes) -> Json | None:
    try:
        row = lenient(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def requested(text: str) -> list[str]:
    """Return the names in a list of columns. Commas in quoted keys, as in `row["a,b"]`, separate nothing."""
    found = [name.strip() for name in _NAME.findall(text or DEFAULT)]
    return list(dict.fromkeys(filter(None, found)))[:MAX_COLUMNS]


def verdict_of(row: Mapping[str, Any], parts: int = _MAX_PARTS) -> list[VerdictValue]:
    """Return the fields that explain the row's reward, in the order of their roles. Objects of parts are
    divided; of each, the first `parts` are returned.
    """
    found: list[VerdictValue] = []
    for field in fields_of(row):
        value = field.value(row)
        if field.role == "component" and isinstance(value, Mapping):
            for key, part in list(value.items())[:parts]:
                name = sanitize(str(key))
                path = FieldPath((*field.keys, name))
                found.append(VerdictValue(path=str(path), label=name, role="component", value=shortened(part)))
        elif value is not None or field.path in row:
            path = FieldPath(field.keys, raw=field.path in (*COMPUTED, *DERIVED))
            kept = shortened(value, _MAX_SHOWN)
            found.append(VerdictValue(path=str(path), label=field.shown_label, role=field.role, value=kept))
    if isinstance(old := row.get(OLD_VERDICT), Mapping):
        path = FieldPath((OLD_VERDICT, "reward"))
        found.append(VerdictValue(path=str(path), label="before", role="component", value=shortened(old.get("reward"))))
    return found


def heads_of(names: Sequence[str], rows: Sequence[Mapping[str, Any] | None], known: Sequence[str]) -> list[ColumnHead]:
    """Return the columns that these names mean for the rows. `known`: names of columns that need no values.

    Raises ExpressionError if a name is not a field.
    """
    heads: dict[str, ColumnHead] = {}
    for name in names:
        if name == PROMPT:
            heads.setdefault(name, ColumnHead(path=name, label="prompt"))
        elif name == VERDICT:
            fields = {value.path: value for row in rows if row for value in verdict_of(row, _PARTS_OF_REWARD)}
            for value in sorted(fields.values(), key=lambda each: ROLES.index(each.role))[:MAX_COLUMNS]:
                heads.setdefault(value.path, ColumnHead(path=value.path, label=value.label, role=value.role))
        elif name.startswith("("):
            raise ExpressionError(f"{name} is not a column; expected {PROMPT}, {VERDICT} or a field such as reward")
        elif name not in known:
            field = parse_field(name)
            heads.setdefault(str(field), ColumnHead(path=str(field), label=str(field)))
    return list(heads.values())


def prompt_of(row: Mapping[str, Any]) -> str:
    """Return the text of the last user message of the prompt; the task of most environments."""
    found = mapping(row.get("responses_create_params")).get("input")
    if isinstance(found, str):
        return found
    texts = [
        _text(item.get("content"))
        for item in items(found)
        if isinstance(item, dict) and item.get("role") in ("user", None) and "content" in item
    ]
    return next((text for text in reversed(texts) if text), "")


def shortened(value: Any, longest: int = _MAX_BYTES) -> Any:
    """Return the value as a page can show it, or a text that describes it if it is longer than `longest`.

    Large integers become texts, because a browser reads them as floats, and so do infinite numbers, which JSON lacks.
    """
    is_large = type(value) is int and abs(value) > LARGEST_EXACT and value.bit_length() <= _MAX_BITS
    if is_large or (type(value) is float and math.isinf(value)):
        return str(value)
    value = sanitize(value)
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[:longest]}…"
    if isinstance(value, list | dict) and len(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)) > longest:
        return f"({'list' if isinstance(value, list) else 'object'} of {len(value)})"
    return value


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in items(content) if isinstance(part, dict)]
    return "\n".join(text for text in parts if isinstance(text, str))


def known_keys(rows: Sequence[Json]) -> FieldKeys:
    values: dict[tuple[str, ...], list[Any]] = {}
    for row in rows:
        for parts, value in _values(row, ()):
            if parts in values or len(values) < MAX_KEYS:
                values.setdefault(parts, []).append(value)
    keys = []
    for parts, found in values.items():
        known = [value for value in found if value is not None]
        kinds = {_KINDS.get(type(value), "mixed") for value in known}
        kind, example = kinds.pop() if len(kinds) == 1 else "mixed", _example(known[0] if known else None)
        if len(path := str(FieldPath(parts))) <= MAX_NAME:
            keys.append(KeyInfo(path=path, kind=kind, share=len(found) / len(rows), example=example))
    derived = [name for name in DERIVED if any(reader_of(FieldPath((name,)))(row) is not None for row in rows)]
    return FieldKeys(computed=[*COMPUTED, *derived, *NOTE_FIELDS], keys=keys, sampled=len(rows))


def _values(value: Json, parts: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, inner in value.items():
        path = (*parts, key)
        if path in _LEFT_OUT:
            continue
        if isinstance(inner, dict) and inner and len(path) < _MAX_DEPTH:
            yield from _values(inner, path)
        else:
            yield path, inner


def _example(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    return text if len(text) <= _MAX_EXAMPLE else f"{text[:_MAX_EXAMPLE]}…"

"""Stores the values of one field in the order of the file, in parts that are joined when a column is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from rollyard.analysis.metrics.loader.columns import Ints
from rollyard.analysis.metrics.loader.field_reader import bounded
from rollyard.analysis.viewer.api.untrusted_values import sanitize
from rollyard.records.expressions.column import Column, Kind, column_of
from rollyard.records.expressions.field_path import FieldPath
from rollyard.records.rollouts.tokens.derived_fields import reader_of

MAX_BYTES = 256 << 20
"""Maximum size of a field's texts, lists and objects in memory."""
_SHORT = 100
"""Strings of at most this many characters are stored once."""
_OBJECT_BYTES = 57
"""Memory that a string takes in addition to its characters."""
_PLAIN = {int, float, bool, type(None)}


class ReadValues:
    """The values of one field, as far as they have been read. One thread calls `add`; `_parts` only ever grows."""

    def __init__(self, field: FieldPath) -> None:
        self.field = field
        self.reader = reader_of(field)
        self.position = 0
        """Number of bytes of the file that have been read for this field."""
        self.error = ""
        """Why the values are not kept; empty if they are."""
        self.queried = 0.0
        """When the values were last asked for."""
        self._parts: list[tuple[Ints, Column | None]] = []
        """The offsets of rows, and their values; None if all of them are missing."""
        self._strings: dict[str, str] = {}
        self._bytes = 0

    def add(self, offsets: Ints, values: list[Any]) -> None:
        """Add the values of the next rows, which begin at `offsets`."""
        types = set(map(type, values))
        if types <= _PLAIN:
            kept = None if types <= {type(None)} else column_of(values)
        else:
            kept = column_of([self._kept(value) for value in values])
        self._parts.append((offsets, kept))
        if self._bytes > MAX_BYTES:
            self._parts.clear()
            self.error = (
                f"the values of {self.field} take more than {MAX_BYTES >> 20} MB; expected a field with short values. "
                "Name a part of it, such as a key of the object, or use len(...) in ng_reward_profile --where"
            )

    def column(self, offsets: Ints) -> Column:
        """Return the values in the rows at these byte offsets; missing for rows that have not been read."""
        parts = self._parts[:]
        if not parts:
            return column_of([None] * len(offsets))
        known, values = np.concatenate([each for each, _ in parts]), _joined(parts)
        indexes = np.minimum(np.searchsorted(known, offsets), max(len(known) - 1, 0))
        if not len(known):
            return column_of([None] * len(offsets))
        taken, absent = values.values[indexes], known[indexes] != offsets
        taken[absent] = np.nan if values.numeric else None
        return Column(values.kind, taken)

    def _kept(self, value: Any) -> Any:
        if isinstance(value, str):
            if len(value) <= _SHORT:
                known = self._strings.get(value)
                if known is not None:
                    return known
                self._strings[value] = value
            value = bounded(value)
            self._bytes += len(value) + _OBJECT_BYTES
        elif isinstance(value, list | dict):
            self._bytes += len(orjson.dumps(sanitize(value), option=orjson.OPT_NON_STR_KEYS))
        return value


def _joined(parts: list[tuple[Ints, Column | None]]) -> Column:
    kinds = {column.kind for _, column in parts if column is not None}
    if len(kinds) == 1 and kinds <= {Kind.NUMBERS, Kind.TRUTHS}:
        values = [np.full(len(offsets), np.nan) if column is None else column.values for offsets, column in parts]
        return Column(kinds.pop(), np.concatenate(values))
    return Column(Kind.OBJECTS, np.concatenate([_objects(len(offsets), column) for offsets, column in parts]))


def _objects(count: int, column: Column | None) -> Any:
    """Return the values as an array of objects; whole numbers as int, as they are in columns without numbers."""
    if column is not None and not column.numeric:
        return column.values
    objects = np.full(count, None, object)
    for index, value in enumerate([] if column is None else column.objects()):
        objects[index] = int(value) if type(value) is float and value.is_integer() else value
    return objects

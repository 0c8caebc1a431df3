"""RowTally: counts the tokens of rows one after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.loader.columns import displayable
from rollyard.analysis.metrics.tokens.token_tally import (
    BIN_NATS,
    BINS,
    CELL,
    EXAMPLE,
    LAST_TURN,
    MAX_KEYS,
    MAX_VERSIONS,
    POSITIONS,
    RARE,
    TENTHS,
    Key,
    Place,
    TokenTally,
    joined_cells,
    least_likely,
)
from rollyard.records.io.json_values import items, mapping, text_of, whole_number
from rollyard.records.rollouts.tokens.model_calls import ModelCall, least_entropy, model_calls

_MAX_TEXT = 200
"""Longer texts of tokens are cut. No vocabulary has them, but rows are untrusted."""


class RowTally:
    """Use it for a part of a file and merge the results: it holds all tokens of its rows."""

    def __init__(self) -> None:
        self._keys: dict[Key, int] = {}
        self._versions: dict[str, int] = {}
        self._tokens: list[NDArray[np.void]] = []
        self._cells: list[NDArray[np.void]] = []
        self._counts: defaultdict[str, int] = defaultdict(int)

    def add(self, row: Mapping[str, Any], offset: int) -> None:
        """Add the row that begins at byte `offset`. Rows without a task index are a task each."""
        task = whole_number(row.get("_ng_task_index"))
        before = len(self._tokens)
        for number, call in enumerate(model_calls(row)):
            if len(call.log_probs) == call.count and call.count:
                self._counts["calls"] += 1
                self._add_call(call, number, offset, -1 - offset if task is None else task)
        self._counts["rows"] += 1
        self._counts["with_tokens"] += len(self._tokens) > before

    def result(self) -> TokenTally:
        """Return the tally of the rows."""
        tokens = np.concatenate([np.empty(0, EXAMPLE), *self._tokens])
        key, log_prob, count = tokens["key"], tokens["log_prob"], len(self._keys)
        named, known = key >= 0, ~np.isnan(tokens["entropy"])
        bins = np.clip(-log_prob / BIN_NATS, 0, BINS - 1).astype(np.int64)

        def by_key(chosen: NDArray[np.bool_], weights: NDArray[np.float64] | None = None) -> NDArray[Any]:
            return np.bincount(key[chosen], None if weights is None else weights[chosen], minlength=count)

        lowest = np.zeros(count)
        np.minimum.at(lowest, key[named], log_prob[named])
        rows, row = np.unique(tokens["offset"][named], return_inverse=True)
        pairs = np.unique(key[named] * max(len(rows), 1) + row)
        return TokenTally(
            keys=tuple(self._keys),
            count=by_key(named),
            log_prob=by_key(named, log_prob).astype(float),
            lowest=lowest,
            rare=by_key(named & (log_prob < RARE)),
            bounded=by_key(named & known),
            entropy=by_key(named & known, tokens["entropy"]).astype(float),
            rollouts=np.bincount(pairs // max(len(rows), 1), minlength=count),
            examples=least_likely(tokens[named]),
            cells=joined_cells(np.concatenate([np.empty(0, CELL), *self._cells])),
            histogram=np.bincount(bins, minlength=BINS),
            versions=tuple(self._versions),
            rows=self._counts["rows"],
            with_tokens=self._counts["with_tokens"],
            calls=self._counts["calls"],
            tokens=len(tokens),
            left_out=int((~named).sum()),
            without_texts=self._counts["without_texts"],
        )

    def _add_call(self, call: ModelCall, number: int, offset: int, task: int) -> None:
        count = call.count
        found = np.empty(count, EXAMPLE)
        known = self._keys.get
        keys: list[Key] = [*(call.texts or call.ids)]
        found["key"] = [self._code(key) if (code := known(key)) is None else code for key in keys]
        # Rounding can make a log-probability slightly positive.
        found["log_prob"] = np.minimum(call.log_probs, 0.0)
        bounds = [least_entropy(entry) for entry in call.entries] if call.entries else [None] * count
        found["entropy"] = np.array(bounds, np.float64)
        found["offset"], found["call"], found["position"] = offset, number, np.arange(count)
        self._tokens.append(found)
        self._counts["without_texts"] += 0 if call.texts else count
        places = np.arange(count)
        turn = min(number + 1, LAST_TURN)
        for place, numbers in (
            (Place.ALL, np.zeros(count, np.int64)),
            (Place.TURN, np.full(count, turn)),
            (Place.POSITION, np.searchsorted(POSITIONS, places, "right") - 1),
            (Place.TENTH, places * TENTHS // count),
            (Place.VERSION, self._versions_of(call)),
        ):
            self._add_cells(found, task, place, numbers)

    def _add_cells(self, found: NDArray[np.void], task: int, place: Place, numbers: NDArray[np.int64]) -> None:
        counted = numbers >= 0
        if not counted.any():
            return
        first, numbers, log_prob = int(numbers[counted].min()), numbers[counted], found["log_prob"][counted]
        entropy, index = found["entropy"][counted], numbers - first
        known = ~np.isnan(entropy)
        sums = {
            "tokens": np.bincount(index),
            "log_prob": np.bincount(index, log_prob),
            "rare": np.bincount(index, log_prob < RARE),
            "bounded": np.bincount(index, known),
            "entropy": np.bincount(index, np.where(known, entropy, 0.0)),
        }
        cells = np.empty(len(sums["tokens"]), CELL)
        cells["task"], cells["place"], cells["number"] = task, place, np.arange(len(cells)) + first
        for name, values in sums.items():
            cells[name] = values
        self._cells.append(cells[cells["tokens"] > 0])

    def _code(self, key: Key) -> int:
        code = self._keys.get(key)
        if code is None:
            if isinstance(key, str) and len(key) > _MAX_TEXT:
                return self._code(key[:_MAX_TEXT])
            if len(self._keys) >= MAX_KEYS:
                return -1
            code = self._keys[key] = len(self._keys)
        return code

    def _versions_of(self, call: ModelCall) -> NDArray[np.int64]:
        """Return the index of the version that sampled each token; -1 if it is unknown."""
        sampling = mapping(mapping(call.trace).get("sampling"))
        codes = np.full(call.count, self._version(sampling.get("policy_version")))
        for span in map(mapping, items(sampling.get("weight_versions"))):
            start, end = whole_number(span.get("start"), least=0), whole_number(span.get("end"), least=0)
            codes[start:end] = self._version(span.get("version"))
        return codes

    def _version(self, value: Any) -> int:
        name = displayable(text_of(value))
        if not name or (name not in self._versions and len(self._versions) >= MAX_VERSIONS):
            return -1
        return self._versions.setdefault(name, len(self._versions))

"""Builds columns from rows. This is the hot path of a profile; it adds about 10 us per row to the JSON parsing."""

from __future__ import annotations

import hashlib
import math
from array import array
from typing import Any

import numpy as np

from rollyard.analysis.metrics.loader.columns import (
    CATEGORIES,
    FLOATS,
    INITIAL_CODE,
    INTS,
    LOST_CATEGORIES,
    LOST_FLOATS,
    LOST_INTS,
    MAX_CATEGORIES,
    MAX_STAGES,
    NO_ANSWER,
    NO_ANSWER_FIELD,
    OTHERS,
    CategoryColumn,
    Columns,
    Unmeasured,
    displayable,
    padded,
)
from rollyard.records.io.json_values import mapping, number
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.rollouts.rewards import mask_of, tidy
from rollyard.records.rollouts.rollout_keys import prompt_key
from rollyard.records.types import MAX_REWARD, Json

_MAX_COUNT = 2**53
"""Upper bound on counts and times. Larger values are treated as missing."""


class RolloutParser:
    """Collects the fields of rows and builds Columns from them."""

    def __init__(self, *, indexed: bool = True) -> None:
        """If `indexed`, rows must have a task and a repeat index; otherwise, each row counts as a separate task."""
        self._indexed = indexed
        # One flat array per type with a row's values adjacent: one call per row instead of one per value.
        self._ints = array("q")
        self._floats = array("d")
        self._categories = {name: Vocabulary() for name in CATEGORIES}
        self._stages: dict[str, array[float]] = {}
        """Columns by their key in `timings`, which is the stage's name followed by `_s`."""
        self._lost_ints = array("q")
        self._lost_floats = array("d")
        self._lost_categories = {name: Vocabulary() for name in LOST_CATEGORIES}
        self._count = 0

    def add(self, row: RolloutRow, offset: int) -> None:
        """Add the row that starts at byte `offset`. Raises ValueError if its task or repeat index is missing or
        invalid.
        """
        task, repeat = _index(row) if self._indexed else (offset, 0)
        reward = tidy(number(row.get("reward"), math.nan, MAX_REWARD))
        response = mapping(row.get("response"))
        usage, timings = mapping(response.get("usage")), mapping(row.get("timings"))
        calls, turns = _count_calls_and_turns(response.get("output"))
        mask = mask_of(row)
        if mask or reward != reward:
            self._lost_ints.extend((task, repeat, offset))
            turns = number(timings.get("model_calls"), turns, _MAX_COUNT)
            tokens = number(usage.get("output_tokens"), math.nan, _MAX_COUNT)
            self._lost_floats.extend((calls, turns, tokens, number(timings.get("total_s"), math.nan, _MAX_COUNT)))
            self._lost_categories["kind"].add(mask or "no_reward")
            self._lost_categories["agent"].add(mapping(row.get("agent_ref")).get("name"))
            return
        token_history, success = mapping(row.get("token_trail")), row.get("success")
        self._ints.extend((task, repeat, offset, _content(row.get("_ng_task_key")), prompt_key(row), _answer(row)))
        self._floats.extend(
            (
                reward,
                float(success) if success is True or success is False else math.nan,
                calls,
                number(timings.get("model_calls"), turns, _MAX_COUNT),
                number(usage.get("input_tokens"), math.nan, _MAX_COUNT),
                number(usage.get("output_tokens"), math.nan, _MAX_COUNT),
                number(mapping(usage.get("output_tokens_details")).get("reasoning_tokens"), math.nan, _MAX_COUNT),
                number(token_history.get("turns"), math.nan, _MAX_COUNT),
                number(token_history.get("breaks"), math.nan, _MAX_COUNT),
                number(token_history.get("segments"), math.nan, _MAX_COUNT),
            )
        )
        self._categories["end"].add(row.get("finish_reason"))
        self._categories["agent"].add(mapping(row.get("agent_ref")).get("name"))
        self._categories["dataset"].add(row.get("dataset_name"))
        self._categories["code"].add(row.get("_ng_code", INITIAL_CODE))
        self._categories["model"].add(response.get("model"))
        self._time(timings)
        self._count += 1

    def columns(self) -> Columns:
        """Return the columns in the order in which rows were added."""
        ints = np.asarray(self._ints, np.int64).reshape(-1, len(INTS)).T
        floats = np.asarray(self._floats, np.float64).reshape(-1, len(FLOATS)).T
        # Copies, so that each column can be freed separately.
        arrays: dict[str, Any] = {
            name: column.copy() for name, column in zip((*INTS, *FLOATS), (*ints, *floats), strict=True)
        }
        arrays |= {name: vocabulary.column() for name, vocabulary in self._categories.items()}
        stages = {
            displayable(key[:-2]): padded(np.asarray(kept, np.float64), self._count)
            for key, kept in self._stages.items()
        }
        return Columns(**arrays, stages=stages, unmeasured=self._unmeasured())

    def _unmeasured(self) -> Unmeasured:
        ints = np.asarray(self._lost_ints, np.int64).reshape(-1, len(LOST_INTS)).T.copy()
        floats = np.asarray(self._lost_floats, np.float64).reshape(-1, len(LOST_FLOATS)).T.copy()
        kind, agent = (self._lost_categories[name].column() for name in LOST_CATEGORIES)
        numbers: dict[str, Any] = dict(zip((*LOST_INTS, *LOST_FLOATS), (*ints, *floats), strict=True))
        return Unmeasured(**numbers, kind=kind, agent=agent)

    def _time(self, timings: Json) -> None:
        for key, value in timings.items():
            kept = self._stages.get(key)
            if kept is None:
                if not key.endswith("_s") or len(self._stages) >= MAX_STAGES:
                    continue
                kept = self._stages[key] = array("d")
            if len(kept) < self._count:
                kept.extend([math.nan] * (self._count - len(kept)))
            kept.append(number(value, math.nan, _MAX_COUNT))


class Vocabulary:
    """Encodes strings as integer codes and stores each distinct string once."""

    def __init__(self) -> None:
        self._codes = array("i")
        self._known: dict[str, int] = {}

    def add(self, text: object) -> None:
        """Add a string. Any other value gets the code -1."""
        if not isinstance(text, str):
            self._codes.append(-1)
            return
        code = self._known.get(text)
        if code is None:
            kept = displayable(text) if len(self._known) < MAX_CATEGORIES else OTHERS
            code = self._known.setdefault(kept, len(self._known))
        self._codes.append(code)

    def column(self) -> CategoryColumn:
        return CategoryColumn(np.array(self._codes, np.int32), tuple(self._known))


def _index(row: RolloutRow) -> tuple[int, int]:
    task, repeat = row.get("_ng_task_index"), row.get("_ng_rollout_index")
    for name, found in (("_ng_task_index", task), ("_ng_rollout_index", repeat)):
        if type(found) is not int or not 0 <= found < 2**62:
            problem = f"has no {name}" if found is None else f"has {name} {str(found)[:40]!r}"
            raise ValueError(f"{problem}; expected a non-negative integer")
    return task, repeat  # type: ignore[return-value]


def _content(key: object) -> int:
    """Return `_ng_task_key` as an integer; 0 if it is missing or invalid."""
    if not isinstance(key, str) or len(key) != 16:
        return 0
    try:
        return int.from_bytes(bytes.fromhex(key), signed=True)
    except ValueError:
        return 0


def _answer(row: RolloutRow) -> int:
    """Return a 64-bit hash of the answer that the environment extracted, or the constant for a row without one."""
    if "extracted_answer" not in row:
        return NO_ANSWER_FIELD
    answer = row["extracted_answer"]
    if answer is None or answer == "":
        return NO_ANSWER
    text = answer if isinstance(answer, str) else repr(answer)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True) | 2  # neither of the constants


def _count_calls_and_turns(output: object) -> tuple[float, float]:
    """Return the number of tool calls and the number of turns. A turn is an uninterrupted sequence of the model's
    items.
    """
    calls = turns = 0
    writing = False
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, dict):
            continue
        kind = item.get("type")
        if kind == "function_call_output" or item.get("role") in ("user", "system", "developer"):
            writing = False
            continue
        if kind == "function_call":
            calls += 1
        if not writing:
            turns += 1
            writing = True
    return calls, turns

"""Gatherer: rows one by one -> Columns. It is the hot path of a profile: some 10 us a row beside the parsing."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np

from rollyard.services.io.json_values import mapping, number
from rollyard.services.metrics.loader.columns import (
    FIRST_CODE,
    FLOATS,
    INTS,
    LOST_FLOATS,
    LOST_INTS,
    LOST_WORDS,
    MOST_STAGES,
    MOST_WORDS,
    OTHERS,
    WORDS,
    CategoryColumn,
    Columns,
    Unmeasured,
    padded,
    word,
)
from rollyard.services.rollout_types import RolloutRow
from rollyard.services.rollouts.rollout_keys import prompt_key
from rollyard.services.types import MOST_REWARD, Json

_MOST = 2**53
"""No environment counts or times further."""


class RolloutParser:
    """Takes rows one by one and gives their Columns."""

    def __init__(self, *, indexed: bool = True) -> None:
        """`indexed`: rows must say which task and repeat they are; else each counts as a task of its own."""
        self._indexed = indexed
        # One flat array of each type, a row's values side by side: one call a row instead of one a value.
        self._ints = array("q")
        self._floats = array("d")
        self._words = {name: Vocabulary() for name in WORDS}
        self._stages: dict[str, array[float]] = {}
        """By the key in `timings`: stage and `_s`."""
        self._lost_ints = array("q")
        self._lost_floats = array("d")
        self._lost_words = {name: Vocabulary() for name in LOST_WORDS}
        self._count = 0

    def add(self, row: RolloutRow, offset: int) -> None:
        """One row that begins at byte `offset`. Raises ValueError in words when it does not say which rollout it is."""
        task, repeat = _index(row) if self._indexed else (offset, 0)
        reward = number(row.get("reward"), math.nan, MOST_REWARD)
        response = mapping(row.get("response"))
        usage, timings = mapping(response.get("usage")), mapping(row.get("timings"))
        calls, turns = _counted(response.get("output"))
        if row.get("mask_sample") is True or reward != reward:
            self._lost_ints.extend((task, repeat, offset))
            turns = number(timings.get("model_calls"), turns, _MOST)
            tokens = number(usage.get("output_tokens"), math.nan, _MOST)
            self._lost_floats.extend((calls, turns, tokens, number(timings.get("total_s"), math.nan, _MOST)))
            self._lost_words["kind"].add(_why(row))
            self._lost_words["agent"].add(mapping(row.get("agent_ref")).get("name"))
            return
        trail, success = mapping(row.get("token_trail")), row.get("success")
        self._ints.extend((task, repeat, offset, _content(row.get("_ng_task_key")), prompt_key(row)))
        self._floats.extend(
            (
                reward,
                float(success) if success is True or success is False else math.nan,
                calls,
                number(timings.get("model_calls"), turns, _MOST),
                number(usage.get("input_tokens"), math.nan, _MOST),
                number(usage.get("output_tokens"), math.nan, _MOST),
                number(mapping(usage.get("output_tokens_details")).get("reasoning_tokens"), math.nan, _MOST),
                number(trail.get("turns"), math.nan, _MOST),
                number(trail.get("breaks"), math.nan, _MOST),
                number(trail.get("segments"), math.nan, _MOST),
            )
        )
        self._words["end"].add(row.get("finish_reason"))
        self._words["agent"].add(mapping(row.get("agent_ref")).get("name"))
        self._words["dataset"].add(row.get("dataset_name"))
        self._words["code"].add(row.get("_ng_code", FIRST_CODE))
        self._words["model"].add(response.get("model"))
        self._time(timings)
        self._count += 1

    def columns(self) -> Columns:
        """What was gathered, in the order it was added."""
        ints = np.asarray(self._ints, np.int64).reshape(-1, len(INTS)).T
        floats = np.asarray(self._floats, np.float64).reshape(-1, len(FLOATS)).T
        # A copy of each, not of all: a column is to be freed by itself.
        made: dict[str, Any] = {
            name: column.copy() for name, column in zip((*INTS, *FLOATS), (*ints, *floats), strict=True)
        }
        made |= {name: kept.words() for name, kept in self._words.items()}
        stages = {
            word(key[:-2]): padded(np.asarray(kept, np.float64), self._count) for key, kept in self._stages.items()
        }
        return Columns(**made, stages=stages, unmeasured=self._unmeasured())

    def _unmeasured(self) -> Unmeasured:
        ints = np.asarray(self._lost_ints, np.int64).reshape(-1, len(LOST_INTS)).T.copy()
        floats = np.asarray(self._lost_floats, np.float64).reshape(-1, len(LOST_FLOATS)).T.copy()
        kind, agent = (self._lost_words[name].words() for name in LOST_WORDS)
        numbers: dict[str, Any] = dict(zip((*LOST_INTS, *LOST_FLOATS), (*ints, *floats), strict=True))
        return Unmeasured(**numbers, kind=kind, agent=agent)

    def _time(self, timings: Json) -> None:
        for key, value in timings.items():
            kept = self._stages.get(key)
            if kept is None:
                if not key.endswith("_s") or len(self._stages) >= MOST_STAGES:
                    continue
                kept = self._stages[key] = array("d")
            if len(kept) < self._count:
                kept.extend([math.nan] * (self._count - len(kept)))
            kept.append(number(value, math.nan, _MOST))


class Vocabulary:
    """Texts as they come, each stored once."""

    def __init__(self) -> None:
        self._codes = array("i")
        self._known: dict[str, int] = {}

    def add(self, text: object) -> None:
        """What is no text says nothing."""
        if not isinstance(text, str):
            self._codes.append(-1)
            return
        code = self._known.get(text)
        if code is None:
            kept = word(text) if len(self._known) < MOST_WORDS else OTHERS
            code = self._known.setdefault(kept, len(self._known))
        self._codes.append(code)

    def words(self) -> CategoryColumn:
        """What was added so far."""
        return CategoryColumn(np.array(self._codes, np.int32), tuple(self._known))


def _index(row: RolloutRow) -> tuple[int, int]:
    task, repeat = row.get("_ng_task_index"), row.get("_ng_rollout_index")
    for name, found in (("_ng_task_index", task), ("_ng_rollout_index", repeat)):
        if type(found) is not int or not 0 <= found < 2**62:
            said = f"has no {name}" if found is None else f"has {name} {str(found)[:40]!r}"
            raise ValueError(f"{said}; expected a whole number that says which rollout this is")
    return task, repeat  # type: ignore[return-value]


def _content(key: object) -> int:
    """`_ng_task_key` as a number; 0 for what is none."""
    if not isinstance(key, str) or len(key) != 16:
        return 0
    try:
        return int.from_bytes(bytes.fromhex(key), signed=True)
    except ValueError:
        return 0


def _why(row: RolloutRow) -> str:
    """The kind of failure that a row without a reward stands for."""
    if row.get("mask_sample") is True:
        return "masked"
    kind = row.get("failure_kind")
    return kind if isinstance(kind, str) and kind else "no_reward"


def _counted(output: object) -> tuple[float, float]:
    """Tool calls, and turns: runs of items the model wrote, parted by what others said."""
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

"""Defines the arrays that store the rollout fields needed for a report. The rows themselves are not kept."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.records.expressions import Column, column_of, numbers, truths
from rollyard.records.rewards import mask_of, tidy
from rollyard.records.rollout_keys import prompt_key
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.types import MAX_REWARD, Json, mapping, number

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LOST_INTS = ("task", "repeat", "offset")
INTS = (*LOST_INTS, "content", "prompt", "answer")
FLOATS = (
    *("reward", "success", "tool_calls", "turns", "input_tokens", "output_tokens", "reasoning_tokens"),
    *("trail_turns", "trail_breaks", "trail_segments"),
)
CATEGORIES = ("end", "agent", "model", "dataset", "code")
LOST_FLOATS = ("tool_calls", "turns", "output_tokens", "seconds")
LOST_CATEGORIES = ("kind", "agent")
"""String columns of rows without a reward."""
MAX_CATEGORIES = 1000
"""Maximum number of distinct strings per column, because rows are user input."""
MAX_STAGES = 32
OTHERS = "(others)"
INITIAL_CODE = "(initial)"
NO_ANSWER_FIELD, NO_ANSWER = 0, 1
"""Values of the column `answer`: the row has no field `extracted_answer`, or no answer was found in the response."""


def displayable(text: str, longest: int = 100) -> str:
    """Make an untrusted name safe to display: one line, no control characters, valid Unicode, limited length."""
    cut = text[:longest].encode("utf-8", "replace").decode()
    return "".join(letter if letter.isprintable() else " " for letter in cut)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of strings that stores each distinct string once."""

    codes: NDArray[np.int32]
    """Index into `names` for each rollout; -1 if the row has no string."""
    names: tuple[str, ...]


@dataclass(frozen=True)
class Unmeasured:
    """Rows without a valid reward, in the order of the file. They count as failed attempts, never as rewards."""

    task: Ints
    repeat: Ints
    offset: Ints
    tool_calls: Floats
    turns: Floats
    output_tokens: Floats
    seconds: Floats
    kind: CategoryColumn
    agent: CategoryColumn


@dataclass(frozen=True)
class Columns:
    """Measured rollouts as arrays of the same length, with NaN for missing values. Uses about 180 bytes per rollout."""

    task: Ints
    repeat: Ints
    offset: Ints
    """Byte offset of the row in the file."""
    content: Ints
    """`_ng_task_key`, the hash of the task's content; 0 if the row has none."""
    prompt: Ints
    """Hash of the prompt and the tools; 0 if the row has none."""
    answer: Ints
    """Hash of `extracted_answer`, NO_ANSWER or NO_ANSWER_FIELD."""
    reward: Floats
    success: Floats
    """1 or 0; NaN if the environment does not report success."""
    tool_calls: Floats
    """Number of `function_call` items in `response.output`."""
    turns: Floats
    """Number of model calls, from `timings` or else the uninterrupted sequences of model items in the output."""
    input_tokens: Floats
    output_tokens: Floats
    reasoning_tokens: Floats
    trail_turns: Floats
    """Number of turns after the first whose tokens are recorded, from `token_trail`; see `Drift`."""
    trail_breaks: Floats
    trail_segments: Floats
    end: CategoryColumn
    """From `finish_reason`."""
    agent: CategoryColumn
    model: CategoryColumn
    dataset: CategoryColumn
    code: CategoryColumn
    """Version of the servers' code, from `_ng_code`; INITIAL_CODE if the row has none."""
    stages: dict[str, Floats]
    """Seconds spent in each stage, from `timings`."""
    unmeasured: Unmeasured

    def __len__(self) -> int:
        return len(self.reward)


def merged(parts: list[Columns]) -> Columns:
    """Merge the parts and sort by (task, repeat), so that no metric depends on the order in which rollouts finished.

    Empties `parts` and works column by column to avoid a second copy in memory.
    """
    rows = [part.unmeasured for part in parts]
    lost: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in rows]) for name in (*LOST_INTS, *LOST_FLOATS)
    }
    lost |= {name: joined_categories([getattr(one, name) for one in rows]) for name in LOST_CATEGORIES}
    stages = list(dict.fromkeys(stage for part in parts for stage in part.stages))[:MAX_STAGES]
    absent = np.empty(0)
    timed = [{name: padded(part.stages.get(name, absent), len(part)) for name in stages} for part in parts]
    kept: list[dict[str, Any]] = [
        {name: getattr(part, name) for name in (*INTS, *FLOATS, *CATEGORIES)} for part in parts
    ]
    parts.clear()
    order = np.lexsort([np.concatenate([columns[name] for columns in kept]) for name in ("repeat", "task")])
    arrays: dict[str, Any] = {
        name: np.concatenate([columns.pop(name) for columns in kept])[order] for name in (*INTS, *FLOATS)
    }
    for name in CATEGORIES:
        categories = joined_categories([columns.pop(name) for columns in kept])
        arrays[name] = CategoryColumn(categories.codes[order], categories.names)
    seconds = {name: np.concatenate([columns.pop(name) for columns in timed])[order] for name in stages}
    return Columns(**arrays, stages=seconds, unmeasured=Unmeasured(**lost))


def joined_categories(parts: Iterable[CategoryColumn]) -> CategoryColumn:
    known: dict[str, int] = {}
    codes = []
    for part in parts:
        for name in part.names:
            if name not in known:
                known.setdefault(name if len(known) < MAX_CATEGORIES else OTHERS, len(known))
        # The last entry maps the code -1 (no string) to itself.
        new_codes = [known.get(name, known.get(OTHERS, -1)) for name in part.names]
        codes.append(np.array([*new_codes, -1], np.int32)[part.codes])
    return CategoryColumn(np.concatenate(codes), tuple(known))


def chosen(columns: Columns, mask: NDArray[np.bool_]) -> Columns:
    """Return the measured rollouts that the mask selects, and all unmeasured ones."""
    arrays: dict[str, Any] = {name: getattr(columns, name)[mask] for name in (*INTS, *FLOATS)}
    arrays |= {
        name: CategoryColumn(categories.codes[mask], categories.names)
        for name in CATEGORIES
        if (categories := getattr(columns, name))
    }
    stages = {name: seconds[mask] for name, seconds in columns.stages.items()}
    return Columns(**arrays, stages=stages, unmeasured=columns.unmeasured)


def numbered_in_file_order(columns: Columns) -> Columns:
    """Number the tasks of rows without an index, which are sorted by offset, by their positions in the file."""
    lost = columns.unmeasured
    offsets = np.sort(np.concatenate([columns.offset, lost.offset]))
    numbered = replace(lost, task=np.searchsorted(offsets, lost.offset))
    return replace(columns, task=np.searchsorted(offsets, columns.offset), unmeasured=numbered)


def padded(values: Floats, count: int) -> Floats:
    """Return `values` padded with NaN to `count` entries."""
    return np.concatenate([values, np.full(count - len(values), np.nan)])


# Builds columns from rows. This is the hot path of a profile; it adds about 10 us per row to the JSON parsing.

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
        """Add the row that starts at byte `offset`. Raises ValueError if it has no valid task or repeat index."""
        task, repeat = _index(row) if self._indexed else (offset, 0)
        reward = tidy(number(row.get("reward"), math.nan, MAX_REWARD))
        response = mapping(row.get("response"))
        usage, timings = mapping(response.get("usage")), mapping(row.get("timings"))
        calls, turns = _count_calls_and_turns(response.get("output"))
        mask = mask_of(row)
        turns = number(timings.get("model_calls"), turns, _MAX_COUNT)
        tokens = number(usage.get("output_tokens"), math.nan, _MAX_COUNT)
        if mask or reward != reward:
            self._lost_ints.extend((task, repeat, offset))
            self._lost_floats.extend((calls, turns, tokens, number(timings.get("total_s"), math.nan, _MAX_COUNT)))
            self._lost_categories["kind"].add(mask or "no_reward")
            self._lost_categories["agent"].add(mapping(row.get("agent_ref")).get("name"))
            return
        trail, success = mapping(row.get("token_trail")), row.get("success")
        self._ints.extend((task, repeat, offset, content_of(row.get("_ng_task_key")), prompt_key(row), _answer(row)))
        self._floats.extend(
            (
                reward,
                float(success) if success is True or success is False else math.nan,
                calls,
                turns,
                number(usage.get("input_tokens"), math.nan, _MAX_COUNT),
                tokens,
                number(mapping(usage.get("output_tokens_details")).get("reasoning_tokens"), math.nan, _MAX_COUNT),
                number(trail.get("turns"), math.nan, _MAX_COUNT),
                number(trail.get("breaks"), math.nan, _MAX_COUNT),
                number(trail.get("segments"), math.nan, _MAX_COUNT),
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
        lost = {**_split(self._lost_ints, LOST_INTS), **_split(self._lost_floats, LOST_FLOATS)}
        lost |= {name: vocabulary.column() for name, vocabulary in self._lost_categories.items()}
        arrays = {**_split(self._ints, INTS), **_split(self._floats, FLOATS)}
        arrays |= {name: vocabulary.column() for name, vocabulary in self._categories.items()}
        stages = {displayable(key[:-2]): padded(np.asarray(kept), self._count) for key, kept in self._stages.items()}
        return Columns(**arrays, stages=stages, unmeasured=Unmeasured(**lost))

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


def _split(values: array[Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the columns of adjacent values. They are copies, so that each can be freed separately."""
    columns = np.asarray(values).reshape(-1, len(names)).T
    return {name: column.copy() for name, column in zip(names, columns, strict=True)}


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


def content_of(key: object) -> int:
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
    """Return the number of tool calls and of turns, which are uninterrupted sequences of the model's items."""
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


# The columns that a rollout file's index computes from its rows, by the names that expressions give them.

_NUMBERS = (
    *("task", "repeat", "reward", "tool_calls", "turns"),
    *("input_tokens", "output_tokens", "reasoning_tokens"),
)
_CATEGORIES = ("end", "agent", "model", "dataset")
COMPUTED = (*_NUMBERS, "success", "seconds", *_CATEGORIES)
"""Names of the computed columns. `end` is the finish reason, `seconds` the duration of the episode."""


def computed_column(columns: Columns, name: str) -> Column:
    """Return the computed column `name`, one of COMPUTED, of the measured rollouts."""
    if name in _NUMBERS:
        return numbers(getattr(columns, name))
    if name == "success":
        return truths(columns.success)
    if name == "seconds":
        return numbers(columns.stages.get("total", np.full(len(columns), np.nan)))
    return category_values(getattr(columns, name))


def category_values(categories: CategoryColumn) -> Column:
    """Return the strings of a column, None where a row has none."""
    names = [*categories.names, None]
    return column_of([names[code] for code in categories.codes.tolist()])

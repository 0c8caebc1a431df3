"""Defines the arrays that store the rollout fields needed for a report. The rows themselves are not kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LOST_INTS = ("task", "repeat", "offset")
INTS = (*LOST_INTS, "content", "prompt", "answer")
FLOATS = (
    "reward",
    "success",
    "tool_calls",
    "turns",
    "input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "trail_turns",
    "trail_breaks",
    "trail_segments",
)
CATEGORIES = ("end", "agent", "model", "dataset", "code")
LOST_FLOATS = ("tool_calls", "turns", "output_tokens", "seconds")
LOST_CATEGORIES = ("kind", "agent")
"""String columns of rows without a reward."""
MAX_CATEGORIES = 1000
"""Maximum number of distinct strings per column. Without a limit, a file with a different reason in every row would
fill the memory."""
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
    """Duration of the entire episode."""
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
    """Number of model calls, from `timings`. If it is missing, the number of uninterrupted sequences of model items in
    the output."""
    input_tokens: Floats
    output_tokens: Floats
    reasoning_tokens: Floats
    trail_turns: Floats
    """Number of turns after the first whose tokens are recorded, from `token_trail`."""
    trail_breaks: Floats
    """Number of turns whose prompt does not begin with exactly the tokens of the previous turn."""
    trail_segments: Floats
    """Number of segments into which prefix mismatches divide the episode."""
    end: CategoryColumn
    """Why the episode ended, from `finish_reason`."""
    agent: CategoryColumn
    model: CategoryColumn
    dataset: CategoryColumn
    """Name of the dataset, from `dataset_name`."""
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
    lost = _joined_unmeasured([part.unmeasured for part in parts])
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
    return Columns(**arrays, stages=seconds, unmeasured=lost)


def _joined_unmeasured(parts: Sequence[Unmeasured]) -> Unmeasured:
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in (*LOST_INTS, *LOST_FLOATS)
    }
    arrays |= {name: joined_categories([getattr(part, name) for part in parts]) for name in LOST_CATEGORIES}
    return Unmeasured(**arrays)


def joined_categories(parts: Iterable[CategoryColumn]) -> CategoryColumn:
    """Concatenate string columns and merge their names."""
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
    """Number the tasks of rows without a task index by the rows' positions in the file, counted from 0.

    The columns must be sorted by offset, as they are if the offsets are their tasks.
    """
    lost = columns.unmeasured
    offsets = np.sort(np.concatenate([columns.offset, lost.offset]))
    numbered = replace(lost, task=np.searchsorted(offsets, lost.offset))
    return replace(columns, task=np.searchsorted(offsets, columns.offset), unmeasured=numbered)


def padded(values: Floats, count: int) -> Floats:
    """Return `values` padded with NaN to `count` entries."""
    return np.concatenate([values, np.full(count - len(values), np.nan)])

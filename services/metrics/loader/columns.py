"""Holds the fields of all rollouts that a report needs as arrays. The rows themselves are not kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LOST_INTS = ("task", "repeat", "offset")
INTS = (*LOST_INTS, "content", "prompt")
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
"""Columns of rows without a reward."""
MAX_CATEGORIES = 1000
"""Maximum number of distinct strings per column. Without it, a new reason in every row would fill the memory."""
MAX_STAGES = 32
OTHERS = "(others)"
INITIAL_CODE = "(initial)"


def displayable(text: str, longest: int = 100) -> str:
    """Return an untrusted name in displayable form: one line, no control characters, valid Unicode, limited length."""
    cut = text[:longest].encode("utf-8", "replace").decode()
    return "".join(letter if letter.isprintable() else " " for letter in cut)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of strings, each stored once."""

    codes: NDArray[np.int32]
    """Index into `names` for each rollout; -1 if the row has no text."""
    names: tuple[str, ...]


@dataclass(frozen=True)
class Unmeasured:
    """Rows without a valid reward, in the file's order. They are failed attempts and never count as rewards."""

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
    """Measured rollouts as arrays of the same length, with NaN for missing values. About 170 bytes per rollout."""

    task: Ints
    repeat: Ints
    offset: Ints
    """Byte of the file where the row starts."""
    content: Ints
    """`_ng_task_key`, the hash of the task's content; 0 if the row has none."""
    prompt: Ints
    """Hash of the prompt and the tools; 0 if the row has none."""
    reward: Floats
    success: Floats
    """1, 0, or NaN if the environment reports no success."""
    tool_calls: Floats
    """Items of type `function_call` in `response.output`."""
    turns: Floats
    """Model calls from `timings`; without them, the number of uninterrupted sequences of model items in the output."""
    input_tokens: Floats
    output_tokens: Floats
    reasoning_tokens: Floats
    trail_turns: Floats
    """Number of turns after the first with recorded tokens, from `token_trail`."""
    trail_breaks: Floats
    """Turns whose prompt does not begin with exactly the tokens of the previous turn."""
    trail_segments: Floats
    """Number of segments into which prefix mismatches divide the episode."""
    end: CategoryColumn
    """`finish_reason`."""
    agent: CategoryColumn
    model: CategoryColumn
    dataset: CategoryColumn
    """`dataset_name`."""
    code: CategoryColumn
    """`_ng_code`, the version of the servers' code; INITIAL_CODE if the row has none."""
    stages: dict[str, Floats]
    """Stage -> seconds, from `timings`."""
    unmeasured: Unmeasured

    def __len__(self) -> int:
        return len(self.reward)


def merged(parts: list[Columns]) -> Columns:
    """Merge all parts sorted by (task, repeat), so that no metric depends on the order in which rollouts finished.

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
    """Concatenate the columns of all parts."""
    known: dict[str, int] = {}
    codes = []
    for part in parts:
        for name in part.names:
            if name not in known:
                known.setdefault(name if len(known) < MAX_CATEGORIES else OTHERS, len(known))
        # The last entry maps the code -1 (no text) to itself.
        new_codes = [known.get(name, known.get(OTHERS, -1)) for name in part.names]
        codes.append(np.array([*new_codes, -1], np.int32)[part.codes])
    return CategoryColumn(np.concatenate(codes), tuple(known))


def chosen(columns: Columns, mask: NDArray[np.bool_]) -> Columns:
    """Return the rollouts selected by the mask, with all unmeasured ones."""
    arrays: dict[str, Any] = {name: getattr(columns, name)[mask] for name in (*INTS, *FLOATS)}
    arrays |= {
        name: CategoryColumn(categories.codes[mask], categories.names)
        for name in CATEGORIES
        if (categories := getattr(columns, name))
    }
    stages = {name: seconds[mask] for name, seconds in columns.stages.items()}
    return Columns(**arrays, stages=stages, unmeasured=columns.unmeasured)


def padded(values: Floats, count: int) -> Floats:
    """Return `values` padded with NaN to `count` entries."""
    return np.concatenate([values, np.full(count - len(values), np.nan)])

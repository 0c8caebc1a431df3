"""Columns: what a report needs of each rollout, as arrays. The row itself is forgotten as soon as it is read."""

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
WORDS = ("end", "agent", "model", "dataset", "code")
LOST_FLOATS = ("tool_calls", "turns", "output_tokens", "seconds")
LOST_WORDS = ("kind", "agent")
"""Of rows without a reward."""
MOST_WORDS = 1000
"""Distinct texts kept of one column: a world that writes a new reason on every row must not fill the memory."""
MOST_STAGES = 32
OTHERS = "(others)"
FIRST_CODE = "(as begun)"


def word(text: str, longest: int = 100) -> str:
    """A name out of a rollout as it may be shown: one line, no control characters, valid Unicode, not too long."""
    cut = text[:longest].encode("utf-8", "replace").decode()
    return "".join(letter if letter.isprintable() else " " for letter in cut)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of texts, each stored once."""

    codes: NDArray[np.int32]
    """Index into `names`, one a rollout; -1 where the row says nothing."""
    names: tuple[str, ...]


@dataclass(frozen=True)
class Unmeasured:
    """Rows without a reward that counts: they are attempts that failed, never rewards. In the file's order."""

    task: Ints
    repeat: Ints
    offset: Ints
    tool_calls: Floats
    turns: Floats
    output_tokens: Floats
    seconds: Floats
    """Of the whole episode."""
    kind: CategoryColumn
    agent: CategoryColumn


@dataclass(frozen=True)
class Columns:
    """Measured rollouts, n arrays of one length; NaN where a row does not say. Some 170 bytes a rollout."""

    task: Ints
    repeat: Ints
    offset: Ints
    """Byte of the file where the row begins."""
    content: Ints
    """`_ng_task_key`: what the task asks; 0 where the row does not say."""
    prompt: Ints
    """Hash of the prompt and the tools; 0 where the row has none."""
    reward: Floats
    success: Floats
    """1, 0, or NaN where the world reports none."""
    tool_calls: Floats
    """Items of type `function_call` in `response.output`: the seed's count."""
    turns: Floats
    """Model calls, from `timings`; in rows without, runs of the model's items in `response.output`."""
    input_tokens: Floats
    output_tokens: Floats
    reasoning_tokens: Floats
    trail_turns: Floats
    """Of `token_trail`: later turns whose tokens are on record."""
    trail_breaks: Floats
    """Those of them whose prompt does not begin with exactly the turn before."""
    trail_segments: Floats
    """Pieces into which the breaks part the episode."""
    end: CategoryColumn
    """`finish_reason`."""
    agent: CategoryColumn
    model: CategoryColumn
    dataset: CategoryColumn
    """`dataset_name`: which part of a mixture."""
    code: CategoryColumn
    """`_ng_code`: which version of the servers' code, FIRST_CODE where the row carries none."""
    stages: dict[str, Floats]
    """Stage -> seconds, from `timings`."""
    unmeasured: Unmeasured

    def __len__(self) -> int:
        return len(self.reward)


def merged(parts: list[Columns]) -> Columns:
    """The rollouts of all parts by (task, repeat): no number depends on the order in which they finished.

    Empties `parts`, and works column by column, so that nothing is in memory twice.
    """
    lost = _joined_unmeasured([part.unmeasured for part in parts])
    stages = list(dict.fromkeys(stage for part in parts for stage in part.stages))[:MOST_STAGES]
    absent = np.empty(0)
    timed = [{name: padded(part.stages.get(name, absent), len(part)) for name in stages} for part in parts]
    kept: list[dict[str, Any]] = [{name: getattr(part, name) for name in (*INTS, *FLOATS, *WORDS)} for part in parts]
    parts.clear()
    order = np.lexsort([np.concatenate([columns[name] for columns in kept]) for name in ("repeat", "task")])
    made: dict[str, Any] = {
        name: np.concatenate([columns.pop(name) for columns in kept])[order] for name in (*INTS, *FLOATS)
    }
    for name in WORDS:
        words = joined_categories([columns.pop(name) for columns in kept])
        made[name] = CategoryColumn(words.codes[order], words.names)
    seconds = {name: np.concatenate([columns.pop(name) for columns in timed])[order] for name in stages}
    return Columns(**made, stages=seconds, unmeasured=lost)


def _joined_unmeasured(parts: Sequence[Unmeasured]) -> Unmeasured:
    made: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in (*LOST_INTS, *LOST_FLOATS)
    }
    made |= {name: joined_categories([getattr(part, name) for part in parts]) for name in LOST_WORDS}
    return Unmeasured(**made)


def joined_categories(parts: Iterable[CategoryColumn]) -> CategoryColumn:
    """The texts of all parts, one after the other."""
    known: dict[str, int] = {}
    codes = []
    for part in parts:
        for name in part.names:
            if name not in known:
                known.setdefault(name if len(known) < MOST_WORDS else OTHERS, len(known))
        # The last entry stands for "the row says nothing", whose code is -1.
        there = [known.get(name, known.get(OTHERS, -1)) for name in part.names]
        codes.append(np.array([*there, -1], np.int32)[part.codes])
    return CategoryColumn(np.concatenate(codes), tuple(known))


def chosen(columns: Columns, there: NDArray[np.bool_]) -> Columns:
    """The rollouts for which `there` holds, and all that are unmeasured."""
    made: dict[str, Any] = {name: getattr(columns, name)[there] for name in (*INTS, *FLOATS)}
    made |= {
        name: CategoryColumn(words.codes[there], words.names) for name in WORDS if (words := getattr(columns, name))
    }
    stages = {name: seconds[there] for name, seconds in columns.stages.items()}
    return Columns(**made, stages=stages, unmeasured=columns.unmeasured)


def padded(values: Floats, count: int) -> Floats:
    """`values`, and NaN for the rows after the last that has one."""
    return np.concatenate([values, np.full(count - len(values), np.nan)])

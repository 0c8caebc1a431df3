"""Finds what stands out in a run: all detectors, the one pass over the file that reads their signs, and the ranking."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollyard.analysis.charts.svg import short
from rollyard.analysis.findings import behaviour, detector, exploits
from rollyard.analysis.findings.answer_text import functions, letter_of
from rollyard.analysis.findings.detector import Category, Detector, Evidence, Example, Finding, Findings, Signs
from rollyard.analysis.findings.row_view import RowView
from rollyard.analysis.metrics.columns import Floats, Ints
from rollyard.analysis.metrics.estimators import Estimate, clustered_mean, clustered_share
from rollyard.analysis.metrics.load import reading_pool
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.run_plan import NO_ATTEMPTS, FailedAttempts, read_failed_attempts
from rollyard.analysis.metrics.solved import Flags
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.jsonl import Lines, iter_jsonl, skip
from rollyard.records.types import items, mapping, number

_ALL: tuple[Detector, ...] = tuple(
    one()
    for module in (exploits, behaviour)
    for one in vars(module).values()
    if isinstance(one, type) and issubclass(one, Detector) and not inspect.isabstract(one)
)
ROW_DETECTORS = tuple(one for one in _ALL if isinstance(one, detector.RowDetector))
"""Detectors that look at each row, at most 63, because each has one bit of an integer."""
DETECTORS: tuple[Detector, ...] = (*ROW_DETECTORS, *(one for one in _ALL if one not in ROW_DETECTORS))
"""All detectors. Of findings with the same stake, those of earlier ones come first."""


# Reads the signs of all rows of a file in one pass. Several processes can share the file; rows are not kept.

_YES_NO = {"yes": "yes", "true": "yes", "correct": "yes", "no": "no", "false": "no", "incorrect": "no"}
_READS = re.compile(r"\b(?:import|input|open|read|stdin|argv)\b")
PART = 16 << 20
"""Number of bytes that are read at a time."""


def read_signs(path: Path, stop: int, *, workers: int = 1, part: int = PART) -> Signs:
    """Read the rows that begin before byte `stop`.

    Raises OperatorError if the file cannot be read, and RunError if a process was killed.
    """
    ranges = ranges_of(0, stop, part)
    processes = min(workers, len(ranges))
    try:
        with reading_pool(processes) if processes > 1 else nullcontext() as pool:
            return detector.joined([no_signs(), *read_ranges(path, ranges, pool)])
    except OSError as error:
        raise OperatorError(f"rollout file {str(path)!r} cannot be read: {error.strerror or error}") from error
    except BrokenProcessPool as error:
        raise RunError(
            f"a process reading {path} was killed, possibly because memory ran out; use one process with --workers 1"
        ) from error


def ranges_of(start: int, stop: int, part: int = PART) -> list[tuple[int, int]]:
    """Divide the bytes from `start` to `stop` into parts."""
    return [(at, min(at + part, stop)) for at in range(start, stop, part)]


def read_ranges(
    path: Path, ranges: Sequence[tuple[int, int]], pool: ProcessPoolExecutor | None = None
) -> Iterator[Signs]:
    """Yield the signs of each range in order, read in this process or in `pool`. Raises OSError."""
    if pool is None:
        yield from (read_range(path, start, stop) for start, stop in ranges)
        return
    futures = deque(pool.submit(read_range, path, start, stop) for start, stop in ranges)
    while futures:
        yield futures.popleft().result()


def read_range(path: Path, start: int, stop: int) -> Signs:
    """Read the rows that begin in a range. Invalid lines are skipped; the metrics report them. Raises OSError."""
    ints, floats = list[int](), list[float]()
    for line in iter_jsonl(Lines(path, start, stop), skip):
        row = RowView(line.value)
        flags = sum(1 << bit for bit, one in enumerate(ROW_DETECTORS) if one.flags(row))
        ints += (line.offset, flags, _hash(row.expected), _hash(row.extracted or ""), *_same_text(row))
        created = mapping(line.value.get("response")).get("created_at")
        floats += (len(row.text), _partial_rewards(row), number(created, math.nan))
    return _signs(ints, floats, stop)


def no_signs() -> Signs:
    return _signs((), (), 0)


def _signs(ints: Sequence[int], floats: Sequence[float], end: int) -> Signs:
    columns = (
        *np.array(ints, np.int64).reshape(-1, len(detector.SIGN_INTS)).T.copy(),
        *np.array(floats, np.float64).reshape(-1, len(detector.SIGN_FLOATS)).T.copy(),
    )
    arrays: dict[str, Any] = dict(zip((*detector.SIGN_INTS, *detector.SIGN_FLOATS), columns, strict=True))
    return Signs(tuple(one.kind for one in ROW_DETECTORS), **arrays, end=end)


def _hash(text: str) -> int:
    """Return a 64-bit hash; 0 for ''."""
    if not text:
        return 0
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True) | 2


def _same_text(row: RowView) -> tuple[int, int]:
    """Return the hashes of the messages and of what they answer; see Signs. Wordings of one answer have the same hash
    as far as possible: numbers are rounded to two digits.
    """
    text, gold = " ".join(" ".join(row.messages).split()), row.expected
    if not text or row.calls or len(row.gold_answers) > 1:
        return 0, 0
    if row.gold_number is not None:
        return _hash(text), _hash(f"{row.gold_number:.1e}") & ~3 | 2
    words = "".join(filter(str.isalnum, gold)).casefold()
    if words in _YES_NO:
        return _hash(text), _hash(_YES_NO[words]) & ~3 | 1
    if letter := letter_of(gold):
        return _hash(text), _hash(letter) & ~3 | 3
    if words:
        # A text may name a gold answer in other words, such as Paris for "the city of Paris".
        named = set(re.findall(r"\w{3,}", text.casefold())) & set(re.findall(r"\w{3,}", gold.casefold()))
        return (0, 0) if named else (_hash(text), _hash(words) & ~3 | 2)
    if not row.code or gold or any(_is_general(code) for code in row.code):
        return 0, 0
    return _hash(text), _hash(" ".join(re.findall(r"\d+", row.prompt))) & ~3 | 2


def _is_general(code: str) -> bool:
    """Return whether a program can do the same task in different words or for different numbers."""
    return bool(_READS.search(code)) or any(function.has_parameters for function in functions(code))


def _partial_rewards(row: RowView) -> float:
    rewards = [value for value in items(row.row.get("step_rewards")) if isinstance(value, (int, float)) and value > 0]
    return Counter(round(value, 9) for value in rewards).most_common(1)[0][1] if rewards else math.nan


_EXAMPLES = 3
_UNCERTAIN = 0.5
"""Behaviour counts half: a rollout that behaves well instead may still fail."""
_NO_GRADIENT = 0.1
"""Rollouts without variance have no wrong reward; they only waste compute."""


def _stake(category: Category, mask: Flags, evidence: Evidence) -> float:
    """Estimate the share of the run's possible reward that a selection concerns.

    What exploits earned above the lowest reward is in question. Other rollouts cost the difference to the rest.
    """
    low, high = evidence.span
    share = float(mask.mean())
    if category is Category.TRAINING:
        return _NO_GRADIENT * share
    if category is Category.FAILURE:
        return _UNCERTAIN * share
    if high <= low:
        # Where every rollout has the same reward, exploits may be the reason.
        return share if category is Category.EXPLOIT else 0.0
    inside = _clipped(evidence.value[mask], low, high)
    if category in (Category.EXPLOIT, Category.REWARD):
        return share * inside
    if mask.all():
        return 0.0
    return _UNCERTAIN * share * max(0.0, _clipped(evidence.value[~mask], low, high) - inside)


def _clipped(values: Floats, low: float, high: float) -> float:
    return float(np.mean((np.clip(values, low, high) - low) / (high - low)))


def _mean(values: Floats, tasks: Ints, *, is_share: bool = False) -> Estimate:
    return clustered_mean(values, np.flatnonzero(np.diff(tasks, prepend=-1)), is_share=is_share)


def _sentence(
    count: int, of: int, unit: str, what: str, share: Estimate, inside: Estimate | None, outside: Estimate | None
) -> str:
    text = f"{share.mean:.1%} of the {unit} ({count:,} of {of:,}) {what}"
    if inside is None:
        return f"{text}."
    against = f" against {short(outside.mean)} for all others" if outside is not None else ""
    return f"{text}: mean reward {short(inside.mean)}{against}."


def _examples(task: Ints, repeat: Ints) -> list[Example]:
    """Return examples of different tasks if there are enough: the first, one from the middle, the last."""
    _, first = np.unique(task, return_index=True)
    chosen = first if len(first) >= _EXAMPLES else np.arange(len(task))
    spread = np.unique(np.linspace(0, len(chosen) - 1, min(_EXAMPLES, len(chosen))).round().astype(np.intp))
    return [Example(task=int(task[at]), repeat=int(repeat[at])) for at in chosen[spread].tolist()]


@dataclass(frozen=True)
class Found:
    finding: Finding
    task: Ints
    repeat: Ints


def find(run: Run, signs: Signs, failed: FailedAttempts) -> list[Found]:
    """Return the findings of a run, most important first. `signs` must cover the rows of the run."""
    if not len(run.columns):
        return []
    evidence = Evidence(run, signs.at(run.columns.offset), failed)
    found = [_found(one, selection, evidence) for one in DETECTORS for selection in one.select(evidence)]
    # Detectors of a certain pattern come before those that only compare lengths, which the same rollouts may meet.
    return sorted(found, key=lambda one: (-one.finding.stake, -one.finding.count))


def findings_of(run: Run, *, workers: int = 1, has_attempts: bool = True) -> Findings | None:
    """Read the run's file and return its findings; None if the run was not loaded from a file.

    `has_attempts`: also look at the failed attempts next to the file. Raises OperatorError if it cannot be read.
    """
    if run.file is None:
        return None
    stop = int(run.columns.offset.max()) + 1 if len(run.columns) else 0
    signs = read_signs(run.file, stop, workers=workers)
    found = find(run, signs, read_failed_attempts(run.file) if has_attempts else NO_ATTEMPTS)
    return Findings(findings=[one.finding for one in found], rollouts=len(run.columns))


def _found(one: Detector, selection: detector.Selection | detector.AttemptSelection, evidence: Evidence) -> Found:
    """Return the finding of a selection, which must not be empty."""
    columns, inside, outside = evidence.columns, None, None
    more: dict[str, Any]
    if isinstance(selection, detector.AttemptSelection):
        task, repeat, of = selection.task, selection.repeat, selection.of
        # Attempts of one task fail together, so each task counts as one trial.
        share = clustered_share(len(task), of, len(np.union1d(columns.task, evidence.failed.task)))
        more = {"unit": "attempts", "stake": min(1.0, _UNCERTAIN * len(task) / of)}
    else:
        mask = selection.mask
        among = np.ones(len(mask), bool) if selection.of is None else selection.of
        task, repeat, of = columns.task[mask], columns.repeat[mask], int(among.sum())
        share = _mean(mask[among].astype(float), columns.task[among], is_share=True)
        if evidence.is_one_scale:
            inside = _mean(columns.reward[mask], task)
            outside = _mean(columns.reward[~mask], columns.task[~mask]) if not mask.all() else None
        solved = evidence.run.solved
        more = {"stake": _stake(one.category, mask, evidence), "filters": selection.filters}
        more |= {"mean_reward": inside, "mean_reward_others": outside}
        more |= {"solved": None if solved is None else int((solved & mask).sum())}
    unit = more.get("unit", "rollouts")
    finding = Finding(
        kind=one.kind,
        title=one.title,
        category=one.category,
        sentence=_sentence(len(task), of, unit, selection.what, share, inside, outside),
        definition=one.definition,
        count=len(task),
        of=of,
        tasks=len(np.unique(task)),
        share=share,
        examples=_examples(task, repeat),
        **more,
    )
    return Found(finding, task, repeat)

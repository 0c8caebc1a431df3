"""How the verdicts of people and programs agree with the verifier, and with each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

import numpy as np
import orjson

from rollyard.analysis.metrics.agreement import Agreement, agreement
from rollyard.analysis.metrics.loader.columns import Columns, Floats
from rollyard.records.notes.current_state import RolloutNotes
from rollyard.records.notes.record import Verdict
from rollyard.records.types import Record

MAX_AUTHORS = 8
"""Pairs are formed of the authors with the most rollouts."""
T = TypeVar("T")


class VerifierAgreement(Record):
    """The overrides against the verifier. Category 0 is correct or solved, 1 is wrong or not solved."""

    agreement: Agreement | None
    """Rows: overrides; columns: the verifier. None if no rollout has both."""
    where: tuple[str, str]
    """Expressions for the rollouts of each row."""
    uncounted: int
    """Number of overrides that are rewards of which it is unknown whether they mean correct."""


class LabelAgreement(Record):
    """One label of two authors. Category 0 is with the label, 1 is without it."""

    label: str
    agreement: Agreement
    where: tuple[tuple[str, str], tuple[str, str]]


class PairAgreement(Record):
    """Two authors."""

    authors: tuple[str, str]
    verdicts: Agreement | None
    """About the rollouts on which both have a verdict. Rows: the first author."""
    where: tuple[tuple[str, str], tuple[str, str]]
    """Expressions for the cells of `verdicts`."""
    labels: tuple[LabelAgreement, ...]
    """About the rollouts to which both gave a label or a verdict, for every label that one of them used there."""


def correct_from(columns: Columns, threshold: float | None) -> float | None:
    """Return the reward from which an override means correct: `threshold`, 1 if all rewards are in 0..1, or None."""
    if threshold is not None:
        return threshold
    rewards = columns.reward
    return 1.0 if len(rewards) and rewards.min() >= 0 and rewards.max() <= 1 else None


def is_correct(verdict: Verdict, least: float | None) -> bool | None:
    """Return whether a verdict means correct; None for a reward whose meaning is unknown."""
    if isinstance(verdict, str):
        return verdict == "correct"
    return None if least is None else verdict >= least


def with_verifier(
    columns: Columns, solved: Floats | None, notes: Mapping[int, RolloutNotes], least: float | None
) -> VerifierAgreement:
    """Compare the override of each measured rollout with the verifier. `solved`: 1 or 0 for each row of `columns`, or
    None if "solved" is undefined; `notes`: by offset.
    """
    judged = {offset: one.override.verdict for offset, one in notes.items() if one.override is not None}
    places, verdicts = _in_columns(columns, judged)
    meant = [is_correct(verdict, least) for verdict in verdicts]
    counted = [at for at, correct in enumerate(meant) if correct is not None]
    found = None
    if counted and solved is not None:
        rows = places[counted]
        people = np.array([not meant[at] for at in counted], np.int64)
        found = agreement(people, (solved[rows] != 1).astype(np.int64), columns.task[rows])
    where = _condition("override", True, least), _condition("override", False, least)
    return VerifierAgreement(agreement=found, where=where, uncounted=len(verdicts) - len(counted))


def between_authors(
    columns: Columns, notes: Mapping[int, RolloutNotes], least: float | None
) -> tuple[PairAgreement, ...]:
    """Return the agreement of every two authors who have labelled or judged at least one common measured rollout."""
    by_author: dict[str, dict[int, RolloutNotes]] = {}
    for offset, one in notes.items():
        for author in dict.fromkeys([*(author for _, author in one.added), *one.judged]):
            by_author.setdefault(author, {})[offset] = one
    authors = sorted(by_author, key=lambda author: -len(by_author[author]))[:MAX_AUTHORS]
    pairs = (_pair(columns, by_author, pair, least) for pair in combinations(sorted(authors), 2))
    return tuple(pair for pair in pairs if pair is not None)


def _pair(
    columns: Columns, by_author: Mapping[str, Mapping[int, RolloutNotes]], pair: tuple[str, str], least: float | None
) -> PairAgreement | None:
    first, second = pair
    places, both = _in_columns(
        columns, {offset: one for offset, one in by_author[first].items() if offset in by_author[second]}
    )
    if not both:
        return None
    tasks = columns.task[places]
    verdicts = [tuple(_meaning(one, author, least) for author in pair) for one in both]
    judged = [at for at, meant in enumerate(verdicts) if None not in meant]
    one, two = ([int(not verdicts[at][side]) for at in judged] for side in (0, 1))
    used = dict.fromkeys(label for each in both for label, author in each.added if author in pair)
    return PairAgreement(
        authors=pair,
        verdicts=agreement(one, two, tasks[judged]) if judged else None,
        where=_cells(lambda side, yes: _condition(f"overrides[{_text(pair[side])}]", yes, least)),
        labels=tuple(
            LabelAgreement(
                label=label,
                agreement=agreement(_without(label, first, both), _without(label, second, both), tasks),
                where=_cells(lambda side, yes, label=label: _labelled(pair, side, label, yes)),  # type: ignore[misc]
            )
            for label in sorted(used)
        ),
    )


def _without(label: str, author: str, notes: Sequence[RolloutNotes]) -> list[int]:
    """Return 0 for each rollout to which the author gave the label, else 1."""
    return [int((label, author) not in one.added) for one in notes]


def _meaning(notes: RolloutNotes, author: str, least: float | None) -> bool | None:
    override = notes.judged.get(author)
    return None if override is None else is_correct(override.verdict, least)


def _in_columns(columns: Columns, values: Mapping[int, T]) -> tuple[np.ndarray, list[T]]:
    """Return the indexes of the measured rollouts that have a value, and their values. `values`: by offset."""
    places = np.flatnonzero(np.isin(columns.offset, list(values)))
    return places, [values[offset] for offset in columns.offset[places].tolist()]


def _cells(condition: Callable[[int, bool], str]) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return an expression for each cell of a table. `condition`: that of a rater (0 or 1) for a category."""
    rows = [[f"{condition(0, yes)} and {condition(1, other)}" for other in (True, False)] for yes in (True, False)]
    (a, b), (c, d) = rows
    return (a, b), (c, d)


def _condition(field: str, correct: bool, least: float | None) -> str:
    name = "correct" if correct else "wrong"
    if least is None:
        return f'{field} == "{name}"'
    bound = int(least) if least.is_integer() else least  # all of its digits, because the expression compares exactly
    return f'({field} == "{name}" or {field} {">=" if correct else "<"} {bound!r})'


def _labelled(pair: Sequence[str], side: int, label: str, yes: bool) -> str:
    """Return the condition that an author gave a label, or took part without giving it."""
    author = _text(pair[side])
    if yes:
        return f"{_text(label)} in labels_by[{author}]"
    took_part = f"(labels_by[{author}] != null or overrides[{author}] != null)"
    return f"{took_part} and {_text(label)} not in labels_by[{author}]"


def _text(value: str) -> str:
    return orjson.dumps(value).decode()

"""Computes cons@k: how often the most common answer of k rollouts is right.

cons@k is the share of a task's subsets of k rollouts whose most common answer is right, where the answer that occurs
first wins a tie. It is the metric that NeMo-RL's evaluation calls cons@k; the idea is known as self-consistency or
majority voting (Wang et al. 2022, arXiv:2203.11171). As there, rollouts without an answer vote for one common answer,
and an answer is right if the task's first rollout with it is.

The subsets are counted and not enumerated. Let answer a have its first rollout of the subset at position i and m
rollouts in the subset. It wins if every other answer b has fewer than m, or m of them, all after i. With n_b rollouts
in total and t_b of them after i, the number of such subsets of size k is the coefficient of x^(k-m) in

    C(t_a, m-1) * prod over b of ( sum over j < m of C(n_b, j) x^j  +  C(t_b, m) x^m ).

Answers with n_b < m contribute (1+x)^n_b. Summing over i and m gives every k at once, in O(n^3) instead of O(C(n, k)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.loader.columns import NO_ANSWER_FIELD, Columns, Floats, Ints
from rollyard.analysis.metrics.solved import Flags, parts_of

MOST_ROLLOUTS = 1000
"""cons@k is undefined for tasks with more rollouts, because C(n, k) exceeds the range of a double."""
MOST_K = 128
"""Largest k."""
_CELLS = 1 << 21
"""Size of the largest temporary array."""


@dataclass(frozen=True)
class Votes:
    """cons@k of the tasks that have the same number of rollouts."""

    rollouts: int
    tasks: Ints
    """Indexes of the tasks."""
    shares: Floats
    """One row per task. Column k - 1 contains cons@k."""


def answers_of(columns: Columns) -> Ints | None:
    """Return the answer of each rollout as an integer; None if a dataset's rows have no `extracted_answer`.

    If only some rows of a dataset have none, these count as rollouts without an answer.
    """
    if not len(columns):
        return None
    for _, mask in parts_of(columns):
        if (columns.answer[mask] == NO_ANSWER_FIELD).all():
            return None
    return columns.answer


def votes(answers: Ints | None, solved: Flags | None, starts: Ints, measured: Ints) -> list[Votes] | None:
    """Return cons@k of every task, in groups of equal numbers of rollouts; None if it is undefined.

    The rollouts of a task must be adjacent and in order, beginning at `starts`.
    """
    if answers is None or solved is None or measured.max() > MOST_ROLLOUTS:
        return None
    found = []
    for count in np.unique(measured).tolist():
        tasks = np.flatnonzero(measured == count)
        shares = np.empty((len(tasks), min(count, MOST_K)))
        for begin, end in _batches(len(tasks), count):
            rows = starts[tasks[begin:end], None] + np.arange(count)
            shares[begin:end] = _shares(answers[rows], solved[rows])
        found.append(Votes(count, tasks, shares))
    return found


def at(found: list[Votes], k: int) -> Floats:
    """Return cons@k of each task with at least k rollouts, in no particular order."""
    return np.concatenate([one.shares[:, k - 1] for one in found if one.rollouts >= k])


def _batches(tasks: int, count: int) -> Iterator[tuple[int, int]]:
    size = max(1, _CELLS // count**2)
    for begin in range(0, tasks, size):
        yield begin, min(begin + size, tasks)


def _shares(answers: Ints, solved: NDArray[np.bool_]) -> Floats:
    """Return cons@k for tasks with the same number of rollouts. The arguments have one row per task."""
    tasks, count = answers.shape
    most = min(count, MOST_K)
    # Answers are numbered by the position of their first rollout.
    number = (answers[:, :, None] == answers[:, None, :]).argmax(axis=2)
    chosen = np.zeros((tasks, count, count), np.int64)
    np.put_along_axis(chosen, number[:, :, None], 1, axis=2)
    totals = chosen.sum(axis=1)
    after = totals[:, None, :] - chosen.cumsum(axis=1)
    task, position = np.nonzero(np.take_along_axis(solved, number, axis=1))
    own = number[task, position]
    lines = np.arange(len(task))
    own_after = after[task, position, own]
    sizes, tails = totals[task], after[task, position]
    sizes[lines, own] = 0
    order = np.argsort(-sizes, axis=1, kind="stable")
    ways = _ways(own_after, np.take_along_axis(sizes, order, axis=1), np.take_along_axis(tails, order, axis=1), most)
    sums = np.zeros((tasks, most))
    np.add.at(sums, task, ways)
    # Rounded, because sums beyond 2^53 are inexact and tasks with the same votes must have the same share.
    return np.round(sums / _binomials(count, most)[count, 1:], 12)


def _ways(own_after: Ints, sizes: Ints, tails: Ints, most: int) -> Floats:
    """Count the winning subsets of each size 1..most whose first rollout with the winning answer is given.

    `own_after` is the number of later rollouts with that answer; `sizes` contains the numbers of rollouts of the other
    answers, largest first, and `tails` how many of them come later.
    """
    choose = _binomials(sizes.shape[1], most)
    ways = np.zeros((len(own_after), most))
    for m in range(1, min(most, int(own_after.max(initial=-1)) + 1) + 1):
        (lines,) = np.nonzero(own_after >= m - 1)
        size, tail = sizes[lines], tails[lines]
        degree = most - m
        product = choose[np.where(size < m, size, 0).sum(axis=1), : degree + 1]
        for rank in range(int((size >= m).sum(axis=1).max(initial=0))):
            (rest,) = np.nonzero(size[:, rank] >= m)
            factors = choose[size[rest, rank], : m + 1].copy()
            factors[:, m:] = choose[tail[rest, rank], m : m + 1]
            product[rest] = _times(product[rest], factors)
        ways[lines, m - 1 :] += choose[own_after[lines], m - 1, None] * product
    return ways


def _times(polynomials: Floats, factors: Floats) -> Floats:
    """Multiply polynomials, one per row, and drop the powers above those of the first."""
    length = polynomials.shape[1]
    product = polynomials * factors[:, :1]
    for power in range(1, min(factors.shape[1], length)):
        product[:, power:] += polynomials[:, : length - power] * factors[:, power, None]
    return product


@cache
def _binomials(count: int, most: int) -> Floats:
    """Return C(n, k) for n up to `count` and k up to `most`."""
    return np.array([[float(comb(n, k)) for k in range(most + 1)] for n in range(count + 1)])

"""StepSummary: what is kept of the rollouts of one step, so that thousands of steps fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.estimators import clustered_mean
from rollyard.analysis.metrics.loader.columns import Floats
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.shares import share_of_tasks
from rollyard.analysis.metrics.task_pairing import BY_CONTENT, BY_PROMPT, SAME_INPUT, Side, side_by
from rollyard.analysis.metrics.training.row_numbers import COMPONENTS, LOG_PROB, RARE_TOKENS, TOKEN_ENTROPY

SOLVE_RATE, REWARD, ZERO_VARIANCE = "solve_rate", "reward", "zero_variance"
_TOKENS = (LOG_PROB, RARE_TOKENS, TOKEN_ENTROPY)
LENGTHS = ("output_tokens", "turns", "tool_calls")


@dataclass(frozen=True)
class StepSummary:
    """The figures of a step, and the results of its tasks."""

    rollouts: int
    """Number of measured rollouts."""
    figures: dict[str, Estimate]
    """Means with intervals clustered by task. Those that a report has are the report's."""
    varying: frozenset[str]
    """The figures whose values differ between rollouts of the same task."""
    sides: dict[str, Side]
    """The tasks by their keys: BY_CONTENT, BY_PROMPT and SAME_INPUT, as far as the rows have these."""
    input: str
    """`input_sha256` of the manifest; empty if there is none."""
    why_no_reward: str = ""
    """Why the step has no mean reward although rewards were measured."""


def step_summary(run: Run, numbers: Mapping[str, Floats]) -> StepSummary:
    """Summarise a run. `numbers`: further numbers of its measured rollouts, in the same order, NaN where missing."""
    profile, found = run.profile, dict[str, Estimate]()
    if profile.solved is not None:
        found[SOLVE_RATE] = profile.solved.rate
    if profile.rewards is not None and not profile.rewards.why_no_mean:
        found[REWARD] = profile.rewards.mean
    columns = {name: getattr(run.columns, name) for name in LENGTHS}
    for name, values in {**columns, **numbers}.items():
        if (estimate := _estimate(run, name, values)) is not None:
            found[name] = estimate
    if (share := _zero_variance(run)) is not None:
        found[ZERO_VARIANCE] = share
    sha = (profile.identity or {}).get("input_sha256")
    return StepSummary(
        rollouts=len(run.columns),
        figures=found,
        varying=frozenset(name for name, values in numbers.items() if name in found and _varies(run, values)),
        sides=dict(_sides(run)),
        input=sha if isinstance(sha, str) else "",
        why_no_reward=profile.rewards.why_no_mean if profile.rewards else "",
    )


def drawn_names(summaries: Mapping[int, StepSummary]) -> list[str]:
    """Return the figures worth a curve, in a fixed order: those that every report has, the parts of the reward, then
    other numbers of the verdict. Attributes of tasks, such as a seed, are no results: they are equal in all rollouts of
    a task, and their mean is equal in all steps.
    """
    known = dict.fromkeys(name for one in summaries.values() for name in one.figures)
    standard = [name for name in (SOLVE_RATE, REWARD, *LENGTHS, *_TOKENS, ZERO_VARIANCE) if name in known]
    parts = [name for name in known if name.startswith(f"{COMPONENTS}.")]
    varying = {name for one in summaries.values() for name in one.varying}
    same_tasks = len({one.input for one in summaries.values()}) == 1 and all(one.input for one in summaries.values())
    others = [name for name in known if name not in {*standard, *parts}]
    results = [name for name in others if name in varying or (same_tasks and _changes(name, summaries))]
    return [*standard[:2], *parts, *standard[2:], *results]


def _changes(name: str, summaries: Mapping[int, StepSummary]) -> bool:
    return len({one.figures[name].mean for one in summaries.values() if name in one.figures}) > 1


def _estimate(run: Run, name: str, values: Floats) -> Estimate | None:
    kept = ~np.isnan(values)
    if not kept.any():
        return None
    starts = np.flatnonzero(np.diff(run.columns.task[kept], prepend=-1))
    is_share = name == RARE_TOKENS or (name not in LENGTHS and bool(np.isin(values[kept], (0.0, 1.0)).all()))
    return clustered_mean(values[kept], starts, is_share=is_share)


def _zero_variance(run: Run) -> Estimate | None:
    """Return the share of the report's `zero_variance`, with its interval."""
    if (tasks := run.by_task) is None or not (tasks.measured > 1).any():
        return None
    flat = (tasks.min == tasks.max)[tasks.measured > 1]
    return share_of_tasks(int(flat.sum()), len(flat))


def _varies(run: Run, values: Floats) -> bool:
    kept = ~np.isnan(values)
    same_task = np.diff(run.columns.task[kept]) == 0
    return bool((np.diff(values[kept])[same_task] != 0).any())


def _sides(run: Run) -> Iterator[tuple[str, Side]]:
    for by in (BY_CONTENT, BY_PROMPT, SAME_INPUT):
        if (side := side_by(by, run)) is not None:
            yield by, side
            if by == BY_CONTENT:
                return  # the best key, so that the others need no memory

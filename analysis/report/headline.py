"""Builds the headline numbers of a run with their intervals and bounds."""

from __future__ import annotations

from rollyard.analysis.metrics.profile_records import Profile
from rollyard.analysis.report.dataset_sections import at_common_k, over_tasks
from rollyard.analysis.report.formatting import (
    NOTHING,
    coverage_sentence,
    interval,
    mark_partial,
    measured,
    percent,
    reward,
)
from rollyard.analysis.report.section import Section, Table


def headline(profile: Profile) -> Section:
    """Return the section with the headline numbers and their coverage."""
    covered = profile.coverage
    rows = [(name, mark_partial(value, covered), reach, measured(covered)) for name, value, reach in headlines(profile)]
    text = []
    if profile.models:
        text.append(f"Model: {', '.join(profile.models[:5])}. Agent: {', '.join(profile.agents[:5]) or 'unnamed'}.")
    text.append(coverage_sentence(covered))
    text += profile.notes
    if profile.solved is not None:
        text.append(f"Solved means: {profile.solved.rule}.")
    elif profile.rewards is not None:
        text.append(
            "It is undefined what counts as solved: the environment reports no success and rewards are not in 0..1. "
            "Set the minimum reward with --pass-threshold ..."
        )
    if profile.rewards is not None and profile.rewards.why_no_mean:
        text.append(f"No mean reward over all datasets: {profile.rewards.why_no_mean}.")
    return Section("Headline", text, [Table(("", "as measured", "95% interval", "coverage"), rows)])


def headlines(profile: Profile) -> list[tuple[str, str, str]]:
    """Return the headline numbers as (name, value, interval) tuples. A metric has the same name in every run."""
    solved, tasks = profile.solved, profile.tasks
    rewards = None if profile.rewards is None or profile.rewards.why_no_mean else profile.rewards
    found = [
        (
            "success rate",
            f"{percent(solved.rate.mean)} ({solved.rollouts:,} / {profile.coverage.measured:,})" if solved else NOTHING,
            interval(solved.rate, "percent") if solved else NOTHING,
        ),
        (
            "mean reward",
            reward(rewards.mean.mean) if rewards else NOTHING,
            interval(rewards.mean, "reward") if rewards else NOTHING,
        ),
        ("median reward", reward(rewards.median) if rewards else NOTHING, NOTHING),
    ]
    if tasks and len(tasks.pass_at) > 1:
        last = tasks.pass_at[-1]
        for at in (at_common_k(tasks.pass_at), last) if last.tasks < last.tasks_measured else (last,):
            if at is not None and at.k > 1:
                of = f"({over_tasks(at)})"
                found.append((f"pass@{at.k}", f"{percent(at.any.mean)} {of}", interval(at.any, "percent")))
                found.append((f"pass^{at.k}", f"{percent(at.every.mean)} {of}", interval(at.every, "percent")))
                if at.consensus is not None:
                    found.append(
                        (f"cons@{at.k}", f"{percent(at.consensus.mean)} {of}", interval(at.consensus, "percent"))
                    )
    if tasks and tasks.zero_variance.of:
        flat = tasks.zero_variance
        value = f"{percent(flat.tasks / flat.of)} ({flat.tasks:,} / {flat.of:,})"
        found.append(("tasks without variance", value, interval(flat.share, "percent")))
    return found


def bounds(profile: Profile) -> Section:
    """Return the section with the bounds of the headline numbers. It is empty unless rollouts are missing."""
    covered, solved, rewards = profile.coverage, profile.solved, profile.rewards
    if not covered.missing or rewards is None:
        return Section("Bounds")
    head = ("", "as measured", "missing as zero", "lowest", "highest")
    rows = []
    if not rewards.why_no_mean:
        rows.append(("mean reward", *map(reward, (rewards.mean.mean, *_bounds(rewards.bounds.model_dump())))))
    if solved is not None:
        rows.insert(0, ("success rate", *map(percent, (solved.rate.mean, *_bounds(solved.bounds.model_dump())))))
    text = [
        f"{covered.missing:,} of {covered.expected:,} rollouts are missing. Lowest and highest assume that each of "
        "them is as bad as the worst or as good as the best measured one (for the success rate: none or all solved)."
    ]
    return Section("Bounds", text, [Table(head, rows)])


def _bounds(found: dict[str, float | None]) -> tuple[float | None, ...]:
    return found["missing_as_zero"], found["lowest"], found["highest"]

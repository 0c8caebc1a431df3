"""Builds the section on the datasets of a mixture, which precedes all numbers that combine datasets."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.charts.labels import pluralize
from rollyard.analysis.metrics.profile_records import DatasetFigures, PassAtK, Profile
from rollyard.analysis.report.formatting import NOTHING, interval, percent, reward
from rollyard.analysis.report.section import Section, Table

_ROWS = 100


def datasets(profile: Profile) -> Section:
    """Return the section with each dataset's success rate and reward, and pass@k and cons@k at the largest k for which
    all of its tasks have enough rollouts.
    """
    found = profile.by_dataset
    if not found:
        return Section("Datasets")
    text = ["Each dataset separately, with 95% intervals clustered by task."]
    if profile.rewards is not None and profile.rewards.why_no_mean:
        text.append(f"There is no mean reward over all datasets: {profile.rewards.why_no_mean}.")
    if profile.solved is None:
        silent = ", ".join(shown(one) for one in found if one.rate is None)
        text.append(f"There is no success rate over all datasets: it is undefined what counts as solved in {silent}.")
    head = (
        "dataset",
        "rollouts",
        "tasks",
        "success rate",
        "95% interval",
        "mean reward",
        "95% interval",
        "pass@k",
        "cons@k",
    )
    rows = [
        (
            shown(one),
            f"{one.rollouts:,}",
            f"{one.tasks:,}" if one.tasks else NOTHING,
            NOTHING if one.rate is None else f"{percent(one.rate.mean)} ({one.solved:,} / {one.rollouts:,})",
            interval(one.rate, "percent"),
            reward(one.reward.mean),
            interval(one.reward, "reward"),
            *_at_common_k(one),
        )
        for one in found[:_ROWS]
    ]
    caption = f"The first {_ROWS} of {len(found):,}, all in profile.json" if len(found) > _ROWS else ""
    return Section("Datasets", text, [Table(head, rows, caption)])


def pass_table(found: Sequence[DatasetFigures]) -> list[Table]:
    """Return a table of pass@k, pass^k and cons@k by dataset and k. cons@k is omitted if no dataset has it."""
    voted = has_consensus([at for one in found for at in one.pass_at])
    head: tuple[str, ...] = ("dataset, k", "pass@k", "95% interval", "pass^k", "95% interval")
    head += ("cons@k", "95% interval", "tasks") if voted else ("tasks",)
    rows = [
        (
            f"{shown(one)}, {at.k}",
            *(percent(at.any.mean), interval(at.any, "percent")),
            *(percent(at.every.mean), interval(at.every, "percent")),
            *(consensus_cells(at) if voted else ()),
            over(at),
        )
        for one in found[:_ROWS]
        for at in one.pass_at
        if at.k & (at.k - 1) == 0 or at is one.pass_at[-1]
    ]
    return [Table(head, rows, "By dataset")] if rows else []


def has_consensus(found: Sequence[PassAtK]) -> bool:
    """Return whether cons@k is defined for some k."""
    return any(at.consensus is not None for at in found)


def consensus_cells(at: PassAtK) -> tuple[str, str]:
    """Return cons@k and its interval."""
    return percent(None if at.consensus is None else at.consensus.mean), interval(at.consensus, "percent")


def over_tasks(at: PassAtK) -> str:
    """Return `over 12 tasks`, or `over 3 of 12 tasks` if the others have fewer than k rollouts."""
    return f"over {pluralize(at.tasks, 'task')}" if at.tasks == at.tasks_measured else f"over {over(at)} tasks"


def over(at: PassAtK) -> str:
    """Return `12`, or `3 of 12` if the others have fewer than k rollouts."""
    return f"{at.tasks:,}" if at.tasks == at.tasks_measured else f"{at.tasks:,} of {at.tasks_measured:,}"


def shown(one: DatasetFigures) -> str:
    return one.name or "(no dataset)"


def at_common_k(found: Sequence[PassAtK]) -> PassAtK | None:
    """Return the entry with the largest k for which every measured task has enough rollouts, if any."""
    return next((at for at in reversed(found) if at.tasks == at.tasks_measured), None)


def _at_common_k(one: DatasetFigures) -> tuple[str, str]:
    at = at_common_k(one.pass_at)
    if at is None or at.k < 2:
        return NOTHING, NOTHING
    consensus = NOTHING if at.consensus is None else f"cons@{at.k} {percent(at.consensus.mean)}"
    return f"pass@{at.k} {percent(at.any.mean)}", consensus

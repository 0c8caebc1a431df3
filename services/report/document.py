"""Turns the report's records into a document: a title, the sections, and a description of the methods."""

from __future__ import annotations

from rollyard.services.metrics.comparison import Difference
from rollyard.services.metrics.profile_records import Profile
from rollyard.services.report import run_comparison, run_sections
from rollyard.services.report.section import Section
from rollyard.services.types import Record


class Report(Record):
    """The contents of `profile.json`."""

    version: str
    """The version of Rollyard that wrote the file."""
    runs: list[Profile]
    differences: list[Difference]
    """The difference between each later run and the first."""


METHOD = (
    "Interval: mean ± t(tasks − 1) · standard error, clustered by task, because repeats of one task are not "
    "independent samples (Miller 2024, arXiv:2411.00640). It is valid for unequal numbers of repeats.",
    "If every task has the same value, there is no standard error. A share of 0 or 100% then has the exact one-sided "
    "95% bound from the number of tasks, 1 − 0.05^(1/tasks), about 3/tasks (Hanley & Lippman-Hand 1983); any other "
    "share has Wilson's interval (1927) with each task as one trial; a mean reward has none.",
    "pass@k = 1 − C(n−c, k) / C(n, k) with c of n rollouts solved (Chen et al. 2021, arXiv:2107.03374); pass^k = "
    "C(c, k) / C(n, k) (Yao et al. 2024, arXiv:2406.12045); means over tasks.",
    "cons@k = the share of all subsets of k rollouts of a task whose most common extracted_answer is right, counted "
    "exactly; the answer that occurs first wins a tie, and rollouts without an answer vote for one common answer (the "
    "definition of NeMo-RL; the idea is self-consistency, Wang et al. 2022, arXiv:2203.11171). Mean over tasks.",
    "Tool calls: the items of type function_call in response.output; their correlation with the reward is Pearson's.",
    "Turns: the model calls in timings; without them, the uninterrupted sequences of model items in response.output.",
    "Rollouts without a finite reward and masked rollouts (mask_sample) are failures and excluded from all means.",
)


def document(report: Report) -> tuple[str, list[Section]]:
    """Return the title and the sections. With several runs, the comparison comes first, followed by one section per
    run.
    """
    runs = report.runs
    method = Section("How the numbers are computed", list(METHOD))
    if len(runs) == 1:
        return f"Reward profile: {runs[0].name}", [*run_sections.sections(runs[0]), method]
    each = [Section(run.name, [f"File: {run.path}"], parts=run_sections.sections(run)) for run in runs]
    title = f"Reward profiles: {', '.join(run.name for run in runs)}"
    return title, [*run_comparison.sections(runs, report.differences), *each, method]

"""Turns the report's records into a document: a title, the sections, and a description of the methods."""

from __future__ import annotations

from pydantic import Field

from rollyard.analysis.clusters.cluster_records import ClusterReport
from rollyard.analysis.findings.finding import Findings
from rollyard.analysis.metrics.comparison import Difference
from rollyard.analysis.metrics.profile_records import Profile
from rollyard.analysis.metrics.training.series_profile import SeriesProfile
from rollyard.analysis.report import run_comparison, run_sections, series_sections
from rollyard.analysis.report.cluster_sections import changes_section, clusters_section
from rollyard.analysis.report.finding_sections import compared_findings, findings_section
from rollyard.analysis.report.section import Section
from rollyard.analysis.report.viewer_links import ViewerLinks
from rollyard.records.types import Record

SCHEMA_VERSION = 1
"""Version of the format of `profile.json`, described by `schemas/profile-N.json`. It is incremented when a field is
removed, renamed or gets another meaning; new fields may be added at any time.
"""


class Report(Record):
    """The contents of `profile.json`."""

    version: str
    """The version of Rollyard that wrote the file."""
    schema_version: int = SCHEMA_VERSION
    runs: list[Profile]
    differences: list[Difference]
    """The difference between each later run and the first."""
    findings: list[Findings | None] = Field(default_factory=list)
    """What stands out in each of the runs, in their order; None for a run whose findings were not computed."""
    clusters: ClusterReport = Field(default_factory=ClusterReport)
    """The failed rollouts of each run, grouped by what they do wrong; empty without `--clusters`."""
    series: SeriesProfile | None = None
    """The files as steps of a series; `runs` are then those of the first and the last step."""


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
    "Rollouts without a finite reward and masked ones (mask_sample, failure_kind) are failures and not in the means.",
)


def document(report: Report, viewer: ViewerLinks | str = "") -> tuple[str, list[Section]]:
    """Return the title and the sections. With several runs, the comparison comes first, followed by the findings of
    all of them and a folded section for each run. A series of steps comes before the comparison. `viewer`: what to link
    to; an address if the viewer shows the same files in the same order.
    """
    links = ViewerLinks(viewer) if isinstance(viewer, str) else viewer
    runs = report.runs
    several = len(runs) > 1
    method = Section("How the numbers are computed", list(METHOD), is_folded=several)
    if not several:
        return f"Reward profile: {runs[0].name}", [*_run_sections(report, 0, links), method]
    parts = [
        Section(run.name, [f"File: {run.path}"], parts=_run_sections(report, number, links), is_folded=True)
        for number, run in enumerate(runs)
    ]
    title = f"Reward profiles: {', '.join(run.name for run in runs)}"
    series: list[Section] = []
    if report.series is not None:
        title = f"Series of {len(report.series.steps):,} steps, from {runs[0].name} to {runs[-1].name}"
        series = series_sections.sections(report.series)
    comparison = run_comparison.sections(runs, report.differences, links)
    found = compared_findings(runs, report.findings, links)
    changes = [changes_section(one) for one in report.clusters.changes]
    return title, [*series, *comparison, *found, *changes, *parts, method]


def _run_sections(report: Report, number: int, links: ViewerLinks) -> list[Section]:
    found = report.findings[number] if number < len(report.findings) else None
    first = [] if found is None else [findings_section(found, number, links)]
    clusters = report.clusters.runs[number : number + 1]
    second = [clusters_section(one, number, links) for one in clusters]
    return [*first, *second, *run_sections.sections(report.runs[number])]

"""The report's sections about clusters of failed rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.analysis.clusters.cluster_records import ClusterReport
from rollyard.analysis.clusters.compare import changes_of
from rollyard.analysis.clusters.find_clusters import clusters_of
from rollyard.analysis.metrics.comparison import difference
from rollyard.analysis.report.document import Report
from rollyard.analysis.report.html import html
from rollyard.analysis.report.markdown import markdown
from tests.support.failing_rows import KINDS, recorded
from tests.support.rollout_files import load_run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder: Path = tmp_path_factory.mktemp("clusters")
    first = load_run(folder, recorded(list(KINDS), tasks=40, repeats=8), "first")
    second = load_run(folder, recorded(["give-up", "loop"], tasks=40, repeats=8, seed=1), "second")
    clusters = ClusterReport(
        runs=[clusters_of(run).record for run in (first, second)], changes=[changes_of(first, second).record]
    )
    profiles = [first.profile, second.profile]
    return Report(version="1", runs=profiles, differences=[difference(first, second)], clusters=clusters)


def single(report: Report) -> Report:
    """The report of the first run alone."""
    clusters = ClusterReport(runs=report.clusters.runs[:1])
    return report.model_copy(update={"runs": report.runs[:1], "differences": [], "clusters": clusters})


def test_the_table_has_all_clusters_with_their_figures(report: Report) -> None:
    text = markdown(single(report))
    assert "## Clusters of failures" in text
    for one in report.clusters.runs[0].clusters:
        assert f"| {one.count:,} | {one.share.mean:.1%} |" in text


def test_many_clusters_are_folded_in_html(report: Report) -> None:
    assert html(single(report)).count("<details>") == len(report.clusters.runs[0].clusters)


def test_few_clusters_are_not_folded(report: Report) -> None:
    clusters = ClusterReport(runs=report.clusters.runs[1:])
    assert "<details>" not in html(single(report).model_copy(update={"clusters": clusters}))


def test_clusters_link_to_the_viewer(report: Report) -> None:
    page, first = html(single(report), "http://127.0.0.1:8080"), report.clusters.runs[0].clusters[0]
    example = first.typical[0]
    assert f'href="http://127.0.0.1:8080/#/runs/0?cluster={first.key}"' in page
    assert f'href="http://127.0.0.1:8080/#/runs/0/tasks/{example.task}/{example.repeat}"' in page


def test_the_comparison_says_what_went_away(report: Report) -> None:
    text = markdown(report)
    assert "## Clusters of failures: second against first" in text
    gone = [one for one in report.clusters.changes[0].changes if one.state == "gone"]
    assert gone
    assert text.count("| gone |") == len(gone)


def test_without_failures_the_section_says_so(tmp_path: Path) -> None:
    run = load_run(tmp_path, recorded(["loop"], tasks=5, repeats=2, solve=1.0))
    clusters = ClusterReport(runs=[clusters_of(run).record])
    text = markdown(Report(version="1", runs=[run.profile], differences=[], clusters=clusters))
    assert "No rollout failed." in text

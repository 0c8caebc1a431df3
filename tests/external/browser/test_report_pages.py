"""Reports in a browser: two runs fit on three screens, and a report prints in full."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from rollyard.analysis.findings.find import findings_of
from rollyard.analysis.metrics.comparison import difference
from rollyard.analysis.metrics.load import load
from rollyard.analysis.report.document import Report, html
from rollyard.records.search_path import INSTALLED
from tests.external.browser.browser_tab import DEADLINE_MS
from tests.external.browser.viewer import viewing
from tests.support.commands import in_this_process
from tests.support.rollout_files import random_rows, write, write_manifest

SCREEN = {"width": 1440, "height": 900}
MOST_SCREENS = 3
HUNT = INSTALLED / "examples" / "hunt" / "recorded"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport=SCREEN, color_scheme="dark")
    context.set_default_timeout(DEADLINE_MS)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """200 tasks with 8 rollouts each, before and after a training."""
    folder = tmp_path_factory.mktemp("runs")
    paths = [
        write(folder / f"{name}.jsonl", random_rows(200, 8, seed)) for seed, name in enumerate(("base", "trained"))
    ]
    for path in paths:
        write_manifest(path, 200, 8)
    return paths


def report_of(*paths: Path) -> str:
    runs = [load(path) for path in paths]
    profiles, findings = [run.profile for run in runs], [findings_of(run) for run in runs]
    return html(
        Report(
            version="1",
            runs=profiles,
            differences=[difference(runs[0], other) for other in runs[1:]],
            findings=findings,
        )
    )


def assert_fits(page: Page) -> None:
    height, width = (page.evaluate(f"document.documentElement.scroll{side}") for side in ("Height", "Width"))
    assert height <= MOST_SCREENS * SCREEN["height"]
    assert width <= SCREEN["width"]


def test_the_report_on_two_runs_fits_on_three_screens(page: Page, two_runs: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "profile.html"
    path.write_text(report_of(*two_runs))
    page.goto(path.as_uri())
    assert_fits(page)


def test_the_page_of_ng_compare_fits_on_three_screens(
    page: Page, two_runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = in_this_process("ng_compare", *map(str, two_runs), f"+output_dir={tmp_path}", capsys=capsys)
    assert done.status == 0, done.err
    page.goto((tmp_path / "comparison.html").as_uri())
    assert_fits(page)


def test_the_viewers_comparison_of_two_runs_fits_on_three_screens(
    page: Page, two_runs: list[Path], tmp_path: Path
) -> None:
    with viewing(two_runs, tmp_path) as url:
        page.goto(f"{url}#/compare/0/1")
        page.locator("tbody tr").first.wait_for()
        assert_fits(page)


def test_the_report_prints_as_pages_of_a_pdf(page: Page, tmp_path: Path) -> None:
    assert 2 <= printed_pages(page, report_of(HUNT / "late.jsonl"), tmp_path) <= 8


def printed_pages(page: Page, text: str, folder: Path) -> int:
    path = folder / "profile.html"
    path.write_text(text)
    page.goto(path.as_uri())
    pdf = page.pdf(format="A4", prefer_css_page_size=True)
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf))

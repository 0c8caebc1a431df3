"""Reports in a browser: two runs fit on three screens, and a report prints in full."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from rollyard.analysis.findings.find import findings_of
from rollyard.analysis.metrics.comparison import difference
from rollyard.analysis.metrics.load import load
from rollyard.analysis.report.document import Report, html
from rollyard.records.data_files import INSTALLED
from tests.external.browser.browser_tab import DEADLINE_MS
from tests.external.browser.viewer import Started
from tests.support.commands import in_this_process
from tests.support.rollout_files import random_rows, write, write_manifest

SCREEN = {"width": 1440, "height": 900}
MOST_SCREENS = 3
HUNT = INSTALLED / "examples" / "hunt" / "recorded"


_STREAM = re.compile(rb"stream\r?\n(.*?)endstream", re.DOTALL)
_PAGE = re.compile(rb"/Type\s*/Page\b(?!s)")


def page_count(pdf: bytes) -> int:
    """Return the number of page objects. Firefox compresses them, Chromium does not."""
    return sum(len(_PAGE.findall(part)) for part in (pdf, *_decompressed(pdf)))


def _decompressed(pdf: bytes) -> list[bytes]:
    found = []
    for stream in _STREAM.findall(pdf):
        try:
            found.append(zlib.decompressobj().decompress(stream))
        except zlib.error:
            continue  # a stream with another filter, such as an image
    return found


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


def report_of(path: Path, *runs: Path) -> str:
    """The address of a report on these runs, which is written to `path`."""
    loaded = [load(run) for run in runs]
    differences = [difference(loaded[0], other) for other in loaded[1:]]
    profiles, findings = [run.profile for run in loaded], [findings_of(run) for run in loaded]
    path.write_text(html(Report(version="1", runs=profiles, differences=differences, findings=findings)))
    return path.as_uri()


def assert_fits(page: Page) -> None:
    height, width = (page.evaluate(f"document.documentElement.scroll{side}") for side in ("Height", "Width"))
    assert height <= MOST_SCREENS * SCREEN["height"]
    assert width <= SCREEN["width"]


def test_the_report_on_two_runs_fits_on_three_screens(page: Page, two_runs: list[Path], tmp_path: Path) -> None:
    page.goto(report_of(tmp_path / "profile.html", *two_runs))
    assert_fits(page)


def test_the_page_of_ng_compare_fits_on_three_screens(
    page: Page, two_runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = in_this_process("ng_compare", *map(str, two_runs), f"+output_dir={tmp_path}", capsys=capsys)
    assert done.status == 0, done.err
    page.goto((tmp_path / "comparison.html").as_uri())
    assert_fits(page)


def test_the_viewers_comparison_of_two_runs_fits_on_three_screens(
    viewer: Started, page: Page, two_runs: list[Path]
) -> None:
    page.goto(f"{viewer(*two_runs)}#/compare/0/1")
    page.locator("tbody tr").first.wait_for()
    assert_fits(page)


def test_the_report_prints_as_pages_of_a_pdf(page: Page, tmp_path: Path) -> None:
    page.goto(report_of(tmp_path / "profile.html", HUNT / "late.jsonl"))
    assert 2 <= page_count(page.pdf(format="A4", prefer_css_page_size=True)) <= 8

"""The findings of the viewer are those of the report, also for files that grow, are replaced, or are large."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.analysis.findings.detector import Finding
from rollyard.analysis.findings.find import findings_of, read_signs
from rollyard.analysis.metrics.load import load
from rollyard.analysis.viewer.findings import ReadSoFar, RunFindings
from rollyard.analysis.viewer.library import FileIndex
from rollyard.records.types import Json
from tests.support.finding_rows import played
from tests.support.reading_pools import read_in_threads
from tests.support.rollout_files import write, write_failures
from tests.support.waiting import eventually
from tests.unit.analysis.viewer.opened_runs import get_json, open_index, viewer_client

EXPLOIT = "several_answers_rewarded"
BOXES = r"\boxed{1} or \boxed{2} or \boxed{3}"


def rows(start: int, stop: int) -> list[Json]:
    """Rollouts of which every third lists its answers."""
    says = [r"\boxed{2}" if task % 3 else BOXES for task in range(start, stop)]
    return [played(task, says=text, success=True, expected_answer="2") for task, text in enumerate(says, start)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "x.jsonl", rows(0, 30))


@pytest.fixture
def files(path: Path) -> FileIndex:
    return open_index(path)


def examined(files: FileIndex) -> list[Finding]:
    """The findings once the page would no longer ask again."""
    findings = files.runs[0].findings
    eventually("the file is examined", lambda: findings.view().examined == 1.0)
    return findings.view().findings


def test_the_findings_are_those_of_the_report(files: FileIndex, path: Path) -> None:
    report = findings_of(load(path))
    assert report is not None and examined(files) == report.findings
    assert files.runs[0].findings.view().rollouts == 30


def test_a_finding_is_missed_only_after_the_whole_file_was_examined(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.jsonl", [])
    nothing_read = ReadSoFar(generation=0, end=0, size=1000, attempts=0)
    run = load(path)
    findings = RunFindings(path, lambda: nothing_read, lambda end: run)
    assert findings.named(EXPLOIT) == (None, 0.0)


def test_rollouts_that_are_appended_are_examined(files: FileIndex, path: Path) -> None:
    before = examined(files)
    write(path, rows(0, 60))
    files.read_through()
    assert (before[0].count, examined(files)[0].count) == (10, 20)


def test_a_replaced_file_is_examined_anew(files: FileIndex, path: Path) -> None:
    examined(files)
    write(path, rows(1, 3))
    files.read_through()
    assert EXPLOIT not in {one.kind for one in examined(files)}


def test_a_failed_attempt_that_is_recorded_later_is_reported(files: FileIndex, path: Path) -> None:
    examined(files)
    write_failures(path, [(40, 0, "model_timeout")])
    files.read_through()
    assert "timeouts" in {one.kind for one in examined(files)}


async def test_the_list_has_the_rollouts_of_a_finding(files: FileIndex) -> None:
    examined(files)
    client = viewer_client(files)
    page = await get_json(client, f"/api/runs/0/rollouts?finding={EXPLOIT}&min_reward=0")
    assert ([line["task"] for line in page["lines"]], page["searched"]) == (list(range(0, 30, 3)), 1.0)
    await get_json(client, "/api/runs/0/rollouts?finding=nothing", 404)


def test_several_processes_read_the_same_signs_as_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_threads(monkeypatch)
    size = path.stat().st_size
    one, several = read_signs(path, size), read_signs(path, size, workers=2, part=size // 5)
    for name in ("offset", "flags", "expected", "extracted", "length"):
        assert getattr(one, name).tolist() == getattr(several, name).tolist()

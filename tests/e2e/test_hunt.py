"""examples/hunt: the findings name the exploited verifier first, in the recorded files."""

from __future__ import annotations

import re
from pathlib import Path

from rollyard.analysis.findings.detector import Category, Finding
from rollyard.analysis.findings.find import findings_of
from rollyard.analysis.metrics.load import load
from rollyard.records.data_files import INSTALLED
from tests.support.commands import Command
from tests.support.doc_pages import commands

HUNT = INSTALLED / "examples" / "hunt"
RECORDED = HUNT / "recorded"


def ranked(path: Path) -> list[Finding]:
    findings = findings_of(load(path))
    assert findings is not None
    return findings.findings


def test_the_recorded_exploit_is_named_first() -> None:
    first = ranked(RECORDED / "late.jsonl")[0]
    assert (first.kind, first.category) == ("several_answers_rewarded", Category.EXPLOIT)
    assert first.count >= 20 and len(first.examples) == 3


def test_the_policy_before_the_exploit_is_not_accused() -> None:
    assert not [one.kind for one in ranked(RECORDED / "early.jsonl") if one.category is Category.EXPLOIT]


def test_recordings_are_small_and_name_no_folder_of_a_machine() -> None:
    files = list(RECORDED.iterdir())
    assert 0 < sum(file.stat().st_size for file in files) < 300_000
    assert not [file.name for file in files if b"/home/" in file.read_bytes() or b"/tmp/" in file.read_bytes()]


README = HUNT / "README.md"


def test_the_commands_of_the_readme_report_what_it_quotes(here: Path, ng: Command) -> None:
    (here / "examples").symlink_to(INSTALLED / "examples")
    profile, viewer = commands(README.read_text())
    assert (profile[0], viewer[0]) == ("ng_reward_profile", "ng_viewer")
    done = ng(*profile)
    assert done.status == 0, done.err
    [quote] = re.findall(r"^> (.*?)\n\n", README.read_text(), re.DOTALL | re.MULTILINE)
    assert quote.replace("\n> ", " ") in done.out
    shown = ng(*viewer, f"+export={here / 'page.html'}")
    assert shown.status == 0, shown.err

"""The addresses to which a report links, and that they show what the report counts."""

from __future__ import annotations

import re
from pathlib import Path

from rollyard.analysis.report.formatting import ViewerLinks
from rollyard.cli.reward_profile import run
from tests.support.rollout_files import grid, write

BASE = "http://127.0.0.1:8080"


def links(folder: Path, *options: str) -> set[str]:
    run([*options, f"+viewer={BASE}", f"+output_dir={folder}"])
    return set(re.findall(rf"\(<{BASE}/#([^>]*)>\)", next(folder.glob("profile*.md")).read_text()))


def test_in_a_series_links_name_the_files_by_their_place_in_the_command_not_by_their_step(tmp_path: Path) -> None:
    for step, counts in ((25, [2, 2]), (10, [1, 1]), (0, [0, 0])):
        write(tmp_path / f"step_{step}.jsonl", grid(counts, 2))
    names = ",".join(str(tmp_path / f"step_{step}.jsonl") for step in (25, 10, 0))
    found = links(tmp_path / "out", f"+jsonl_fpath=[{names}]", "+series=true")
    assert "/compare/2/0" in found
    assert {link for link in found if link.endswith("/findings")} == {"/runs/2/findings", "/runs/0/findings"}
    assert "/runs/0/findings/no_variance" in found and not any(link.startswith("/runs/1") for link in found)


def test_a_report_on_an_expression_does_not_link_to_the_findings_of_all_rollouts(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([2] * 4, 2))
    assert "/runs/0/findings/no_variance" in links(tmp_path / "all", f"+jsonl_fpath=[{path}]")
    assert not [
        link for link in links(tmp_path / "some", f"+jsonl_fpath=[{path}]", "+where=task > 1") if "find" in link
    ]


def test_the_conditions_of_a_report_are_part_of_its_links() -> None:
    pages = ViewerLinks(f"{BASE}/", where="task > 1")
    assert pages.finding(0, "loop", {"end": "max_steps"}) == f"{BASE}/#/runs/0?end=max_steps&where=task+%3E+1"
    assert pages.finding(0, "x", {"where": "turns > 2"}).endswith("?where=%28task+%3E+1%29+and+%28turns+%3E+2%29")
    assert pages.comparison(0, 1) == ""

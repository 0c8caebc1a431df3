"""Labels, verdicts and notes: with the keyboard alone, as filters and marks, on their own page, read only, exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from rollyard.analysis.metrics.row_notes import notes_of_rows
from rollyard.records.note_records import Override, RolloutNotes
from rollyard.records.rollout_file import Rollouts
from tests.external.browser.accessibility import check_accessible
from tests.external.browser.browser_tab import Open, Tab
from tests.external.browser.viewer import Started, exported
from tests.support.rollout_files import write
from tests.unit.records.note_rows import record, rows, write_notes

ROWS = "table.wide tbody tr"
ROLLOUTS = rows(12, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """36 rollouts: of each of 12 tasks, the first of three is solved."""
    return write(tmp_path / "x.jsonl", ROLLOUTS)


@pytest.fixture
def at(viewer: Started, path: Path) -> str:
    """The address of a viewer of ann. Tests name it before `open_tab`, so that tabs are given back before it ends."""
    return viewer(path, more=["+author=ann"])


def notes_at(path: Path, task: int, repeat: int) -> RolloutNotes:
    """What the file says about a rollout."""
    rows = Rollouts(path).with_offsets()
    places = {(row["_ng_task_index"], row["_ng_rollout_index"]): offset for offset, row in rows}
    return notes_of_rows(path).get(places[task, repeat], RolloutNotes())


def type_keys(tab: Tab, *keys: str) -> None:
    """Press keys; of more than one letter, those that have no name are typed."""
    for key in keys:
        if " " in key or key in ("loop", "0.5"):
            tab.page.keyboard.type(key)
        else:
            tab.page.keyboard.press(key)


def says(tab: Tab, text: str) -> None:
    expect(tab.find(".notemessage")).to_have_text(text)


def test_a_person_labels_rollouts_with_the_keyboard_alone(path: Path, at: str, open_tab: Open) -> None:
    tab = open_tab("#/runs/0?where=task+%3C+2", at)
    type_keys(tab, "j", "Enter")
    for number in range(6):
        task, repeat = divmod(number, 3)
        expect(tab.find("h1")).to_have_text(f"Task {task} repeat {repeat}")
        expect(tab.find(".notespanel")).to_be_visible()
        expect(tab.find(".notespanel .used button")).to_have_count(1 if number else 0)
        expect(tab.find("main .stale")).to_have_count(0)
        type_keys(tab, *(["c"] if number == 3 else ["1"] if number else ["l", "loop", "Enter"]))
        says(tab, "Verdict: correct" if number == 3 else "Label loop added")
        tab.settled()  # so that the neighbours of the present rollout are known
        type_keys(tab, "]")
    found = [notes_at(path, *divmod(number, 3)) for number in range(6)]
    labels = [(one.labels, one.override and one.override.verdict) for one in found]
    assert labels == [*[(["loop"], None)] * 3, ([], "correct"), *[(["loop"], None)] * 2]


def test_a_verdict_has_a_reason_and_can_be_undone(path: Path, at: str, open_tab: Open) -> None:
    tab = open_tab("#/runs/0/tasks/4/1", at)
    type_keys(tab, "x")
    says(tab, "Verdict: wrong")
    type_keys(tab, "v", "0.5", "Tab", "half of it", "Enter")
    says(tab, "Verdict: reward 0.5")
    expect(tab.find(".notespanel li")).to_have_text(re.compile(r"reward 0\.5\s+ann\s+half of it"))
    override = notes_at(path, 4, 1).override
    assert isinstance(override, Override) and (override.verdict, override.reason) == (0.5, "half of it")
    type_keys(tab, "z")
    expect(tab.find(".notespanel li .mark")).to_have_text("wrong")
    type_keys(tab, "z")
    expect(tab.find(".notespanel li")).to_have_count(0)
    type_keys(tab, "z")
    says(tab, "Nothing to undo: this tab has written nothing.")


def test_the_selected_row_of_the_list_is_labelled_and_marked(path: Path, at: str, open_tab: Open) -> None:
    tab = open_tab("#/runs/0", at)
    type_keys(tab, "j", "j", "l", "loop", "Enter")
    says(tab, "Label loop added")
    expect(tab.find(f"{ROWS}:nth-child(2) .mark")).to_have_text("loop")
    type_keys(tab, "j", "x", "j", "w", "look at this", "Enter")
    expect(tab.find(f"{ROWS}:nth-child(3) .mark")).to_have_text("wrong")
    expect(tab.find(f"{ROWS}:nth-child(4) .mark")).to_have_text("note")
    assert [one.text for one in notes_at(path, 1, 0).texts] == ["look at this"]


def test_what_somebody_else_writes_appears_without_a_reload(path: Path, at: str, open_tab: Open) -> None:
    tab = open_tab("#/runs/0/tasks/2/0", at)
    write_notes(path, record(ROLLOUTS[6], "note", "bob", text="see line 3"))
    expect(tab.find(".notespanel .written")).to_contain_text("see line 3")
    tab.go("#/runs/0?task=2")
    expect(tab.find("tbody .marks").first).to_have_text("note")


def test_a_read_only_viewer_shows_notes_and_says_why_it_writes_none(
    viewer: Started, open_tab: Open, path: Path
) -> None:
    write_notes(path, record(ROLLOUTS[0], "label", label="loop"))
    tab = open_tab("#/runs/0/tasks/0/0", viewer(path, more=["+read_only=true"]))
    expect(tab.find(".notespanel .mark")).to_have_text("loop")
    type_keys(tab, "c")
    expect(tab.find(".notemessage")).to_contain_text("--read-only")
    expect(tab.find(".notespanel button")).to_have_count(0)
    assert notes_at(path, 0, 0).override is None


def test_a_file_that_cannot_be_written_is_a_message_in_the_page(path: Path, at: str, open_tab: Open) -> None:
    path.with_name("x_notes.jsonl").mkdir()
    tab = open_tab("#/runs/0/tasks/0/0", at)
    expect(tab.find(".notespanel")).to_contain_text("x_notes.jsonl cannot be written")


def test_an_exported_page_has_the_notes_and_cannot_change_them(open_tab: Open, path: Path) -> None:
    write_notes(path, record(ROLLOUTS[0], "label", label="loop"), record(ROLLOUTS[0], "override", verdict="wrong"))
    page = exported([path], path.with_name("page.html")).as_uri()
    tab = open_tab("#/runs/0", page)
    expect(tab.find(f"{ROWS}:nth-child(1) .mark")).to_have_text(["wrong", "loop"])
    tab.go("#/runs/0/tasks/0/0")
    expect(tab.find(".notespanel li")).to_have_count(2)
    expect(tab.find(".notespanel button")).to_have_count(0)
    tab.go("#/runs/0/notes")
    expect(tab.find("section.block table").first).to_contain_text("loop")


def test_axe_finds_nothing_on_the_pages_with_notes(path: Path, at: str, open_tab: Open) -> None:
    for author in ("ann", "bob"):
        write_notes(
            path,
            record(ROLLOUTS[0], "label", author, label="loop"),
            record(ROLLOUTS[0], "override", author, verdict="wrong", reason="guessed"),
            record(ROLLOUTS[1], "override", author, verdict="correct"),
            record(ROLLOUTS[0], "note", author, text="see line 3"),
        )

    def open_at(place: str, **options: Any) -> Tab:
        return open_tab(place, at, **options)

    for place, *keys in (["#/runs/0/notes"], ["#/runs/0/tasks/0/0", "l"], ["#/runs/0"]):
        check_accessible(open_at, place, *keys)


def test_a_note_that_cannot_be_saved_is_not_lost(path: Path, at: str, open_tab: Open) -> None:
    tab = open_tab("#/runs/0/tasks/2/1", at, new=True)
    tab.page.route("**/api/runs/0/notes", lambda route: route.abort())
    type_keys(tab, "w", "a long thought", "Enter")
    expect(tab.find("dialog.annotate [role=alert]")).to_contain_text("This was not saved.")
    expect(tab.find("dialog.annotate textarea")).to_have_value("a long thought")
    tab.page.unroute("**/api/runs/0/notes")
    tab.problems[:] = [problem for problem in tab.problems if "ERR_FAILED" not in problem]
    tab.find("dialog.annotate").get_by_role("button", name="Save").click()
    says(tab, "Note saved")
    assert [note.text for note in notes_at(path, 2, 1).texts] == ["a long thought"]

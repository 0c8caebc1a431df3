"""What holds on every page: keys, help, themes, small terminals, terminals without colours."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.binding import Binding

from rollyard.analysis.browse.app import BrowseApp
from rollyard.analysis.browse.blocks.block_view import BlockView
from rollyard.analysis.browse.findings.findings_screen import FindingsScreen
from rollyard.analysis.browse.keys import EVERYWHERE, FINDINGS, LIST, PAGES, ROLLOUT, Key
from rollyard.analysis.browse.list.list_screen import ListScreen
from rollyard.analysis.browse.list.rollout_table import RolloutTable
from rollyard.analysis.browse.rollout.rollout_screen import RolloutScreen
from rollyard.records.io.search_path import INSTALLED
from tests.support.rollout_files import grid, random_rows, write
from tests.support.terminal_pages import browsing

HUNT = INSTALLED / "examples" / "hunt" / "recorded" / "late.jsonl"
NAMES = {
    "?": "question_mark",
    "/": "slash",
    "[": "left_square_bracket",
    "]": "right_square_bracket",
    "↓": "down",
    "↑": "up",
    "←": "left",
    "→": "right",
    "Esc": "escape",
    "Space": "space",
    "PgDn": "pagedown",
    "PgUp": "pageup",
}


def bound(*owners: type) -> set[str]:
    """The keys that the classes handle, also those that textual's own widgets scroll with."""
    found: set[str] = set()
    for owner in owners:
        for base in owner.__mro__:
            for binding in vars(base).get("BINDINGS", ()):
                keys = binding.key if isinstance(binding, Binding) else binding[0]
                found |= {key.strip() for key in keys.split(",")}
    return found


def listed(keys: tuple[Key, ...]) -> set[str]:
    """The names of the listed keys; of a sequence, each of its keys."""
    words = [word for key in keys for one in key.keys.split("  ") for word in one.split()]
    return {NAMES.get(word, word if len(word) == 1 else word.lower()) for word in words}


@pytest.mark.parametrize(
    ("keys", "owners"),
    [
        (LIST, (ListScreen, RolloutTable)),
        (ROLLOUT, (RolloutScreen, BlockView)),
        (FINDINGS, (FindingsScreen, BlockView)),
        (EVERYWHERE, (BrowseApp, ListScreen)),
    ],
)
def test_every_listed_key_does_something(keys: tuple[Key, ...], owners: tuple[type, ...]) -> None:
    assert listed(keys) - {"g"} <= bound(*owners)


@pytest.mark.parametrize(
    ("keys", "owners"),
    [
        (LIST, (ListScreen, RolloutTable)),
        (ROLLOUT, (RolloutScreen,)),
        (FINDINGS, (FindingsScreen,)),
        ((), (BrowseApp,)),
    ],
)
def test_every_key_of_a_page_is_listed(keys: tuple[Key, ...], owners: tuple[type, ...]) -> None:
    own: set[str] = set()
    for owner in owners:
        for binding in vars(owner).get("BINDINGS", ()):
            assert isinstance(binding, Binding)
            own |= {key.strip() for key in binding.key.split(",")}
    assert own - {"ctrl+c", "G"} <= listed(keys) | listed(EVERYWHERE)


async def test_the_question_mark_lists_all_keys_with_those_of_the_page_first(tmp_path: Path) -> None:
    async with browsing(write(tmp_path / "x.jsonl", grid([1], 1)), size=(80, 70)) as reader:
        await reader.press("question_mark")
        screen = await reader.sees("Esc closes this list.")
        assert screen.index("List") < screen.index("Everywhere") < screen.index("Rollout\n")
        for _, keys in PAGES:
            assert all(key.action in screen for key in keys)
        await reader.press("escape")
        await reader.sees("Enter open")


async def test_findings_lead_to_their_rollouts_and_back() -> None:
    async with browsing(HUNT) as reader:
        await reader.press("g", "f")
        await reader.sees("1 Rewarded for", "64.6%")
        await reader.press("enter")
        await reader.sees("62 of 96 rollouts")
        await reader.press("u", "1")
        await reader.sees("Task 0, repeat 1")
        await reader.press("g", "r")
        await reader.sees("late  96 rollouts")


async def test_a_run_in_which_nothing_stands_out_has_no_findings(tmp_path: Path) -> None:
    async with browsing(write(tmp_path / "x.jsonl", grid([1], 2))) as reader:
        await reader.press("g", "f")
        await reader.sees("Nothing stands out")


@pytest.mark.parametrize("size", [(20, 6), (200, 60)])
async def test_pages_fit_terminals_of_any_size(size: tuple[int, int]) -> None:
    async with browsing(HUNT, size=size) as reader:
        await reader.press("enter")
        await reader.sees("Task ")
        await reader.press("j", "question_mark", "escape", "u", "g", "f")
        await reader.sees("Findings")
        for line in reader.screen.splitlines():
            assert len(line) <= size[0]


async def test_the_pages_adapt_when_the_terminal_is_resized(tmp_path: Path) -> None:
    async with browsing(HUNT, size=(120, 40)) as reader:
        await reader.press("enter")
        await reader.sees("Task 0")
        await reader.resize(40, 15)
        view = reader.app.screen.query_one(BlockView)
        await reader.until(lambda: view.is_complete and view.size.width <= 40)
        await reader.sees("Task 0", "User")


async def test_t_switches_between_dark_and_light(tmp_path: Path) -> None:
    async with browsing(write(tmp_path / "x.jsonl", random_rows(3, 2))) as reader:
        assert reader.app.current_theme.dark
        await reader.press("t")
        await reader.until(lambda: not reader.app.current_theme.dark)
        assert reader.app.palette.name == "light"


async def test_without_colours_the_cursor_and_the_outcomes_are_still_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with browsing(HUNT) as reader:
        assert reader.app.no_color
        await reader.sees("›", "✓ solved", "✗ not solved")
        await reader.press("enter")
        await reader.sees("▌ User")

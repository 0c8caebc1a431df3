"""Every action works without a mouse; axe finds nothing of level moderate or above, in both themes and widths."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.external.browser.accessibility import PLACES, check_accessible
from tests.external.browser.browser_tab import Open, Tab

SECTIONS = {
    "Everywhere": "#/",
    "List": "#/runs/0",
    "Rollout": "#/runs/0/tasks/0/1",
    "Two rollouts": "#/side-by-side/0/0/0/0/0/1",
}
"""A page for each part of the list of keys; test_notes.py and test_attempts.py press the other keys."""
LABELS = "Labels, on a rollout or the selected row"
NEEDS_OTHER_FILES = {("List", "["), ("List", "]"), ("Rollout", "p"), ("List", "n"), ("List", "p")}
"""Keys for which these recordings have nothing: training runs, texts of tokens, lists of several pages. The tests of
those pages press them."""
NAMES = {"↓": "ArrowDown", "↑": "ArrowUp", "←": "ArrowLeft", "→": "ArrowRight", "Esc": "Escape"}
WATCH = """() => {
  window.handled = [];
  // Afterwards, because the page adds its own listener again whenever it is rendered.
  addEventListener('keydown', (event) => setTimeout(() => window.handled.push(event.defaultPrevented)));
}"""
HANDLED = "() => new Promise((done) => setTimeout(() => done(window.handled.at(-1) ?? false), 10))"
"""Whether the page has handled the last key, so that the browser does nothing with it."""
LISTED = """() => Object.fromEntries([...document.querySelectorAll('dialog.help section')].map((section) => [
  section.querySelector('h3').textContent,
  [...section.querySelectorAll('kbd')].map((key) => key.textContent.trim())]))"""

TARGETS = """() => [...document.querySelectorAll('a[href], button, summary, select, input, textarea')]
  .filter((one) => one.checkVisibility() && !one.disabled && one.tabIndex >= 0)
  .map((one, at) => { one.dataset.target = at; return one.outerHTML.slice(0, 140); })"""
FOCUSED = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const style = getComputedStyle(one);
  const seen = (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== 'none';
  return { target: one.dataset.target ?? null, seen, text: one.outerHTML.slice(0, 140) };
}"""


def listed_keys(tab: Tab) -> dict[str, list[str]]:
    """The keys of the list that `?` opens, by its headings."""
    tab.page.keyboard.press("?")
    expect(tab.find("dialog.help")).to_be_visible()
    found: dict[str, list[str]] = tab.page.evaluate(LISTED)
    tab.page.keyboard.press("Escape")
    return found


def test_every_listed_key_is_handled_on_its_page(open_tab: Open) -> None:
    listed = listed_keys(open_tab("#/"))
    assert set(SECTIONS) <= set(listed)
    ignored: list[tuple[str, str]] = []
    for section, place in SECTIONS.items():
        tab = open_tab(place)
        for key in listed[section]:
            if (section, key) in {*NEEDS_OTHER_FILES, ("List", "Enter")}:
                continue
            tab.go(place)
            if section == "Rollout" and key in ("n", "N"):
                tab.page.keyboard.press("/")
                tab.page.keyboard.type("e")
                tab.page.keyboard.press("Enter")
                expect(tab.find(".findbar [role=status]")).to_contain_text("found")
                tab.page.keyboard.press("Escape")
            tab.page.evaluate(WATCH)
            for one in key.split(" "):
                tab.page.keyboard.press(NAMES.get(one, one))
            if not tab.page.evaluate(HANDLED):
                ignored.append((section, key))
            tab.settled()
    assert ignored == []


def test_enter_opens_the_rollout_that_j_and_k_lead_to(open_tab: Open) -> None:
    tab = open_tab("#/runs/0")
    tab.page.keyboard.press("j")
    tab.page.keyboard.press("j")
    expect(tab.find("table.wide tbody a").nth(1)).to_be_focused()
    tab.page.keyboard.press("k")
    tab.page.keyboard.press("Enter")
    expect(tab.find("main h1")).to_contain_text("Task 0 repeat 0")


def test_every_key_that_a_page_handles_is_listed(open_tab: Open) -> None:
    keys = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789[]/?.,;-+=", "Space", "Home", "End"]
    for section, place in SECTIONS.items():
        tab = open_tab(place)
        listed = listed_keys(tab)
        known = {part for one in (section, "Everywhere") for key in listed[one] for part in key.split(" ")}
        unlisted = []
        for key in keys:
            if key in (*listed[LABELS], *"123456789") and key not in listed[section]:
                continue  # pressing it would write to the recordings' notes
            tab.page.evaluate(WATCH)
            tab.page.keyboard.press(key)
            if tab.page.evaluate(HANDLED):
                if key not in known:
                    unlisted.append(key)
                tab.go(place)
        assert unlisted == [], section


@pytest.mark.parametrize("name", [name for name in PLACES if name not in ("tokens", "attacks")])
def test_tab_reaches_every_target_and_shows_where_it_is(open_tab: Open, name: str) -> None:
    place = f"{PLACES[name]}?task=0" if name == "list" else PLACES[name]
    tab = open_tab(place, new=True, reduced_motion="reduce")  # Tab begins at the top of a new page
    targets = tab.page.evaluate(TARGETS)
    reached: set[int] = set()
    unseen: list[str] = []
    for _ in range(3 * len(targets) + 20):
        tab.page.keyboard.press("Tab")
        focused = tab.page.evaluate(FOCUSED)
        if focused is None:
            break
        if not focused["seen"]:
            unseen.append(focused["text"])
        if focused["target"] is not None:
            reached.add(int(focused["target"]))
    missing = [text for at, text in enumerate(targets) if at not in reached and 'type="radio"' not in text]
    assert (missing, unseen) == ([], [])


def test_the_key_after_g_opens_a_page_even_if_it_is_an_action_of_the_present_page(open_tab: Open) -> None:
    tab = open_tab("#/runs/0/tasks/0/1")
    # The dialog renders the frame again, whose keys are then asked after those of the page.
    tab.page.keyboard.press("?")
    expect(tab.find("dialog.help")).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(tab.find("dialog.help")).to_be_hidden()
    tab.page.keyboard.press("g")
    tab.page.keyboard.press("n")
    expect(tab.find("h1")).to_contain_text("Notes")
    assert tab.page.url.endswith("/notes")


@pytest.mark.parametrize("name", PLACES)
def test_every_page_is_accessible_and_fits_on_a_phone(open_tab: Open, name: str) -> None:
    check_accessible(open_tab, PLACES[name])


def test_the_theme_can_be_changed_and_persists(open_tab: Open) -> None:
    tab = open_tab("#/", color_scheme="light", new=True)
    paper = "getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(paper)
    tab.page.keyboard.press("t")
    tab.page.keyboard.press("t")
    dark = tab.page.evaluate(paper)
    assert dark != light
    tab.page.reload()
    tab.find("main h1").wait_for()
    assert tab.page.evaluate(paper) == dark


def test_the_first_tab_stop_skips_to_the_content(open_tab: Open) -> None:
    tab = open_tab("#/runs/0", new=True)
    tab.page.keyboard.press("Tab")
    expect(tab.find("a.skip")).to_be_focused()
    tab.page.keyboard.press("Enter")
    expect(tab.find("main")).to_be_focused()

"""The page of a rollout: conversation, board, tokens, JSON."""

from __future__ import annotations

import re

import orjson
from playwright.sync_api import expect

from rollyard.records.types import Json
from tests.external.browser.browser_tab import Open, Tab
from tests.external.browser.recordings import Recordings
from tests.support.stacks import read_rows


def solved(recordings: Recordings) -> Json:
    return next(row for row in read_rows(recordings.played) if row["success"])


def place(row: Json, run: int = 0) -> str:
    return f"#/runs/{run}/tasks/{row['_ng_task_index']}/{row['_ng_rollout_index']}"


def boards(row: Json) -> list[str]:
    """Every board that the environment returned."""
    results = [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]
    return [result["observation"] for result in map(orjson.loads, results) if "observation" in result]


def drawn_symbols(tab: Tab) -> dict[str, int]:
    """Number of walls, boxes and players on the drawn board."""
    board = tab.find("svg.squares").first
    return {
        selector: board.locator(selector).count() for selector in (".wall", ".box:not(.done)", ".box.done", ".player")
    }


def check_board(tab: Tab, board: str) -> None:
    """Check that the drawing shows this board."""
    counts = {".wall": board.count("#"), ".box:not(.done)": board.count("X"), ".box.done": board.count("√")}
    assert drawn_symbols(tab) == {**counts, ".player": board.count("P") + board.count("S")}


def test_the_whole_conversation_is_shown_in_order(open_tab: Open, recordings: Recordings) -> None:
    row = solved(recordings)
    tab = open_tab(place(row))
    speakers = {"function_call": "call", "function_call_output": "result", "message": "answer"}
    kinds = tab.find("article.event").evaluate_all("all => all.map((one) => one.className.split(' ')[1])")
    assert kinds[:2] == ["system", "user"]
    assert kinds[2:] == [speakers[item["type"]] for item in row["response"]["output"]]


def test_the_board_starts_unsolved_is_played_and_ends_as_recorded_and_the_optimal_solution_solved(
    open_tab: Open, recordings: Recordings
) -> None:
    row = solved(recordings)
    tab = open_tab(place(row))
    screen = tab.find(".screen").first
    check_board(tab, boards(row)[-1])
    expect(screen).to_contain_text("solved")
    tab.page.keyboard.press("Home")
    expect(screen.locator(".caption")).to_contain_text("start")
    start = drawn_symbols(tab)
    assert start[".wall"] == boards(row)[0].count("#") and start[".box:not(.done)"] > 0
    assert start[".box:not(.done)"] + start[".box.done"] == row["num_boxes"]
    screen.get_by_label("Speed").select_option("8")
    tab.page.keyboard.press(" ")
    slider = screen.locator("input[type=range]")
    expect(slider).to_have_js_property("value", slider.get_attribute("max"))
    expect(screen.get_by_label("Play", exact=True)).to_be_visible()
    check_board(tab, boards(row)[-1])
    best = tab.find(".screen").nth(1)
    expect(best).to_contain_text(f"move {row['optimal_moves']} of {row['optimal_moves']}")
    assert best.locator(".box.done").count() == row["num_boxes"]


def test_the_rewards_of_the_steps_add_up_and_lead_to_their_move(open_tab: Open, recordings: Recordings) -> None:
    row = solved(recordings)
    strip = open_tab(place(row)).find(".strip")
    total = re.search(r"total ([\d.−]+)", strip.inner_text())
    assert total is not None and float(total[1].replace("−", "-")) == round(row["reward"], 4)
    strip.locator("svg").click(position={"x": 2, "y": 20})
    expect(strip.locator("svg")).to_have_attribute("aria-label", re.compile("now move 0"))


def test_the_row_is_shown_as_it_is_in_the_file(open_tab: Open, recordings: Recordings) -> None:
    row = solved(recordings)
    tab = open_tab(place(row))
    tab.find("details.raw > summary").click()
    tab.find(".raw").get_by_role("button", name="Show all").click()
    assert orjson.loads(tab.find(".raw .text").inner_text()) == row


def test_tokens_show_their_ids_likelihoods_and_breaks(open_tab: Open, recordings: Recordings) -> None:
    row = read_rows(recordings.tokens)[0]
    tab = open_tab(place(row, 2))
    turns = tab.find(".tokens article.turn")
    first = turns.first
    assert first.locator(".token.masked").count() == 12
    likelihoods = ("sure", "likely", "open", "unlikely", "rare")
    assert [first.locator(f".token.{name}").count() for name in likelihoods] == [3, 2, 1, 1, 1]
    first.locator(".token.rare").hover()
    expect(first.locator(".readout")).to_contain_text("log-probability −6, 0.2%, trained on")
    first.locator(".ids").focus()
    tab.page.keyboard.press("ArrowRight")
    expect(first.locator(".readout")).to_contain_text("id 505")
    calls = sum("prompt_token_ids" in item for item in row["response"]["output"])
    assert turns.count() == calls
    assert tab.find(".tokens .turn.broken").count() == (calls > 2)
    expect(tab.find(".tokens svg.chart")).to_be_visible()


def test_a_message_of_a_million_characters_is_shortened_until_it_is_expanded(open_tab: Open) -> None:
    tab = open_tab("#/runs/4/tasks/13/0")
    user = tab.find("article.user")
    assert len(user.inner_text()) < 10_000
    user.get_by_role("button", name="show all 1,500,000 characters").click()
    assert len(user.locator(".text").inner_text()) == 1_500_000

"""Tokens as text: the least likely of a rollout, engine and trainer, the export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from rollyard.records.types import Json
from tests.external.browser.browser_tab import Open
from tests.external.browser.viewer import viewing
from tests.support.rollout_files import write
from tests.support.token_rows import alternatives, call_item, logprobs_item, random_token_rows, token_row
from tests.support.training_runs import training_run

ATTACK = "</script><img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs with texts of tokens; the first rollout of the first has an odd token, alternatives and an attack."""
    folder = tmp_path_factory.mktemp("tokens")
    odd = [
        call_item([" sure", " odd", " now"], [-0.1, -12.0, -0.2]),
        logprobs_item([alternatives(" chosen", 0.001), alternatives(ATTACK, 0.5)]),
    ]
    rows = random_token_rows(8, 3)
    first = write(folder / "first.jsonl", [token_row(99, 0, odd), *rows])
    return [first, write(folder / "second.jsonl", random_token_rows(8, 3, seed=1, drift=0.3))]


@pytest.fixture(scope="module")
def url(files: list[Path]) -> Iterator[str]:
    """The address of a viewer with these runs."""
    with viewing(files, files[0].parent) as started:
        yield started


@pytest.fixture(scope="module")
def training_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a viewer with a training run that has pairs of its last step; those of the first are cut off."""
    folder = tmp_path_factory.mktemp("training") / "run"
    paths = training_run(folder, 2, [token_row(0, 0, [call_item([" go", " up"], [-1.0, -2.0])])])
    token = {"task": 0, "repeat": 0, "entropy": 0.1, "clipped": True}
    pairs: list[Json] = [
        {**token, "index": 2 + place, "id": 0, "engine": -1.0 - place, "trainer": -1.5 - place} for place in range(2)
    ]
    for place, pair in enumerate(pairs):
        pair["id"] = call_item([" go", " up"], [-1.0, -2.0])["generation_token_ids"][place]
    record = {"tokens": 2, "clipped": 2, "log_ratio_edges": [-0.1, 0.1], "log_ratio_counts": [2, 0, 0]}
    paths.token_pairs(2).parent.mkdir()
    paths.token_pairs(2).write_bytes(orjson.dumps({**record, "sample": pairs, "largest": pairs}))
    paths.token_pairs(1).write_bytes(b'{"tokens": 2, "sample": [')
    with viewing([folder], folder.parent) as started:
        yield started


def test_the_least_likely_tokens_of_a_rollout_lead_to_their_place(open_tab: Open) -> None:
    tab = open_tab("#/runs/0/tasks/99/0")
    rows = tab.find("section.worst tbody tr")
    expect(rows.first).to_contain_text("sure odd now")
    expect(rows.first.locator("td").nth(1)).to_have_text("−12")
    expect(rows.nth(1)).to_contain_text("other")  # the alternative to ` chosen`
    rows.first.locator("button").click()
    expect(tab.find(".tokentext .token.at")).to_have_text(" odd")
    expect(tab.find("article.answer .readout").first).to_contain_text("log-probability −12")


def test_an_address_with_a_token_shows_it(open_tab: Open) -> None:
    tab = open_tab("#/runs/0/tasks/99/0?token=1.0")
    expect(tab.find(".tokentext .token.at")).to_have_text(" chosen")
    tab.page.keyboard.press("p")
    expect(tab.find(".tokentext")).to_have_count(0)


def test_engine_and_trainer_of_a_training_run_are_compared(open_tab: Open, training_url: str) -> None:
    tab = open_tab("#/", at=training_url)
    tab.find("a.button", has_text="Engine and trainer").click()
    row = tab.find("section[aria-label='Largest differences'] tbody tr").nth(1)
    expect(row.locator("th")).to_have_text(" go up")
    row.locator("a").click()
    expect(tab.find(".tokentext .token.at")).to_have_text(" up")


def test_a_page_with_tokens_is_accessible_and_fits_a_phone(open_tab: Open) -> None:
    tab = open_tab("#/runs/0/tasks/99/0", viewport={"width": 390, "height": 800})
    tab.find("main section h2").first.wait_for()
    found = Axe().run(tab.page)
    assert [one["id"] for one in found.response["violations"] if one["impact"] != "minor"] == []
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")

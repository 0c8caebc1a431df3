"""make pictures: screenshots of the pages, wide and narrow, light and dark, in docs/pictures."""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

from rollyard import annotate
from rollyard.records.data_files import INSTALLED
from tests.external.browser.browser_tab import Tab, chromium, playing
from tests.external.browser.recordings import play, record
from tests.external.browser.viewer import viewing
from tests.support.stacks import read_rows

FOLDER = INSTALLED / "docs" / "pictures"
PLACES = {
    "overview": "#/",
    "list": "#/runs/0?sort=-reward",
    "rollout": "#/runs/0/tasks/4/1",
    "tokens": "#/runs/2/tasks/0/1",
    "compare": "#/compare/0/1",
    "side-by-side": "#/side-by-side/0/3/1/1/3/1",
    "notes": "#/runs/1/notes",
}
HUNT = INSTALLED / "examples" / "hunt" / "recorded"
FOUND = {"findings": "#/runs/0/findings"}
"""Of the recordings in HUNT, whose findings name an exploit."""
SERIES = {"series": "#/series?sort=-change"}
"""With a viewer of STEPS."""
STEPS = {0: 1.6, 100: 0.8, 200: 0.4, 300: 0.1}
"""Steps of a series, and the temperature of the built-in policy, which is better if it is low."""
SIZES = {"wide": (1280, 800), "narrow": (390, 844)}
SCHEMES = ("light", "dark")
COLOURS = 128


def main() -> None:
    """Take the screenshots that the arguments name; without arguments, all of them."""
    FOLDER.mkdir(exist_ok=True)
    wanted = sys.argv[1:]
    first, found, series = (
        {name: place for name, place in places.items() if name in wanted or not wanted}
        for places in (PLACES, FOUND, SERIES)
    )
    with tempfile.TemporaryDirectory() as created, playing() as playwright:
        browser, folder = chromium(playwright), Path(created)
        if first:
            recordings = record(folder)
            _label(recordings.again)
            with viewing([Path(path.name) for path in recordings.paths[:3]], folder) as url:
                _take_all(browser, url, first)
        if found:
            with viewing([HUNT / "late.jsonl", HUNT / "early.jsonl"], folder) as url:
                _take_all(browser, url, found)
        if series:
            steps = {folder / f"step_{step}.jsonl": temperature for step, temperature in STEPS.items()}
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, play(folder, steps)).result()
            with viewing([Path(path.name) for path in steps], folder) as url:
                _take_all(browser, url, series)


def _label(path: Path) -> None:
    """Label and judge some rollouts of Sokoban, as two people would."""
    for author, every in (("ann", 3), ("ben", 2)):
        notes = annotate(path, author=author)
        for row in read_rows(path)[1::every]:
            notes.add_label(row, "clean" if row["success"] else "stuck box")
            agrees = row["_ng_task_index"] % 5 > 0
            notes.judge(row, "correct" if row["success"] == agrees else "wrong")


def _take_all(browser: Browser, url: str, places: Mapping[str, str]) -> None:
    """Take the screenshots of these places of a viewer."""
    for size, (width, height) in SIZES.items():
        for scheme in SCHEMES:
            tab = Tab(browser, url, viewport={"width": width, "height": height}, color_scheme=scheme)
            for name, place in places.items():
                _take(tab, place, FOLDER / f"{name}-{size}-{scheme}.png")
            tab.close()


def _take(tab: Tab, place: str, path: Path) -> None:
    tab.go(place)
    if "tokens" in path.name:
        tab.find("section.tokens").scroll_into_view_if_needed()
        tab.page.evaluate("scrollTo(0, document.querySelector('section.tokens').offsetTop - 60)")
    if path.name.startswith("findings"):
        tab.find(".finding").first.wait_for()  # the file is examined while the page is open
    if path.name.startswith("series"):
        tab.page.evaluate("scrollTo(0, document.querySelector('section[aria-label=Results]').offsetTop - 60)")
    shot = Image.open(io.BytesIO(tab.page.screenshot()))
    # A palette of 128 colours reduces the size to a third without a visible difference.
    shot.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"{path.relative_to(INSTALLED)}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

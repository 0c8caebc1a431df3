"""make pictures: screenshots of the pages, wide and narrow, light and dark, in docs/pictures."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from PIL import Image

from rollyard.services.io.search_path import INSTALLED
from tests.external.browser.browser_tab import Tab, chromium
from tests.external.browser.recordings import record
from tests.external.browser.viewer import viewing

FOLDER = INSTALLED / "docs" / "pictures"
PLACES = {
    "overview": "#/",
    "list": "#/runs/0?sort=-reward",
    "rollout": "#/runs/0/tasks/4/1",
    "tokens": "#/runs/2/tasks/0/1",
    "task": "#/runs/0/tasks/3",
    "compare": "#/compare/0/1",
}
SIZES = {"wide": (1280, 800), "narrow": (390, 844)}
SCHEMES = ("light", "dark")
COLOURS = 128


def main() -> None:
    """Take every screenshot."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        recordings = record(Path(folder))
        with viewing([Path(path.name) for path in recordings.paths[:3]], Path(folder)) as url:
            for size, (width, height) in SIZES.items():
                for scheme in SCHEMES:
                    tab = Tab(browser, url, viewport={"width": width, "height": height}, color_scheme=scheme)
                    for name, place in PLACES.items():
                        _take(tab, place, FOLDER / f"{name}-{size}-{scheme}.png")
                    tab.close()


def _take(tab: Tab, place: str, path: Path) -> None:
    tab.go(place)
    if "tokens" in path.name:
        tab.find("section.tokens").scroll_into_view_if_needed()
        tab.page.evaluate("scrollTo(0, document.querySelector('section.tokens').offsetTop - 60)")
    shot = Image.open(io.BytesIO(tab.page.screenshot()))
    # A palette of 128 colours reduces the size to a third without a visible difference.
    shot.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"{path.relative_to(INSTALLED)}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

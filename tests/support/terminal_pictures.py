"""make pictures: ng_browse's pages as SVG, in docs/pictures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from rollyard.cli.viewer import Replays
from rollyard.records.io.search_path import INSTALLED
from tests.support.terminal_pages import browsing

FOLDER = INSTALLED / "docs" / "pictures"
SIZE = (100, 28)
HUNT = INSTALLED / "examples" / "hunt" / "recorded" / "late.jsonl"
SOKOBAN = INSTALLED / "resources_servers" / "grl_sokoban" / "data" / "qwen3_4b_eval" / "sample_rollouts.jsonl"
PICTURES: Sequence[tuple[str, Path, tuple[str, ...], tuple[str, ...]]] = (
    ("list", HUNT, ("j", "j"), ("648", "extracted")),
    ("findings", HUNT, ("g", "f"), ("Rewarded for listing",)),
    ("rollout", SOKOBAN, ("enter",), ("Verdict", "move")),
)
"""Name, file, keys, and what must then be on the screen."""
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Rich's fonts are on another host."""


async def main() -> None:
    """Write every picture."""
    for name, path, keys, texts in PICTURES:
        async with browsing(path, size=SIZE, draw=Replays([INSTALLED])) as reader:
            await reader.press(*keys)
            await reader.sees(*texts)
            svg = reader.app.export_screenshot(title=f"ng_browse {path.name}", simplify=True)
        target = FOLDER / f"browse-{name}.svg"
        target.write_text(_FONT_FACE.sub("", svg))
        print(f"{target.relative_to(INSTALLED)}  {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    asyncio.run(main())

"""`python -m tests.support.findings_page` writes the table of docs/findings.md from the detectors' definitions."""

from __future__ import annotations

from rollyard.services.findings.catalog import DETECTORS
from rollyard.services.io.search_path import INSTALLED

PAGE = INSTALLED / "docs" / "findings.md"
_START, _END = "<!-- detectors -->\n", "<!-- end of detectors -->\n"


def page(text: str) -> str:
    """Return the page with the current definitions."""
    before, _, rest = text.partition(_START)
    _, _, after = rest.partition(_END)
    rows = [
        f"| {one.title} (`{one.kind}`) | {one.category} | {one.definition.replace('|', chr(92) + '|')} |\n"
        for one in DETECTORS
    ]
    return f"{before}{_START}\n| finding | about | what is counted |\n|---|---|---|\n{''.join(rows)}\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))

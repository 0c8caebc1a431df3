"""`python -m tests.support.findings_page` writes the list of docs/evidence/findings.md from the detectors."""

from __future__ import annotations

from rollyard.analysis.findings.find import DETECTORS
from rollyard.records.data_files import INSTALLED

PAGE = INSTALLED / "docs" / "evidence" / "findings.md"
_START, _END = "<!-- detectors -->\n", "<!-- end of detectors -->\n"


def page(text: str) -> str:
    before, _, rest = text.partition(_START)
    _, _, after = rest.partition(_END)
    by_category: dict[str, list[str]] = {}
    for one in DETECTORS:
        by_category.setdefault(one.category, []).append(f"{one.title} (`{one.kind}`)")
    lists = "\n".join(f"- **{category}**: {'; '.join(titles)}" for category, titles in by_category.items())
    return f"{before}{_START}\n{lists}\n\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))

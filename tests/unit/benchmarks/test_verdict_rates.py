"""The rates of docs/evidence/verdicts.md: the data, the arithmetic, and how the page is updated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.graders import Triple, hendrycks
from benchmarks.verdict_rates import BEGIN, END, GRADERS, TRIPLES, Found, read, wilson, write
from rollyard.records.errors import OperatorError


def make_triple(name: str, *, right: bool, response: str = "\\boxed{8}") -> Triple:
    kind = {"environment": "math", "half": "dev", "style": "a class", "problem": "", "gold": "8", "note": ""}
    return Triple.model_validate({**kind, "id": name, "right": right, "response": response})


def test_triples_are_unique_and_each_half_has_hundreds_of_both_labels() -> None:
    triples = read(TRIPLES)
    assert len({triple.id for triple in triples}) == len(triples)
    assert len({(triple.problem, triple.response) for triple in triples}) == len(triples)
    assert min(Counter((triple.half, triple.right) for triple in triples).values()) > 250


def test_the_interval_matches_published_wilson_intervals() -> None:
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    found = [tuple(round(end, 4) for end in wilson(*counts)) for counts in ((81, 263), (15, 148), (0, 20), (1, 29))]
    assert found == [(0.2553, 0.3662), (0.0624, 0.1605), (0.0, 0.1611), (0.0061, 0.1718)]


def test_a_wrong_response_that_our_grader_fails_to_verify_is_a_mistake_but_not_a_false_accept() -> None:
    found = Found([make_triple("one", right=False)], {grader: ["failed"] for grader in GRADERS})
    assert [found.scored[0].mistaken(grader) for grader in GRADERS] == [True, False, False]
    assert next(found.rates()) == ("rollyard", "math", "dev", (0, 1), (0, 0), 1)


def test_the_tables_replace_only_the_text_between_the_markers(tmp_path: Path) -> None:
    triples = [make_triple("right", right=True, response="a | `b`"), make_triple("wrong", right=False)]
    found = Found(triples, {grader: [hendrycks(triple) for triple in triples] for grader in GRADERS})
    page = tmp_path / "page.md"
    page.write_text(f"before {BEGIN} old {END} after")
    write(page, found)
    first = page.read_text()
    write(page, found)
    assert page.read_text() == first
    assert first.startswith("before ") and first.endswith(" after") and " old " not in first
    assert "- a class: 1, 1, 1 of 1; `a | 'b'` for `8`" in first
    assert r"- a class: 1, 1, 1 of 1; `\boxed{8}` for `8`" in first


def test_a_class_without_a_mistake_is_only_named(tmp_path: Path) -> None:
    triples = [make_triple("right", right=True)]
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN} {END}")
    write(page, Found(triples, {grader: [hendrycks(triple) for triple in triples] for grader in GRADERS}))
    assert "\nNo mistake of rollyard and math-verify: a class.\n" in page.read_text()


def test_a_page_without_markers_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="rates: begin"):
        write(tmp_path / "none.md", Found([], {grader: [] for grader in GRADERS}))

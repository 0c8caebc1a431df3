"""The rates of docs/verdicts.md: their data, their arithmetic, and how they get onto the page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.graders import Triple, hendrycks
from benchmarks.verdict_page import BEGIN, END, write
from benchmarks.verdict_rates import TRIPLES, read
from benchmarks.verdict_scores import GRADERS, Found, wilson
from rollyard.services.errors import OperatorError


def triple(name: str, *, right: bool, response: str = "\\boxed{8}") -> Triple:
    return Triple(
        id=name,
        environment="math",
        half="dev",
        style="a class",
        right=right,
        problem="",
        gold="8",
        response=response,
        note="",
    )


def test_the_triples_are_different_and_each_half_has_hundreds_of_both_labels() -> None:
    triples = read(TRIPLES)
    assert len({one.id for one in triples}) == len(triples)
    assert len({(one.problem, one.response) for one in triples}) == len(triples)
    assert min(Counter((one.half, one.right) for one in triples).values()) > 250


def test_the_interval_is_wilsons() -> None:
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    found = [tuple(round(end, 4) for end in wilson(*of)) for of in ((81, 263), (15, 148), (0, 20), (1, 29))]
    assert found == [(0.2553, 0.3662), (0.0624, 0.1605), (0.0, 0.1611), (0.0061, 0.1718)]


def test_a_wrong_response_that_our_grader_cannot_verify_is_its_mistake_but_no_false_accept() -> None:
    found = Found([triple("one", right=False)], {grader: ["failed"] for grader in GRADERS})
    assert [found.scored[0].mistaken(grader) for grader in GRADERS] == [True, False, False]
    assert next(found.rates()) == ("rollyard", "math", "dev", (0, 1), (0, 0), 1)


def test_the_tables_replace_what_is_between_the_marks_and_nothing_else(tmp_path: Path) -> None:
    triples = [triple("right", right=True), triple("wrong", right=False, response="a | `b`")]
    found = Found(triples, {grader: [hendrycks(one) for one in triples] for grader in GRADERS})
    page = tmp_path / "page.md"
    page.write_text(f"before {BEGIN} old {END} after")
    write(page, found)
    once = page.read_text()
    write(page, found)
    assert page.read_text() == once
    assert once.startswith("before ") and once.endswith(" after") and " old " not in once
    assert r"| a class | `\boxed{8}` | `8` | 1 | 0 | 0 | 0 |" in once
    assert r"`a \| 'b'`" in once


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="rates: begin"):
        write(tmp_path / "none.md", Found([], {grader: [] for grader in GRADERS}))

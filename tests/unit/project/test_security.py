"""SECURITY.md: each sentence names a test that exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.modules import ROOT

MARK = re.compile(r"<!--(.*?)-->", re.DOTALL)
UNTESTED = ("Security", "What is assumed")
"""Headings below which nothing is claimed that a test could hold."""
SENTENCE_END = re.compile(r"[.!?](?=\s+[A-Z*`\[]|\s*$)")


def claims(text: str) -> Iterator[tuple[str, str]]:
    """Each text between two marks below a heading, with the mark that follows it; an empty mark if none does.

    What only points elsewhere, a paragraph that ends with a link and a full stop, is no claim.
    """
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        if title in UNTESTED:
            continue
        for block in re.split(r"\n\s*\n|^- ", body, flags=re.MULTILINE):
            *marked, rest = MARK.split(block)
            yield from zip((part.strip() for part in marked[::2]), (part.strip() for part in marked[1::2]), strict=True)
            if rest.strip() and not rest.strip().endswith(")."):
                yield rest.strip(), ""


def unheld(text: str, tests: set[str]) -> list[str]:
    """What is wrong with the page: claims without a test, of several sentences, or with a test that does not exist."""
    problems = []
    for claim, mark in claims(text):
        if not mark:
            problems.append(f"no test is named behind: {claim}")
        elif len(SENTENCE_END.findall(claim)) != 1:
            problems.append(f"one sentence must stand before each mark: {claim}")
        problems += [f"there is no test {name}: {claim}" for name in mark.split() if name not in tests]
    return problems


@pytest.fixture(scope="module")
def tests() -> set[str]:
    """The names of all tests, such as `test_doctor.py::test_the_doctor_lists_the_active_layers`."""
    return {
        f"{path.name}::{node.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_each_sentence_has_a_test_that_exists(tests: set[str]) -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert len(list(claims(text))) > 30
    assert unheld(text, tests) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("- Held. <!-- a.py::test_a -->\n", ""),
        ("See [there](there.md).\n\n- Held\n  over lines.\n  <!-- a.py::test_a -->\n", ""),
        ("- Held. <!-- a.py::test_a -->\n  Also this.\n", "no test is named behind: Also this."),
        ("- Not held.\n- Held. <!-- a.py::test_a -->\n", "no test is named behind: Not held."),
        ("Not held.\n", "no test is named behind: Not held."),
        ("- One. Two. <!-- a.py::test_a -->\n", "one sentence must stand before each mark: One. Two."),
        ("- Held. <!-- a.py::test_b -->\n", "there is no test a.py::test_b: Held."),
    ],
)
def test_a_sentence_without_a_test_or_with_one_that_does_not_exist_is_found(body: str, problem: str) -> None:
    assert unheld(f"# Security\n\nReport it.\n\n## Claims\n\n{body}", {"a.py::test_a"}) == [problem] * bool(problem)

"""Extracting the answer from a text."""

from __future__ import annotations

import pytest

from rollyard.resources_servers.answers.extraction import cut, without_reasoning
from rollyard.resources_servers.answers.finders import boxed, hashes, number, phrased, tagged


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{18}", "18"),
        (r"so \boxed{17}, no: \boxed{18}.", "18"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{18}}", "18"),
        (r"\fbox{18}", "18"),
        (r"$\boxed 5$", "5"),
        (r"\boxed { 18 }", "18"),
        ("\\boxed{\n18\n}", "18"),
        (r"\boxed{}", ""),
        (r"\boxed{1} or \boxed{2}", "1, 2"),
        (r"$\boxed{1}$ and $\boxed{2}$", "1, 2"),
        (r"$a = \boxed{-1}$ and $a = \boxed{2}.$", "-1, 2"),
        (r"\boxed{3}, \boxed{3}", "3"),
        ("\\boxed{1}\n\n\\boxed{2}", "1, 2"),
        (r"`\boxed{` is what I use: \boxed{18}", "18"),
        (r"\boxed{18}, in \boxed{...} as you asked", "18"),
        ("no box", None),
    ],
)
def test_the_last_box_or_row_of_boxes_is_the_answer(text: str, expected: str | None) -> None:
    box = boxed(text)
    assert (box.text if box else None) == expected


@pytest.mark.parametrize("text", [r"\boxed{18", r"\boxed{17} then \boxed{\frac{1}{2}", "\\boxed{" * 2000])
def test_an_unclosed_box_is_incomplete(text: str) -> None:
    box = boxed(text)
    assert box is not None
    assert not box.whole


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>hm</think>18", "18"),
        ("hm</think>18", "18"),
        ("<think>a</think>b<think>c</think>18", "18"),
        ("<think>it is 18", ""),
        ("18 <think>or not", "18 "),
        ("<thinking>hm</thinking>18", "18"),
        ("18", "18"),
    ],
)
def test_reasoning_is_removed(text: str, rest: str) -> None:
    assert without_reasoning(text) == rest


def test_a_text_ends_at_the_first_stop_string() -> None:
    assert cut("18\n\nQ: next?\nQuestion: 19", ("Question:", "Q:")) == "18\n\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 18.", "18"),
        ("The answer is: $18.50. Good.", "$18.50"),
        ("**Answer:** 18", "18"),
        ("The final answer is **18**.", "18"),
        ("reasoning\nA: 18", "18"),
        ("answer is 1. No, the answer is 2.", "2"),
        ("answering 18", None),
    ],
)
def test_a_phrase_is_followed_by_its_answer_up_to_the_end_of_the_sentence(text: str, expected: str | None) -> None:
    phrase = phrased(text)
    assert (phrase.text if phrase else None) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from 3 to 18.", "18"),
        ("1,018 eggs", "1,018"),
        ("It costs $1,018.50.", "$1,018.50"),
        ("minus -3", "-3"),
        ("16 - 3", "3"),
        ("100% of 50%", "50%"),
        ("v2 of x3", None),
        ("., ok", None),
        ("", None),
    ],
)
def test_the_last_number_must_be_a_separate_word(text: str, expected: str | None) -> None:
    last = number(text.replace("16 - 3", "16-3"))
    assert (last.text if last else None) == expected


def test_hashes_and_tags_are_read_to_their_ends() -> None:
    assert [found.text for found in (hashes("#### 1,018\nbye"), tagged("<answer> 5 </answer>")) if found] == [
        "1,018",
        "5",
    ]

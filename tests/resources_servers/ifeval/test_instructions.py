"""The 25 kinds of instruction: followed, not followed, and forgiven."""

from __future__ import annotations

from typing import Any

import pytest

from resources_servers.ifeval.scoring import KINDS, instruction, outcome, variants
from tests.resources_servers.answers.asking import DATA, rows_of
from tests.resources_servers.ifeval.following import ENGLISH, SAMPLES, text_that_follows

ROWS = rows_of(DATA / "ifeval" / "input_data.jsonl")


def follows(kind: str, text: str, **told: Any) -> tuple[bool, bool]:
    """(strictly, loosely)."""
    found = outcome(kind, instruction(kind, told), text)
    return found.strict, found.loose


def test_every_instruction_of_the_data_set_can_be_followed() -> None:
    told = [pair for row in ROWS for pair in zip(row["instruction_id_list"], row["kwargs"], strict=True)]
    missed = [pair for pair in told if not follows(pair[0], text_that_follows(*pair), **pair[1])[0]]
    assert missed == []
    assert (len(told), {kind for kind, _ in told}) == (834, set(KINDS))


def test_an_empty_text_follows_nothing() -> None:
    told = {kind: about for row in ROWS for kind, about in zip(row["instruction_id_list"], row["kwargs"], strict=True)}
    assert len(told) == 25
    for kind, about in told.items():
        for text in ("", " \n "):
            assert follows(kind, text, **about) == (False, False), kind


@pytest.mark.parametrize(("letter", "key"), [("#", 1122), ("!", 1129)])
def test_the_two_rows_that_ask_for_a_sign_count_that_sign(letter: str, key: int) -> None:
    (row,) = [row for row in ROWS if row["key"] == key]
    (about,) = [about for about in row["kwargs"] if "letter" in about]
    often, rare = letter * about["let_frequency"], letter * (about["let_frequency"] - 1)
    for _ in range(3):
        assert follows("keywords:letter_frequency", f"text {often}", **about) == (True, True)
        assert follows("keywords:letter_frequency", f"abcdefghijklmnopqrstuvwxyz {rare}", **about) == (False, False)


@pytest.mark.parametrize(
    ("kind", "told", "text"),
    [
        ("keywords:existence", {"keywords": ["mom", "dad"]}, "a mom"),
        ("keywords:frequency", {"keyword": "war", "relation": "at least", "frequency": 2}, "war"),
        ("keywords:frequency", {"keyword": "war", "relation": "less than", "frequency": 2}, "war war"),
        ("keywords:forbidden_words", {"forbidden_words": ["rock", "C++"]}, "I like Rock."),
        ("keywords:forbidden_words", {"forbidden_words": ["rock", "C++"]}, "I like C++."),
        ("keywords:letter_frequency", {"letter": "q", "let_relation": "less than", "let_frequency": 1}, "Queen"),
        ("language:response_language", {"language": "de"}, ENGLISH),
        ("language:response_language", {"language": "de"}, "12345 ..."),
        ("length_constraints:number_words", {"relation": "less than", "num_words": 3}, "one two three"),
        ("length_constraints:number_sentences", {"relation": "less than", "num_sentences": 2}, "One. Two."),
        ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n\nb"),
        ("length_constraints:number_paragraphs", {"num_paragraphs": 3}, "a\n***\n\n***\nb"),
        (
            "length_constraints:nth_paragraph_first_word",
            {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "well"},
            "well a\n\nb",
        ),
        ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[one] two"),
        ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "P.S. more"),
        ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "- a\n- b\n- c\n- d"),
        ("detectable_format:constrained_response", {}, "My answer is perhaps."),
        ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "** ** nothing"),
        ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 2}, "SECTION 1"),
        ("detectable_format:json_format", {}, "{'a': 1}"),
        ("detectable_format:title", {}, "<< >> text"),
        ("combination:two_responses", {}, "same\n******\nsame"),
        ("combination:two_responses", {}, "******".join("abcde")),
        ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "Sure! Answer: no"),
        ("startend:end_checker", {"end_phrase": "The end."}, "The end. Or not?"),
        ("startend:quotation", {}, '"text'),
        ("change_case:english_capital", {}, "THIS IS not it, as the small letters of this text show"),
        ("change_case:english_capital", {}, SAMPLES["de"].upper()),
        ("change_case:english_lowercase", {}, ENGLISH.title()),
        ("change_case:capital_word_frequency", {"capital_relation": "less than", "capital_frequency": 1}, "a NASA one"),
        ("punctuation:no_comma", {}, "one, two"),
    ],
)
def test_a_text_that_does_something_else_does_not_follow(kind: str, told: dict[str, Any], text: str) -> None:
    assert follows(kind, text, **told) == (False, False)


@pytest.mark.parametrize(
    ("kind", "told", "text"),
    [
        ("startend:quotation", {}, 'Sure, here it is:\n"text"'),
        ("startend:end_checker", {"end_phrase": "The end."}, "text. The end.\nI hope this helps!"),
        ("punctuation:no_comma", {}, "Sure, here:\nno such thing"),
        ("startend:quotation", {}, '**"text"**'),
        ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "Sure!\nSay it. It."),
    ],
)
def test_a_frame_around_the_answer_is_forgiven_loosely(kind: str, told: dict[str, Any], text: str) -> None:
    assert follows(kind, text, **told) == (False, True)


def test_there_are_eight_loose_readings_of_a_text() -> None:
    assert variants("*a*\nb\nc") == ["*a*\nb\nc", "b\nc", "*a*\nb", "b", "a\nb\nc", "a\nb"]
    assert len(variants("*a*\n*b*\n*c*")) == 8


def test_the_language_of_a_text_is_the_same_every_time() -> None:
    for code, text in SAMPLES.items():
        for _ in range(3):
            assert follows("language:response_language", f"{text} ", language=code) == (True, True), code


@pytest.mark.parametrize(
    ("kind", "told", "words"),
    [
        ("keywords:nonsense", {}, "unknown"),
        ("keywords:existence", {"keywords": None}, "keywords"),
        ("length_constraints:number_words", {"relation": "exactly", "num_words": 3}, "relation"),
        ("keywords:letter_frequency", {"letter": "ab", "let_relation": "at least", "let_frequency": 1}, "letter"),
    ],
)
def test_an_instruction_that_cannot_be_read_is_refused_in_words(kind: str, told: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        instruction(kind, told)

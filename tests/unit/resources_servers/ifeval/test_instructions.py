"""The 25 kinds of instruction: texts that follow them strictly, loosely or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.resources_servers.ifeval.scoring import KINDS, instruction, variants
from tests.unit.resources_servers.answers.grading import DATA, rows_of
from tests.unit.resources_servers.ifeval.following_texts import ENGLISH, SAMPLES, follows, text_that_follows

ROWS = rows_of(DATA / "ifeval" / "input_data.jsonl")
BULLETS = "detectable_format:number_bullet_lists"
JSON = "detectable_format:json_format"
NTH = "length_constraints:nth_paragraph_first_word"


def test_every_instruction_of_the_dataset_can_be_followed() -> None:
    pairs = [pair for row in ROWS for pair in zip(row["instruction_id_list"], row["kwargs"], strict=True)]
    missed = [pair for pair in pairs if not follows(pair[0], text_that_follows(*pair), **pair[1])[0]]
    assert missed == []
    assert (len(pairs), {kind for kind, _ in pairs}) == (834, set(KINDS))


def test_an_empty_text_follows_nothing() -> None:
    kwargs_by_kind = {
        kind: kwargs for row in ROWS for kind, kwargs in zip(row["instruction_id_list"], row["kwargs"], strict=True)
    }
    assert len(kwargs_by_kind) == 25
    for kind, kwargs in kwargs_by_kind.items():
        for text in ("", " \n "):
            assert follows(kind, text, **kwargs) == (False, False), kind


@pytest.mark.parametrize(("letter", "key"), [("#", 1122), ("!", 1129)])
def test_the_two_rows_that_request_a_punctuation_mark_count_it(letter: str, key: int) -> None:
    (row,) = [row for row in ROWS if row["key"] == key]
    (kwargs,) = [kwargs for kwargs in row["kwargs"] if "letter" in kwargs]
    enough, too_few = letter * kwargs["let_frequency"], letter * (kwargs["let_frequency"] - 1)
    for _ in range(3):
        assert follows("keywords:letter_frequency", f"text {enough}", **kwargs) == (True, True)
        assert follows("keywords:letter_frequency", f"abcdefghijklmnopqrstuvwxyz {too_few}", **kwargs) == (False, False)


@pytest.mark.parametrize(
    ("kind", "kwargs", "text"),
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
def test_a_text_that_does_something_else_does_not_follow(kind: str, kwargs: dict[str, Any], text: str) -> None:
    assert follows(kind, text, **kwargs) == (False, False)


@pytest.mark.parametrize(
    ("kind", "kwargs", "text"),
    [
        ("startend:quotation", {}, 'Sure, here it is:\n"text"'),
        ("startend:end_checker", {"end_phrase": "The end."}, "text. The end.\nI hope this helps!"),
        ("punctuation:no_comma", {}, "Sure, here:\nno such thing"),
        ("startend:quotation", {}, '**"text"**'),
        ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "Sure!\nSay it. It."),
    ],
)
def test_a_frame_around_the_answer_is_accepted_loosely(kind: str, kwargs: dict[str, Any], text: str) -> None:
    assert follows(kind, text, **kwargs) == (False, True)


def test_a_text_has_eight_loose_variants() -> None:
    assert variants("*a*\nb\nc") == ["*a*\nb\nc", "b\nc", "*a*\nb", "b", "a\nb\nc", "a\nb"]
    assert len(variants("*a*\n*b*\n*c*")) == 8


@pytest.mark.parametrize(
    "text", ["*\n- a\n- b", "  * a\n\t- b\n-c", "- a\r\n- b\r\n- c", "---\n* a\n\n\n* b", "* *a*\n* b\n***\n-"]
)
def test_a_line_starting_with_a_star_or_dash_is_a_bullet_unless_it_starts_with_two_stars(text: str) -> None:
    assert follows(BULLETS, text, num_bullets=3) == (True, True)


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"a": 1}\n```',
        '```JSON {"a": 1} ```',
        '{"a": 1}\n```',
        '```\n{"a": 1}',
        '```json\u2028{"a": 1}\u2028```',
        '"a"',
        r'{"a": "\ud800"}',
        '{"a": 1, "a": 2}',
    ],
)
def test_valid_json_is_accepted_with_either_end_of_a_fence_missing(text: str) -> None:
    assert follows(JSON, text)[0]


@pytest.mark.parametrize(
    "text", ['{"a": 1,}', '{"a": "x\ny"}', "```python\n{}\n```", "```jSon\n{}\n```", '{"a": 1}\n{"b": 2}', "\ufeff{}"]
)
def test_invalid_json_is_rejected(text: str) -> None:
    assert not follows(JSON, text)[0]


@pytest.mark.parametrize("text", ['{"a": NaN}', "[Infinity]", "-Infinity"])
def test_nan_and_infinity_are_not_json_unlike_in_lm_eval(text: str) -> None:
    assert follows(JSON, text) == (False, False)


def test_deeply_nested_json_is_rejected_instead_of_crashing_as_in_lm_eval() -> None:
    assert follows(JSON, "[" * 100_000 + "]" * 100_000) == (False, False)


@pytest.mark.parametrize("text", ["'Word text", '"Word, text', "'\"word text", "word! text", "WORD"])
def test_the_first_word_is_compared_without_quotes_and_punctuation(text: str) -> None:
    assert follows(NTH, f"one\n\n{text}", num_paragraphs=2, nth_paragraph=2, first_word="word") == (True, True)


@pytest.mark.parametrize("text", ["**Word** text", "\"'word text", "words text", "wörd text", "* word"])
def test_a_first_word_in_markup_does_not_match_strictly(text: str) -> None:
    assert not follows(NTH, f"one\n\n{text}", num_paragraphs=2, nth_paragraph=2, first_word="word")[0]


@pytest.mark.parametrize(
    ("keyword", "text"),
    [("sneaker", "SNEAKERS"), ("java", "javascript"), ("istanbul", "İstanbul"), ("waste", "waſte"), ("C++", "c++20")],
)
def test_a_keyword_is_matched_literally_in_any_case_and_inside_words(keyword: str, text: str) -> None:
    assert follows("keywords:existence", text, keywords=[keyword]) == (True, True)
    assert follows("keywords:frequency", text, keyword=f" {keyword} ", frequency=1, relation="at least") == (True, True)
    assert not follows("keywords:existence", "Cxx", keywords=["C.."])[0]


@pytest.mark.parametrize(
    ("kind", "kwargs", "message"),
    [
        ("keywords:nonsense", {}, "unknown"),
        ("keywords:existence", {"keywords": None}, "keywords"),
        ("length_constraints:number_words", {"relation": "exactly", "num_words": 3}, "relation"),
        ("keywords:letter_frequency", {"letter": "ab", "let_relation": "at least", "let_frequency": 1}, "letter"),
    ],
)
def test_an_invalid_instruction_is_rejected_with_a_message(kind: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        instruction(kind, kwargs)

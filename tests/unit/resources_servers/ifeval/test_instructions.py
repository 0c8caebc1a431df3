"""The 25 kinds of instruction: texts that follow them strictly, loosely or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.resources_servers.ifeval.app import outcome, variants
from rollyard.resources_servers.ifeval.instruction import (
    KINDS,
    LANGUAGES,
    Instruction,
    instruction,
    language_of,
    word_count,
    words_in_capitals,
)
from rollyard.resources_servers.ifeval.sentences import sentence_count
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
    items = dict(item for row in ROWS for item in zip(row["instruction_id_list"], row["kwargs"], strict=True))
    for kind, kwargs in items.items():
        assert follows(kind, "", **kwargs) == follows(kind, " \n ", **kwargs) == (False, False), kind


@pytest.mark.parametrize(("letter", "key"), [("#", 1122), ("!", 1129)])
def test_the_two_rows_that_request_a_punctuation_mark_count_it(letter: str, key: int) -> None:
    (kwargs,) = [kwargs for row in ROWS if row["key"] == key for kwargs in row["kwargs"] if "letter" in kwargs]
    enough, too_few = letter * kwargs["let_frequency"], letter * (kwargs["let_frequency"] - 1)
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
        (NTH, {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "well"}, "well a\n\nb"),
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
        (JSON, {}, "[" * 100_000 + "]" * 100_000),
        ("language:response_language", {"language": "kn"}, f"{ENGLISH}\n***"),
    ],
)
def test_a_text_that_does_something_else_does_not_follow(kind: str, kwargs: dict[str, Any], text: str) -> None:
    assert follows(kind, text, **kwargs) == (False, False)


def test_a_frame_around_the_answer_is_accepted_loosely() -> None:
    phrase, prompt = {"end_phrase": "The end."}, {"prompt_to_repeat": "Say it."}
    assert follows("startend:quotation", 'Sure, here it is:\n"text"') == (False, True)
    assert follows("startend:quotation", '**"text"**') == (False, True)
    assert follows("startend:end_checker", "text. The end.\nI hope this helps!", **phrase) == (False, True)
    assert follows("punctuation:no_comma", "Sure, here:\nno such thing") == (False, True)
    assert follows("combination:repeat_prompt", "Sure!\nSay it. It.", **prompt) == (False, True)


def test_a_line_starting_with_a_star_or_dash_is_a_bullet_unless_it_starts_with_two_stars() -> None:
    for text in ("*\n- a\n- b", "  * a\n\t- b\n-c", "- a\r\n- b\r\n- c", "---\n* a\n\n\n* b", "* *a*\n* b\n***\n-"):
        assert follows(BULLETS, text, num_bullets=3) == (True, True)


def test_a_text_has_eight_loose_variants() -> None:
    assert variants("*a*\nb\nc") == ["*a*\nb\nc", "b\nc", "*a*\nb", "b", "a\nb\nc", "a\nb"]
    assert len(variants("*a*\n*b*\n*c*")) == 8


JSON_TEXTS = {
    True: ['```json\n{"a": 1}\n```', '```JSON {"a": 1} ```', '{"a": 1}\n```', '```\n{"a": 1}', '"a"',
           r'{"a": "\ud800"}', '{"a": 1, "a": 2}', '```json\u2028{"a": 1}\u2028```'],
    False: ['{"a": 1,}', '{"a": "x\ny"}', "```python\n{}\n```", "```jSon\n{}\n```", '{"a": 1}\n{"b": 2}', "\ufeff{}",
            '{"a": NaN}', "[Infinity]", "-Infinity"],
}  # fmt: skip
"""Either end of a fence may be missing. lm_eval also accepts NaN and infinity."""


def test_only_valid_json_is_accepted() -> None:
    for is_json, texts in JSON_TEXTS.items():
        assert [text for text in texts if follows(JSON, text)[0] is not is_json] == []


def test_the_first_word_is_compared_without_quotes_and_punctuation_but_with_markup() -> None:
    right = ("'Word text", '"Word, text', "'\"word text", "word! text", "WORD")
    for text in (*right, "**Word** text", "\"'word text", "words text", "wörd text", "* word"):
        found = follows(NTH, f"one\n\n{text}", num_paragraphs=2, nth_paragraph=2, first_word="word")
        assert found[0] is (text in right), text


@pytest.mark.parametrize(
    ("keyword", "text"),
    [("sneaker", "SNEAKERS"), ("java", "javascript"), ("istanbul", "İstanbul"), ("waste", "waſte"), ("C++", "c++20")],
)
def test_a_keyword_is_matched_literally_in_any_case_and_inside_words(keyword: str, text: str) -> None:
    assert follows("keywords:existence", text, keywords=[keyword]) == (True, True)
    assert follows("keywords:frequency", text, keyword=f" {keyword} ", frequency=1, relation="at least") == (True, True)
    assert not follows("keywords:existence", "Cxx", keywords=["C.."])[0]


@pytest.mark.parametrize(
    "kind", ["language:response_language", "change_case:english_lowercase", "change_case:english_capital"]
)
@pytest.mark.parametrize("text", ["https://example.com", "me@example.com", "12345 ...", "😀", "A@B.CO"])
def test_a_text_without_a_language_matches_none_unlike_in_lm_eval(kind: str, text: str) -> None:
    kwargs = {"language": "en"} if kind.startswith("language") else {}
    assert follows(kind, text, **kwargs) == (False, False)


@pytest.mark.parametrize("mixed", [f"{SAMPLES['hi']} {ENGLISH}", f"{ENGLISH}. {SAMPLES['de']}", SAMPLES["pt"][:12]])
def test_a_text_is_in_one_language_at_most(mixed: str) -> None:
    assert sum(follows("language:response_language", mixed, language=code)[0] for code in LANGUAGES) == 1


def test_detection_is_right_and_does_not_depend_on_the_process_or_the_order() -> None:
    for code, text in SAMPLES.items():
        assert follows("language:response_language", f"{text} ", language=code) == (True, True), code
    texts = [text[:size] for text in (*SAMPLES.values(), ENGLISH) for size in (3, 9, 30, 200)]
    program = (
        "import sys, json\n"
        "from rollyard.resources_servers.ifeval.instruction import language_of\n"
        "print(json.dumps([language_of(text) for text in reversed(json.load(sys.stdin))]))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", program]
    printed = subprocess.check_output(command, input=json.dumps(texts), text=True, cwd=INSTALLED, env=env)
    assert json.loads(printed) == [language_of(text) for text in texts][::-1]


def test_the_listed_languages_are_those_that_langdetect_supports() -> None:
    from langdetect.detector_factory import PROFILES_DIRECTORY  # type: ignore[import-untyped]

    assert sorted(file.name for file in Path(PROFILES_DIRECTORY).iterdir()) == list(LANGUAGES)


COUNTED: dict[Callable[[str], int], list[tuple[str, int]]] = {
    word_count: [  # a combining mark neither splits a word nor counts as one
        ("It's 3.50, isn't-it?", 7), ("snake_case word", 2), ("cafe\u0301 au lait", 3), ("हिंदी में लिखा", 3),
        ("এটি বাংলা ভাষায়", 3), ("می\u200cشود این", 2), ("நான் தமிழ்", 2), ("❤️ two 1️⃣ 😀", 2), ("--- ... !", 0),
    ],
    words_in_capitals: [  # split as in the Penn Treebank
        ('I "DON\'T" like **NASA**, (U.S.) or HI-FI!', 6), ("HELLO,WORLD R&D A/B 3D COVID-19 X_Y", 8),
        ("WORD--WORD—WORD–WORD WORD...WORD", 6), ("WORD******other <<a\nb>>WORD [NO] {YES} `CODE` ‘HM’ “EH”", 7),
        ("CANNOT GONNA GIMME LEMME GOTTA", 10), ("IT'S NASA's O'CLOCK ROCK’N’ROLL", 7),
        ("don't Mixed É ẞ Ⅷ 42 ...", 3), ("#TAG @ME $USD 50%OFF A=B 3,000", 5),
    ],
    sentence_count: [
        # marks that end a sentence
        ("Hello. World!", 2), ("Mr. Smith went to the U.S. today. He was e.g. happy.", 2), ("Wait... what? Yes!", 2),
        ("It costs $3.50. OK.", 2), ("J. K. Rowling wrote it. So did I. He left.", 3), ('He said "Go." She went.', 2),
        ("1. First item.\n2. Second item.", 2), ("No punctuation here", 1), ("?!", 0), ("", 0),
        # the context of a dot
        ("My answer is no.\nMy answer is maybe.", 2), ("See No. 5 in Fig. 3. The answer is no. Why?", 3),
        ("Take vitamin C. It helps.", 2), ("Flowers of Packet A.\nWe know them.", 2),
        ("The house is x. So we write it.", 2), ("I was. He is. It was I. Am I?", 4),
        ("J. Smith met p. 5 of W. H. Auden.", 1), ("Wait … what? So … yes.", 2),
        ("Give it (1. do not say a word; 2. repeat it).", 1), ("I have 2. Then go.", 2),
        ("The answer:\n42.\nSo it is.", 2), ("In the U.S. the laws differ. In the U.S. Congress makes them.", 2),
        # an abbreviation ends a sentence only before a word that starts one
        ("St. Louis and St. Paul are cities.", 1), ("The U.S. Supreme Court met U.S. lawyers.", 1),
        ("Gov. Brown of Calif. and Sen. Lee of Va. met Rep. King Jr. of N.Y. on Jan. 5.", 1),
        ("Rev. Dr. King and Lt. Col. Smith vs. Capt. Hook, Ph.D., et al. of Acme Inc. in Washington, D.C. spoke.", 1),
        ("He lives in the U.S. She lives in the U.K. We left.", 3),
        ("He works for Acme Inc. They met at 5 p.m. Then it rained.", 3),
        ("The S.P.C.A. Building, a.k.a. the U.A.E. Tower, opened at 9 a.m. Eastern time on Mar. 5.", 1),
        ("R.S.V.P. We wait. It is made in the U.S.S.R. They know.", 4), ("Mt. Everest is high. Ft. Worth is not.", 2),
        ("Apples, pears, etc. are cheap. Use a tool, i.e. a hammer (e.g. mine).", 2),
        ("See Fig. 3, Sec. 2.1, No. 5 and pp. 5-7. The answer is no. Five is more.", 3),
        # unlike in Punkt: list labels and punctuation are no sentences; bold text and other scripts end them
        *((f"{label} One.\n{label} Two.", 2) for label in ("1.", "**1.**", "## 1.1.", "> 3.", "  a.", "B.", "- 10.")),
        ("***", 0), ("😀", 0), ('"', 0), ("One.\n***\nTwo.", 2), ("**Bold one.** Plain one.", 2),
        ("We met at 5 p.m. Then we left.", 2), ("これは文です。次の文です。", 2),
    ],
}  # fmt: skip


@pytest.mark.parametrize("count", COUNTED, ids=lambda count: count.__name__)
def test_words_and_sentences_are_counted(count: Callable[[str], int]) -> None:
    assert [(text, count(text)) for text, _ in COUNTED[count]] == COUNTED[count]


NEGLIGIBLE_S = 0.002
HARD = {
    "dots": ("", ".", "x"), "marks": ("", ".)", "x"), "initials": ("", "p.\np.", ""), "numbers": ("", "1. ", ""),
    "abbreviations": ("", "U.S. ", ""), "spaced dots": ("", ". ", ""), "ideographic dots": ("", "。a", ""),
    "labels": ("", "1.", " x"), "stars": ("", "*", "x"), "brackets": ("", "[", "]"), "titles": (">>", "<<x", ""),
    "blanks": ("x", " ", "x"), "lines": ("x", "\n", "x"), "quotes": ("A's" * 2_000, "'", ""), "emoji": ("", "😀", ""),
    "accents": ("e", "\u0301", ""), "fences": ("", "```json", ""), "objects": ("", '{"a":', ""),
    "one word": ("", "x", ""), "addresses": ("", "a@b", ""),
    "dividers": ("", "a\n***\n", ""), "sections": ("", "SECTION 1", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HARD)
def test_the_cost_of_a_verdict_is_linear_in_the_text(name: str) -> None:
    def text(size: int) -> str:
        lead, piece, tail = HARD[name]
        return lead + piece * (size // len(piece)) + tail

    items = [item for row in ROWS for item in zip(row["instruction_id_list"], row["kwargs"], strict=True)]
    for kind, kwargs in dict(items).items():
        checked = instruction(kind, kwargs)
        if _cost(kind, checked, text(8_000)) > 30 * NEGLIGIBLE_S:
            small, large = (
                min(_cost(kind, checked, f"{text(size)}{number}") for number in range(2))  # cached by text
                for size in (1_000, 8_000)
            )
            assert large < 30 * max(small, NEGLIGIBLE_S), kind  # quadratic: 64


def _cost(kind: str, checked: Instruction, text: str) -> float:
    """CPU seconds of a verdict."""
    started = process_time()
    outcome(kind, checked, text)
    return process_time() - started

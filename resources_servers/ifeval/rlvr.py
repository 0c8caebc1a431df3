"""The 25 functions of the training set RLVR-IFEval (allenai/RLVR-IFEval). Each row's `ground_truth` names one of them.

The arguments have the functions' names. Functions that are equivalent to an IFEval instruction reuse it under their own
argument names. README.md lists the differences from IFEval and from the published code.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field

from rollyard.resources_servers.ifeval import instruction as ifeval
from rollyard.resources_servers.ifeval.instruction import (
    Count,
    Instruction,
    InstructionKinds,
    Letter,
    Number,
    Phrase,
    Phrases,
    shown,
)
from rollyard.resources_servers.ifeval.sentences import sentence_count

Quantifier = Literal["at least", "around", "at most"]
_CAPITALS = re.compile(r"\b[A-Z]+\b")
_BETWEEN_OPTIONS = re.compile(r"[/\n,;]|\bor\b")


def _listed(options: Any) -> Any:
    """Split options that are given as a single string, such as `yes/no/maybe`."""
    if type(options) is not str:
        return options
    return [part.strip() for part in _BETWEEN_OPTIONS.split(options) if part.strip()]


def _holds(found: int, quantifier: Quantifier, number: int, tolerance: int | None = None) -> bool:
    """Compare the counts. `tolerance` of around: by default a tenth, but at least 1."""
    if quantifier == "around":
        return abs(found - number) <= (tolerance or max(round(number * 0.1), 1))
    return found >= number if quantifier == "at least" else found <= number


def _whole(word: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", flags)


FUNCTIONS = InstructionKinds()
FUNCTIONS.add("verify_keywords", keywords="keyword_list")(ifeval.existence)
FUNCTIONS.add("validate_response_language")(ifeval.response_language)
FUNCTIONS.add("validate_placeholders", num_placeholders="N")(ifeval.number_placeholders)
FUNCTIONS.add("verify_bullet_points", num_bullets="N")(ifeval.number_bullet_lists)
FUNCTIONS.add("validate_title")(ifeval.title)
FUNCTIONS.add("validate_highlighted_sections", num_highlights="N")(ifeval.number_highlighted_sections)
FUNCTIONS.add("validate_json_format")(ifeval.json_format)
FUNCTIONS.add("validate_repeat_prompt", prompt_to_repeat="original_prompt")(ifeval.repeat_prompt)
FUNCTIONS.add("validate_two_responses")(ifeval.two_responses)
FUNCTIONS.add("validate_quotation")(ifeval.quotation)
FUNCTIONS.add("validate_no_commas")(ifeval.no_comma)
FUNCTIONS.add("validate_uppercase")(str.isupper)
FUNCTIONS.add("validate_lowercase")(str.islower)


@FUNCTIONS.add("verify_keyword_frequency", n="N")
def keyword_frequency(text: str, word: Phrase, n: Count) -> bool:
    """The response contains the whole word exactly N times, ignoring case."""
    return sum(1 for _ in _whole(word.strip(), re.IGNORECASE).finditer(text)) == n


@FUNCTIONS.add("validate_forbidden_words")
def forbidden_words(text: str, forbidden_words: Phrases) -> bool:
    """The response contains none of the words, ignoring case, not even as part of a longer word."""
    return not any(word.lower() in text.lower() for word in forbidden_words)


@FUNCTIONS.add("verify_letter_frequency", n="N")
def letter_frequency(text: str, letter: Letter, n: Count) -> bool:
    """The response contains the letter exactly N times. Case matters."""
    return text.count(letter) == n


@FUNCTIONS.add("verify_paragraph_count", n="N")
def paragraph_count(text: str, n: Number) -> bool:
    """The response has exactly N paragraphs, separated by `* * *`. None of them is empty."""
    parts = text.split("* * *")
    return len(parts) == n and all(part.strip() for part in parts)


@FUNCTIONS.add("validate_word_constraint", n="N")
def word_constraint(text: str, n: Count, quantifier: Quantifier) -> bool:
    """The response has at least N, at most N, or around N (±10%) words, separated by whitespace."""
    return _holds(len(text.split()), quantifier, n)


@FUNCTIONS.add("verify_sentence_constraint", n="N")
def sentence_constraint(text: str, n: Count, quantifier: Quantifier) -> bool:
    return _holds(sentence_count(text), quantifier, n, tolerance=1)


@FUNCTIONS.add("validate_paragraphs", at_most=("i", "n"), n="N")
def paragraphs(text: str, n: Number, i: Number, first_word: Phrase) -> bool:
    """The response has exactly N paragraphs, separated by an empty line, and the i-th starts with the given word."""
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    return len(parts) == n and re.match(rf"{re.escape(first_word.strip())}(?!\w)", parts[i - 1]) is not None


@FUNCTIONS.add("verify_postscript")
def postscript(text: str, postscript_marker: Phrase) -> bool:
    """The response contains the marker and some text after it."""
    _, marker, rest = text.partition(postscript_marker.strip())
    return bool(marker and rest.strip())


@FUNCTIONS.add("validate_choice")
def choice(text: str, options: Annotated[list[Phrase], BeforeValidator(_listed), Field(min_length=1)]) -> bool:
    """The response contains exactly one of the options, as a whole word, and none of the others."""
    named: set[str] = set()
    # Longest first, and each match is removed, so that `not sure` does not also count as `sure`.
    for option in sorted({option.strip() for option in options}, key=len, reverse=True):
        text, found = _whole(option).subn("\n", text)
        if found:
            named.add(option)
    return len(named) == 1


@FUNCTIONS.add("validate_sections", n="N")
def sections(text: str, n: Count, section_splitter: Phrase) -> bool:
    """The response has at least N sections. Each starts with the given word, in upper or lower case, and a number."""
    return len(re.findall(rf"{re.escape(section_splitter.strip())}\s?\d", text, re.IGNORECASE)) >= n


@FUNCTIONS.add("validate_frequency_capital_words", n="N")
def frequency_capital_words(text: str, n: Count, quantifier: Quantifier) -> bool:
    """At least, at most or around N (±10 %) words in capital letters A to Z, single letters included."""
    return _holds(len(_CAPITALS.findall(text)), quantifier, n)


@FUNCTIONS.add("validate_end")
def end(text: str, end_phrase: Phrase) -> bool:
    return text.rstrip().endswith(end_phrase.strip())


def instruction(ground_truth: Any) -> tuple[str, Instruction]:
    """Parse `ground_truth`, an object or its JSON text: the function's name and the instruction. Raises ValueError."""
    arguments, problem = ground_truth, ""
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except ValueError as error:
            problem = f": {error}"
    name = arguments.get("func_name") if isinstance(arguments, dict) else None
    if not isinstance(name, str) or name not in FUNCTIONS:
        expected = f"an object whose func_name is one of {', '.join(FUNCTIONS)}"
        raise ValueError(f"ground_truth is {shown(ground_truth)}; expected {expected}{problem}")
    return name, FUNCTIONS.read(name, arguments)

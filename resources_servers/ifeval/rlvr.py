"""The 25 functions of the training set RLVR-IFEval (allenai/RLVR-IFeval). Each row's `ground_truth` names one of them.

The fields are named after the functions' arguments. Functions that are equivalent to an IFEval instruction reuse it
under their own argument names. README.md lists the differences from IFEval and from the published code.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import BeforeValidator, Field, model_validator

from rollyard.resources_servers.ifeval import instruction as ifeval
from rollyard.resources_servers.ifeval.instruction import Count, Instruction, Phrase, read, shown
from rollyard.resources_servers.ifeval.sentences import sentence_count

Quantifier = Literal["at least", "around", "at most"]
_CAPITALS = re.compile(r"\b[A-Z]+\b")
_BETWEEN_OPTIONS = re.compile(r"[/\n,;]|\bor\b")


def _listed(options: Any) -> Any:
    """Split options that are given as a single string, such as `yes/no/maybe`."""
    return (
        [part.strip() for part in _BETWEEN_OPTIONS.split(options) if part.strip()] if type(options) is str else options
    )


def _holds(found: int, quantifier: Quantifier, number: int, tolerance: int) -> bool:
    match quantifier:
        case "at least":
            return found >= number
        case "at most":
            return found <= number
        case "around":
            return abs(found - number) <= tolerance


def _tenth(number: int) -> int:
    return max(round(number * 0.1), 1)


def _whole(word: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", flags)


class Keywords(ifeval.Existence):
    """The response contains every keyword, ignoring case. Keywords may be part of a longer word."""

    keywords: list[Phrase] = Field(min_length=1, validation_alias="keyword_list")


class KeywordFrequency(Instruction):
    """The response contains the whole word exactly N times, ignoring case."""

    word: Phrase
    N: Count

    def _holds(self, text: str) -> bool:
        return sum(1 for _ in _whole(self.word.strip(), re.IGNORECASE).finditer(text)) == self.N


class RlvrForbiddenWords(Instruction):
    """The response contains none of the words, ignoring case, not even as part of a longer word."""

    forbidden_words: list[Phrase] = Field(min_length=1)

    def _holds(self, text: str) -> bool:
        return not any(word.lower() in text.lower() for word in self.forbidden_words)


class RlvrLetterFrequency(Instruction):
    """The response contains the letter exactly N times. Case matters."""

    letter: str = Field(min_length=1, max_length=1)
    N: Count

    def _holds(self, text: str) -> bool:
        return text.count(self.letter) == self.N


class ParagraphCount(Instruction):
    """The response has exactly N paragraphs, separated by `* * *`. None of them is empty."""

    N: Count = Field(ge=1)

    def _holds(self, text: str) -> bool:
        parts = text.split("* * *")
        return len(parts) == self.N and all(part.strip() for part in parts)


class WordConstraint(Instruction):
    """The response has at least N, at most N, or around N (±10%) words, separated by whitespace."""

    N: Count
    quantifier: Quantifier

    def _holds(self, text: str) -> bool:
        return _holds(len(text.split()), self.quantifier, self.N, _tenth(self.N))


class SentenceConstraint(Instruction):
    """The response has at least, at most or around N sentences (±1)."""

    N: Count
    quantifier: Quantifier

    def _holds(self, text: str) -> bool:
        return _holds(sentence_count(text), self.quantifier, self.N, 1)


class Paragraphs(Instruction):
    """The response has exactly N paragraphs, separated by an empty line, and the i-th starts with the given word."""

    N: Count = Field(ge=1)
    i: Count = Field(ge=1)
    first_word: Phrase

    @model_validator(mode="after")
    def _paragraph_exists(self) -> Self:
        if self.i > self.N:
            raise ValueError(f"i is {self.i}, but N is only {self.N}")
        return self

    def _holds(self, text: str) -> bool:
        parts = [part.strip() for part in text.split("\n\n") if part.strip()]
        word = self.first_word.strip()
        return len(parts) == self.N and re.match(rf"{re.escape(word)}(?!\w)", parts[self.i - 1]) is not None


class RlvrPostscript(Instruction):
    """The response contains the marker and some text after it."""

    postscript_marker: Phrase

    def _holds(self, text: str) -> bool:
        _, marker, rest = text.partition(self.postscript_marker.strip())
        return bool(marker and rest.strip())


class Placeholders(ifeval.NumberPlaceholders):
    """The response has at least N placeholders in square brackets."""

    num_placeholders: Count = Field(validation_alias="N")


class BulletPoints(ifeval.NumberBulletLists):
    """The response has exactly N bullet points."""

    num_bullets: Count = Field(validation_alias="N")


class Choice(Instruction):
    """The response contains exactly one of the options, as a whole word, and none of the others."""

    options: Annotated[list[Phrase], BeforeValidator(_listed)] = Field(min_length=1)

    def _holds(self, text: str) -> bool:
        named: set[str] = set()
        # Longest first, and each match is removed, so that `not sure` does not also count as `sure`.
        for option in sorted({option.strip() for option in self.options}, key=len, reverse=True):
            text, found = _whole(option).subn("\n", text)
            if found:
                named.add(option)
        return len(named) == 1


class HighlightedSections(ifeval.NumberHighlightedSections):
    """The response has at least N highlights, such as `*this*`."""

    num_highlights: Count = Field(validation_alias="N")


class Sections(Instruction):
    """The response has at least N sections. Each starts with the given word, in upper or lower case, and a number."""

    N: Count
    section_splitter: Phrase

    def _holds(self, text: str) -> bool:
        heads = re.finditer(rf"{re.escape(self.section_splitter.strip())}\s?\d", text, re.IGNORECASE)
        return sum(1 for _ in heads) >= self.N


class Uppercase(Instruction):
    """The response has upper-case letters, but no lower-case letters."""

    def _holds(self, text: str) -> bool:
        return text.isupper()


class Lowercase(Instruction):
    """The response has lower-case letters, but no upper-case letters."""

    def _holds(self, text: str) -> bool:
        return text.islower()


class CapitalWords(Instruction):
    """At least, at most or around N (±10 %) words in capital letters A to Z, single letters included."""

    N: Count
    quantifier: Quantifier

    def _holds(self, text: str) -> bool:
        found = sum(1 for _ in _CAPITALS.finditer(text))
        return _holds(found, self.quantifier, self.N, _tenth(self.N))


class RlvrRepeatPrompt(ifeval.RepeatPrompt):
    """The response starts with the prompt, repeated word for word. Case is ignored."""

    prompt_to_repeat: Phrase = Field(validation_alias="original_prompt")


class End(Instruction):
    """The response ends with exactly this phrase."""

    end_phrase: Phrase

    def _holds(self, text: str) -> bool:
        return text.rstrip().endswith(self.end_phrase.strip())


FUNCTIONS: dict[str, type[Instruction]] = {
    "verify_keywords": Keywords,
    "verify_keyword_frequency": KeywordFrequency,
    "validate_forbidden_words": RlvrForbiddenWords,
    "verify_letter_frequency": RlvrLetterFrequency,
    "validate_response_language": ifeval.ResponseLanguage,
    "verify_paragraph_count": ParagraphCount,
    "validate_word_constraint": WordConstraint,
    "verify_sentence_constraint": SentenceConstraint,
    "validate_paragraphs": Paragraphs,
    "verify_postscript": RlvrPostscript,
    "validate_placeholders": Placeholders,
    "verify_bullet_points": BulletPoints,
    "validate_title": ifeval.Title,
    "validate_choice": Choice,
    "validate_highlighted_sections": HighlightedSections,
    "validate_sections": Sections,
    "validate_json_format": ifeval.JsonFormat,
    "validate_repeat_prompt": RlvrRepeatPrompt,
    "validate_two_responses": ifeval.TwoResponses,
    "validate_uppercase": Uppercase,
    "validate_lowercase": Lowercase,
    "validate_frequency_capital_words": CapitalWords,
    "validate_end": End,
    "validate_quotation": ifeval.Quotation,
    "validate_no_commas": ifeval.NoComma,
}


def instruction(ground_truth: Any) -> tuple[str, Instruction]:
    """Parse `ground_truth`, an object or its JSON text: the function's name and the instruction. Raises ValueError."""
    arguments = ground_truth
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except ValueError as error:
            raise ValueError(
                f"ground_truth is {shown(ground_truth)}; expected a JSON object with func_name: {error}"
            ) from error
    name = arguments.get("func_name") if isinstance(arguments, dict) else None
    if not isinstance(name, str) or name not in FUNCTIONS:
        raise ValueError(
            f"ground_truth is {shown(ground_truth)}; expected an object whose func_name is one of"
            f" {', '.join(FUNCTIONS)}"
        )
    return name, read(name, FUNCTIONS[name], arguments)

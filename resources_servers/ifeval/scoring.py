"""A prompt's instructions, and how a response follows them: strictly, or with a frame around the answer forgiven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from resources_servers.ifeval import markup, shape, wording
from resources_servers.ifeval.instruction import Instruction

KINDS: dict[str, type[Instruction]] = {
    "change_case:capital_word_frequency": wording.CapitalWordFrequency,
    "change_case:english_capital": wording.EnglishCapital,
    "change_case:english_lowercase": wording.EnglishLowercase,
    "combination:repeat_prompt": shape.RepeatPrompt,
    "combination:two_responses": shape.TwoResponses,
    "detectable_content:number_placeholders": markup.NumberPlaceholders,
    "detectable_content:postscript": markup.Postscript,
    "detectable_format:constrained_response": markup.ConstrainedResponse,
    "detectable_format:json_format": markup.JsonFormat,
    "detectable_format:multiple_sections": markup.MultipleSections,
    "detectable_format:number_bullet_lists": markup.NumberBulletLists,
    "detectable_format:number_highlighted_sections": markup.NumberHighlightedSections,
    "detectable_format:title": markup.Title,
    "keywords:existence": wording.Existence,
    "keywords:forbidden_words": wording.ForbiddenWords,
    "keywords:frequency": wording.Frequency,
    "keywords:letter_frequency": wording.LetterFrequency,
    "language:response_language": wording.ResponseLanguage,
    "length_constraints:nth_paragraph_first_word": shape.NthParagraphFirstWord,
    "length_constraints:number_paragraphs": shape.NumberParagraphs,
    "length_constraints:number_sentences": shape.NumberSentences,
    "length_constraints:number_words": shape.NumberWords,
    "punctuation:no_comma": wording.NoComma,
    "startend:end_checker": shape.EndChecker,
    "startend:quotation": shape.Quotation,
}


@dataclass(frozen=True)
class Outcome:
    """How one instruction fared."""

    kind: str
    strict: bool
    loose: bool


def instruction(kind: str, told: Mapping[str, Any] | None) -> Instruction:
    """The instruction of a row. Raises ValueError in words."""
    if kind not in KINDS:
        raise ValueError(f"instruction {kind!r} is unknown; known: {', '.join(KINDS)}")
    try:
        # Data sets kept as tables carry every kind's keys, empty.
        return KINDS[kind].model_validate({key: value for key, value in (told or {}).items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{kind}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def outcome(kind: str, checked: Instruction, text: str) -> Outcome:
    """Whether `text` follows an instruction."""
    strict = checked.followed(text)
    return Outcome(kind, strict, strict or any(checked.followed(variant) for variant in variants(text)))


def variants(text: str) -> list[str]:
    """The text without its first line, its last, both, and each of the four also without asterisks."""
    lines = text.split("\n")
    cuts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return list(dict.fromkeys([*cuts, *(part.replace("*", "") for part in cuts)]))

"""Checks whether a response follows the instructions in a prompt: strictly, or loosely, ignoring text around the
answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollyard.resources_servers.ifeval import rlvr
from rollyard.resources_servers.ifeval.instruction import (
    CapitalWordFrequency,
    ConstrainedResponse,
    EndChecker,
    EnglishCapital,
    EnglishLowercase,
    Existence,
    ForbiddenWords,
    Frequency,
    Instruction,
    JsonFormat,
    LetterFrequency,
    MultipleSections,
    NoComma,
    NthParagraphFirstWord,
    NumberBulletLists,
    NumberHighlightedSections,
    NumberParagraphs,
    NumberPlaceholders,
    NumberSentences,
    NumberWords,
    Postscript,
    Quotation,
    RepeatPrompt,
    ResponseLanguage,
    Title,
    TwoResponses,
    read,
    shown,
)

KINDS: dict[str, type[Instruction]] = {
    "change_case:capital_word_frequency": CapitalWordFrequency,
    "change_case:english_capital": EnglishCapital,
    "change_case:english_lowercase": EnglishLowercase,
    "combination:repeat_prompt": RepeatPrompt,
    "combination:two_responses": TwoResponses,
    "detectable_content:number_placeholders": NumberPlaceholders,
    "detectable_content:postscript": Postscript,
    "detectable_format:constrained_response": ConstrainedResponse,
    "detectable_format:json_format": JsonFormat,
    "detectable_format:multiple_sections": MultipleSections,
    "detectable_format:number_bullet_lists": NumberBulletLists,
    "detectable_format:number_highlighted_sections": NumberHighlightedSections,
    "detectable_format:title": Title,
    "keywords:existence": Existence,
    "keywords:forbidden_words": ForbiddenWords,
    "keywords:frequency": Frequency,
    "keywords:letter_frequency": LetterFrequency,
    "language:response_language": ResponseLanguage,
    "length_constraints:nth_paragraph_first_word": NthParagraphFirstWord,
    "length_constraints:number_paragraphs": NumberParagraphs,
    "length_constraints:number_sentences": NumberSentences,
    "length_constraints:number_words": NumberWords,
    "punctuation:no_comma": NoComma,
    "startend:end_checker": EndChecker,
    "startend:quotation": Quotation,
}


@dataclass(frozen=True)
class Outcome:
    """Whether one instruction was followed."""

    kind: str
    strict: bool
    loose: bool


def instructions(row: Mapping[str, Any]) -> list[tuple[str, Instruction]]:
    """Return the instructions in a row of IFEval or RLVR-IFEval, each with its kind. Raises ValueError for an invalid
    row.
    """
    if row.get("ground_truth") is not None:
        return [rlvr.instruction(row["ground_truth"])]
    kinds, arguments = row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(kinds, list) or not isinstance(arguments, list) or not kinds or len(kinds) != len(arguments):
        raise ValueError(
            f"found instruction_id_list {shown(kinds)} and kwargs {shown(arguments)}; expected two non-empty lists of"
            " equal length"
        )
    return [(kind, instruction(kind, kwargs)) for kind, kwargs in zip(kinds, arguments, strict=True)]


def instruction(kind: Any, arguments: Any) -> Instruction:
    """Build an instruction from an item of `instruction_id_list` and its `kwargs`. Raises ValueError if they are
    invalid.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"instruction {shown(kind)} is unknown; expected one of {', '.join(KINDS)}")
    return read(kind, KINDS[kind], arguments)


def outcome(kind: str, checked: Instruction, text: str) -> Outcome:
    strict = checked.followed(text)
    return Outcome(kind, strict, strict or any(checked.followed(variant) for variant in variants(text)))


def variants(text: str) -> list[str]:
    """Return the text as it is, without its first line, without its last line, and without both, and each of these four
    without asterisks.
    """
    lines = text.split("\n")
    cuts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return list(dict.fromkeys([*cuts, *(part.replace("*", "") for part in cuts)]))

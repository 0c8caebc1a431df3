"""Instructions about the length, beginning, end and parts of a response."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, model_validator

from rollyard.resources_servers.ifeval.instruction import Count, Instruction, Phrase, Relation, counted
from rollyard.resources_servers.ifeval.sentences import sentence_count
from rollyard.resources_servers.ifeval.word_counts import word_count

_STARS = re.compile(r"\s?\*\*\*\s?")
_PUNCTUATION = re.compile(r"[.,?!'\"]")


class NumberSentences(Instruction):
    """The response has at least, or fewer than, `num_sentences` sentences."""

    num_sentences: Count
    relation: Relation

    def _holds(self, text: str) -> bool:
        return counted(sentence_count(text), self.relation, self.num_sentences)


class NumberWords(Instruction):
    """The response has at least, or fewer than, `num_words` words."""

    num_words: Count
    relation: Relation

    def _holds(self, text: str) -> bool:
        return counted(word_count(text), self.relation, self.num_words)


class NumberParagraphs(Instruction):
    """The response has exactly the given number of paragraphs, separated by `***`. None of them is empty."""

    num_paragraphs: Count = Field(ge=1)

    def _holds(self, text: str) -> bool:
        parts = _inner(_STARS.split(text))
        return len(parts) == self.num_paragraphs and all(part.strip() for part in parts)


class NthParagraphFirstWord(Instruction):
    """The response has the given number of paragraphs, separated by an empty line, and the nth starts with the given
    word.
    """

    num_paragraphs: Count = Field(ge=1)
    nth_paragraph: Count = Field(ge=1)
    first_word: Phrase

    @model_validator(mode="after")
    def _paragraph_exists(self) -> Self:
        if self.nth_paragraph > self.num_paragraphs:
            raise ValueError(f"nth_paragraph is {self.nth_paragraph}, but num_paragraphs is only {self.num_paragraphs}")
        return self

    def _holds(self, text: str) -> bool:
        parts = text.split("\n\n")
        full = sum(bool(part.strip()) for part in parts)
        if full != self.num_paragraphs or self.nth_paragraph > full:
            return False
        words = parts[self.nth_paragraph - 1].split()
        first = _PUNCTUATION.split(words[0].lstrip("'").lstrip('"'))[0] if words else ""
        return first.lower() == self.first_word.lower()


class EndChecker(Instruction):
    """The response ends with exactly this phrase, ignoring case."""

    end_phrase: Phrase

    def _holds(self, text: str) -> bool:
        return text.strip().strip('"').lower().endswith(self.end_phrase.strip().lower())


class Quotation(Instruction):
    """The response is enclosed in double quotation marks."""

    def _holds(self, text: str) -> bool:
        text = text.strip()
        return len(text) > 1 and text[0] == text[-1] == '"'


class RepeatPrompt(Instruction):
    """The response starts with the prompt, repeated word for word. Case is ignored."""

    prompt_to_repeat: Phrase

    def _holds(self, text: str) -> bool:
        return text.strip().lower().startswith(self.prompt_to_repeat.strip().lower())


class TwoResponses(Instruction):
    """The response consists of exactly two different answers, separated by `******`."""

    def _holds(self, text: str) -> bool:
        parts = [part.strip() for part in _inner(text.split("******"))]
        return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def _inner(parts: list[str]) -> list[str]:
    """Drop an empty part before the first separator, and one after the last separator."""
    first, last = 0, len(parts)
    if not parts[0].strip():
        first = 1
    if last - first > 0 and not parts[-1].strip():
        last -= 1
    return parts[first:last]

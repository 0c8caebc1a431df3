"""Instructions about the words, letters, language and letter case of a response."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from rollyard.resources_servers.ifeval.instruction import Count, Instruction, Phrase, Relation, counted
from rollyard.resources_servers.ifeval.language import LANGUAGES, language_of
from rollyard.resources_servers.ifeval.word_counts import words_in_capitals


def _everywhere(keyword: str) -> re.Pattern[str]:
    return re.compile(re.escape(keyword), re.IGNORECASE)


class Existence(Instruction):
    """The response contains every keyword, ignoring case. Keywords may be part of a longer word."""

    keywords: list[Phrase] = Field(min_length=1)

    def _holds(self, text: str) -> bool:
        return all(_everywhere(keyword).search(text) for keyword in self.keywords)


class Frequency(Instruction):
    """The number of occurrences of the keyword, including in longer words and ignoring case, is at least, or less than,
    `frequency`.
    """

    keyword: Phrase
    frequency: Count
    relation: Relation

    def _holds(self, text: str) -> bool:
        found = sum(1 for _ in _everywhere(self.keyword.strip()).finditer(text))
        return counted(found, self.relation, self.frequency)


class ForbiddenWords(Instruction):
    """The response contains none of the words, ignoring case. Parts of longer words do not count."""

    forbidden_words: list[Phrase] = Field(min_length=1)

    def _holds(self, text: str) -> bool:
        return not any(
            re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in self.forbidden_words
        )


class LetterFrequency(Instruction):
    """The number of occurrences of a character, ignoring case, is at least, or less than, `let_frequency`.

    Any character is allowed, whereas Google's checker counts a random letter instead of `#`.
    """

    letter: str = Field(min_length=1, max_length=1)
    let_frequency: Count
    let_relation: Relation

    def _holds(self, text: str) -> bool:
        return counted(text.lower().count(self.letter.lower()), self.let_relation, self.let_frequency)


class ResponseLanguage(Instruction):
    """The response is in the given language. A response whose language cannot be detected is rejected."""

    language: str

    @field_validator("language")
    @classmethod
    def _is_supported(cls, language: str) -> str:
        if language not in LANGUAGES:
            raise ValueError(f"found {language!r}; expected a code that langdetect supports: {', '.join(LANGUAGES)}")
        return language

    def _holds(self, text: str) -> bool:
        return language_of(text) == self.language


class CapitalWordFrequency(Instruction):
    """The number of upper-case words is at least, or less than, `capital_frequency`."""

    capital_frequency: Count
    capital_relation: Relation

    def _holds(self, text: str) -> bool:
        return counted(words_in_capitals(text), self.capital_relation, self.capital_frequency)


class EnglishCapital(Instruction):
    """The response is in English and contains no lower-case letters."""

    def _holds(self, text: str) -> bool:
        return text.isupper() and language_of(text) == "en"


class EnglishLowercase(Instruction):
    """The response is in English and contains no upper-case letters."""

    def _holds(self, text: str) -> bool:
        return text.islower() and language_of(text) == "en"


class NoComma(Instruction):
    """The response does not contain a comma."""

    def _holds(self, text: str) -> bool:
        return "," not in text

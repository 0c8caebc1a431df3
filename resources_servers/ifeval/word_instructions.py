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
    """The response contains the keyword at least, or fewer than, `frequency` times, ignoring case. The keyword may be
    part of a longer word.
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
    """The response contains a character at least, or fewer than, `let_frequency` times, ignoring case.

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
            raise ValueError(
                f"found {language!r}; expected a language code that langdetect supports: {', '.join(LANGUAGES)}"
            )
        return language

    def _holds(self, text: str) -> bool:
        return language_of(text) == self.language


class CapitalWordFrequency(Instruction):
    """The response has at least, or fewer than, `capital_frequency` upper-case words."""

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

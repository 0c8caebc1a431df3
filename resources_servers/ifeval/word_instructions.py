"""Instructions about words, letters, languages and letter case."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from rollyard.resources_servers.ifeval.instruction import Count, Instruction, Phrase, Relation, counted
from rollyard.resources_servers.ifeval.language import LANGUAGES, language_of
from rollyard.resources_servers.ifeval.word_counts import words_in_capitals


def _everywhere(keyword: str) -> re.Pattern[str]:
    return re.compile(re.escape(keyword), re.IGNORECASE)


class Existence(Instruction):
    """Contains every keyword, ignoring case, also inside words."""

    keywords: list[Phrase] = Field(min_length=1)

    def _holds(self, text: str) -> bool:
        return all(_everywhere(keyword).search(text) for keyword in self.keywords)


class Frequency(Instruction):
    """Contains a keyword the given number of times, ignoring case, also inside words."""

    keyword: Phrase
    frequency: Count
    relation: Relation

    def _holds(self, text: str) -> bool:
        found = sum(1 for _ in _everywhere(self.keyword.strip()).finditer(text))
        return counted(found, self.relation, self.frequency)


class ForbiddenWords(Instruction):
    """Contains none of the words as a whole word."""

    forbidden_words: list[Phrase] = Field(min_length=1)

    def _holds(self, text: str) -> bool:
        return not any(
            re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in self.forbidden_words
        )


class LetterFrequency(Instruction):
    """Contains a character the given number of times, ignoring case. Any character is allowed; Google's checker counts
    a random letter instead of `#`.
    """

    letter: str = Field(min_length=1, max_length=1)
    let_frequency: Count
    let_relation: Relation

    def _holds(self, text: str) -> bool:
        return counted(text.lower().count(self.letter.lower()), self.let_relation, self.let_frequency)


class ResponseLanguage(Instruction):
    """Is in the given language. A text without a detectable language is never accepted."""

    language: str

    @field_validator("language")
    @classmethod
    def _is_supported(cls, language: str) -> str:
        if language not in LANGUAGES:
            raise ValueError(f"found {language!r}, expected a code that langdetect supports: {', '.join(LANGUAGES)}")
        return language

    def _holds(self, text: str) -> bool:
        return language_of(text) == self.language


class CapitalWordFrequency(Instruction):
    """Has the given number of upper-case words."""

    capital_frequency: Count
    capital_relation: Relation

    def _holds(self, text: str) -> bool:
        return counted(words_in_capitals(text), self.capital_relation, self.capital_frequency)


class EnglishCapital(Instruction):
    """Is English without lower-case letters."""

    def _holds(self, text: str) -> bool:
        return text.isupper() and language_of(text) == "en"


class EnglishLowercase(Instruction):
    """Is English without upper-case letters."""

    def _holds(self, text: str) -> bool:
        return text.islower() and language_of(text) == "en"


class NoComma(Instruction):
    """Contains no comma."""

    def _holds(self, text: str) -> bool:
        return "," not in text

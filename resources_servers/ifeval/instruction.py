"""The verifiable instructions of IFEval: each checks whether a text follows it."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self
from unicodedata import category

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from rollyard.resources_servers.ifeval.sentences import sentence_count

Relation = Literal["at least", "less than"]
_HOLDS: dict[Relation, Callable[[int, int], bool]] = {"at least": operator.ge, "less than": operator.lt}


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"found {value}; expected an integer")
    return value


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError(f"found {text!r}; expected text that is not blank")
    return text


Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
"""A non-negative integer. 3.0 is accepted as 3, because tables that have a column for every argument turn integers into
floats."""
Phrase = Annotated[str, AfterValidator(_not_blank)]
"""Text to search for. It must not be blank, because every text would contain it."""


class Instruction(BaseModel):
    """An instruction. Its fields are the row's `kwargs`; each docstring says when a response follows it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def followed(self, text: str) -> bool:
        """Return whether `text` follows the instruction. Blank text never does."""
        return bool(text.strip()) and self._holds(text)

    def _holds(self, text: str) -> bool:
        raise NotImplementedError


def counted(found: int, relation: Relation, number: int) -> bool:
    """Return whether the count `found` is at least `number` or less than `number`, depending on `relation`."""
    return _HOLDS[relation](found, number)


def read(kind: str, instruction_type: type[Instruction], arguments: Any) -> Instruction:
    """Build an instruction from the row's arguments. Raises ValueError, whose message starts with `kind`."""
    if not isinstance(arguments, Mapping | None):
        raise ValueError(f"{kind}: kwargs are {shown(arguments)}; expected an object")
    try:
        # Tabular datasets contain the arguments of all instructions, with null for the unused ones.
        return instruction_type.model_validate(
            {key: value for key, value in (arguments or {}).items() if value is not None}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found = "" if first["type"] in ("missing", "value_error") else f", found {shown(first['input'])}"
        message = first["msg"].removeprefix("Value error, ") + found
        raise ValueError(": ".join([kind, *map(str, first["loc"]), message])) from error


def shown(value: Any) -> str:
    """Format a value from a row for an error message, in at most 80 characters."""
    return repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."


# Instructions about the words, letters, language and letter case of a response.


def _everywhere(keyword: str) -> re.Pattern[str]:
    return re.compile(re.escape(keyword), re.IGNORECASE)


class Existence(Instruction):
    """The response contains every keyword, ignoring case. Keywords may be part of a longer word."""

    keywords: list[Phrase] = Field(min_length=1)

    def _holds(self, text: str) -> bool:
        return all(_everywhere(keyword).search(text) for keyword in self.keywords)


class Frequency(Instruction):
    """The keyword, ignoring case, occurs at least or fewer than `frequency` times, also within longer words."""

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
    """Any character, ignoring case; Google's checker counts a random letter instead of `#`."""

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


# Instructions about the length, beginning, end and parts of a response.

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
    """That many paragraphs, separated by an empty line; the nth starts with the given word."""

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


# Instructions about the markup of a response: lists, sections, highlights, titles, JSON.

_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_STAR_POINT = re.compile(r"^[^\S\n]*\*[^*].*$", re.MULTILINE)
_DASH_POINT = re.compile(r"^[^\S\n]*-", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\*[^\n*]*\*")
_BOLD = re.compile(r"\*\*[^\n*]*\*\*")
_PLACEHOLDER = re.compile(r"\[.*?\]")
_TITLE = re.compile(r"<<[^\n]+>>")
_FENCE = re.compile(r"```(?:json|Json|JSON)?")


class NumberPlaceholders(Instruction):
    """The response has at least the given number of placeholders in square brackets."""

    num_placeholders: Count

    def _holds(self, text: str) -> bool:
        return sum(len(_PLACEHOLDER.findall(line)) for line in _up_to_last("]", text)) >= self.num_placeholders


class Postscript(Instruction):
    """A postscript that starts with the marker, such as `P.S.`. Spaces are allowed between its letters."""

    postscript_marker: Phrase

    def _holds(self, text: str) -> bool:
        letters = [re.escape(letter) for letter in self.postscript_marker.strip().lower().split(".")]
        return re.search(r"\.\s?".join(letters), text.lower()) is not None


class NumberBulletLists(Instruction):
    """The response has exactly the given number of bullet points."""

    num_bullets: Count

    def _holds(self, text: str) -> bool:
        return len(_STAR_POINT.findall(text)) + len(_DASH_POINT.findall(text)) == self.num_bullets


class ConstrainedResponse(Instruction):
    """The response contains `My answer is yes.`, `My answer is no.` or `My answer is maybe.`"""

    def _holds(self, text: str) -> bool:
        return any(option in text for option in _OPTIONS)


class NumberHighlightedSections(Instruction):
    """The response has at least the given number of highlights, such as `*this*`. Bold text also counts."""

    num_highlights: Count

    def _holds(self, text: str) -> bool:
        found = _HIGHLIGHT.findall(text) + _BOLD.findall(text)
        return sum(bool(mark.strip("*").strip()) for mark in found) >= self.num_highlights


class MultipleSections(Instruction):
    """The response has at least the given number of sections. Each starts with the given word and a number."""

    section_spliter: Phrase
    num_sections: Count

    def _holds(self, text: str) -> bool:
        return len(re.findall(rf"{re.escape(self.section_spliter.strip())}\s?\d+", text)) >= self.num_sections


class Title(Instruction):
    """The response has a title in double angle brackets."""

    def _holds(self, text: str) -> bool:
        titles = [title for line in _up_to_last(">>", text) for title in _TITLE.findall(line)]
        return any(title.lstrip("<").rstrip(">").strip() for title in titles)


class JsonFormat(Instruction):
    """The response is a JSON document. It may be in a code fence, whose opening or closing line may be missing."""

    def _holds(self, text: str) -> bool:
        text = text.strip()
        fence = _FENCE.match(text)
        try:
            json.loads(text[fence.end() if fence else 0 :].removesuffix("```").strip(), parse_constant=_no_json)
        except (ValueError, RecursionError):  # RecursionError: nested too deeply
            return False
        return True


def _no_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


def _up_to_last(ending: str, text: str) -> list[str]:
    """Truncate each line after its last `ending`, so that an unclosed bracket does not cause a long scan."""
    return [line[: line.rfind(ending) + len(ending)] for line in text.split("\n") if ending in line]


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


def instruction(kind: Any, arguments: Any) -> Instruction:
    """Build an instruction from an item of `instruction_id_list` and its `kwargs`. Raises ValueError."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"instruction {shown(kind)} is unknown; expected one of {', '.join(KINDS)}")
    return read(kind, KINDS[kind], arguments)


_WORD = re.compile(r"\w+")
_SIGNS = re.compile(r"[^\w\s\x00-\u02ff]+")
_MARKS = {"Mn", "Mc", "Me"}
_JOINERS = "\u200c\u200d"
_BETWEEN_WORDS = re.compile(r"[\s;@#$%&?!*`\"“”«»„‘’()\[\]{}<>\u2012-\u2015]+|[,:](?!\d)|--|''|\.{2,}")
_JOINT = re.compile(
    r"(?<=[^'])(?=(?:'[smd]|'ll|'re|'ve|n't)\.?$)"
    r"|(?<=\bcan)(?=not\b)|(?<=\bgim)(?=me\b)|(?<=\bgon)(?=na\b)|(?<=\bgot)(?=ta\b)|(?<=\blem)(?=me\b)|(?<=\bwan)(?=na$)",
    re.IGNORECASE,
)


def word_count(text: str) -> int:
    """Count runs of letters, digits and underscores. Combining marks, such as accents, do not split a word."""
    return len(_WORD.findall(_SIGNS.sub(_without_marks, text)))


def words_in_capitals(text: str) -> int:
    """Count words split as in the Penn Treebank: `DON'T` and `CANNOT` are two each, `HI-FI` is one."""
    words = (word for word in _BETWEEN_WORDS.split(text) if word != word.lower())
    return sum(part.isupper() for word in words for part in _JOINT.split(word))


def _without_marks(signs: re.Match[str]) -> str:
    return "".join(sign for sign in signs.group() if sign not in _JOINERS and category(sign) not in _MARKS)


LANGUAGES = (
    "af", "ar", "bg", "bn", "ca", "cs", "cy", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "gu", "he", "hi",
    "hr", "hu", "id", "it", "ja", "kn", "ko", "lt", "lv", "mk", "ml", "mr", "ne", "nl", "no", "pa", "pl", "pt", "ro",
    "ru", "sk", "sl", "so", "sq", "sv", "sw", "ta", "te", "th", "tl", "tr", "uk", "ur", "vi", "zh-cn", "zh-tw",
)  # fmt: skip
"""The language codes that langdetect supports. This list makes it possible to check rows without langdetect."""


@lru_cache(maxsize=16)  # several instructions may check the variants of one text
def language_of(text: str) -> str | None:
    """Return the language code, such as `en` or `zh-cn`, or None if the language cannot be detected."""
    from langdetect import LangDetectException  # type: ignore[import-untyped]

    detector = _factory().create()
    detector.append(text)
    try:
        return str(detector.detect())
    except LangDetectException:
        return None


@lru_cache(maxsize=1)
def _factory() -> Any:
    from langdetect import DetectorFactory
    from langdetect.detector_factory import PROFILES_DIRECTORY  # type: ignore[import-untyped]

    factory = DetectorFactory()
    factory.seed = 0  # langdetect samples at random, so results for similar languages would vary
    # In a fixed order, because the order of files in a folder depends on the file system and would affect ties.
    factory.load_json_profile([(Path(PROFILES_DIRECTORY) / code).read_text("utf-8") for code in LANGUAGES])
    return factory

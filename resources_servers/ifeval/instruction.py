"""The verifiable instructions of IFEval: each is a function that checks whether a text follows it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_type_hints
from unicodedata import category

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from rollyard.resources_servers.ifeval.sentences import sentence_count


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"found {value}; expected an integer")
    return value


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError(f"found {text!r}; expected text that is not blank")
    return text


def _is_supported(language: str) -> str:
    if language not in LANGUAGES:
        expected = f"a language code that langdetect supports: {', '.join(LANGUAGES)}"
        raise ValueError(f"found {language!r}; expected {expected}")
    return language


Relation = Literal["at least", "less than"]
Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
"""A non-negative integer. 3.0 is accepted as 3, because tables that have a column for every argument turn integers into
floats."""
Number = Annotated[Count, Field(ge=1)]
Phrase = Annotated[str, AfterValidator(_not_blank)]
"""Text to search for. It must not be blank, because every text would contain it."""
Phrases = Annotated[list[Phrase], Field(min_length=1)]
Letter = Annotated[str, Field(min_length=1, max_length=1)]
Language = Annotated[str, AfterValidator(_is_supported)]
Check = Callable[..., bool]


@dataclass(frozen=True)
class Instruction:
    check: Check
    arguments: Mapping[str, Any]

    def followed(self, text: str) -> bool:
        """Return whether `text` follows the instruction. Blank text never does."""
        return bool(text.strip()) and self.check(text, **self.arguments)


class InstructionKinds(dict[str, tuple[Check, type[BaseModel], tuple[str, str] | None]]):
    """Checks by the name that rows use for them. A check takes the text and, as fields of the row, its arguments."""

    def add(self, name: str, *, at_most: tuple[str, str] | None = None, **fields: str) -> Callable[[Check], Check]:
        """Add the decorated check. `at_most`: an argument, and another one that it must not exceed. `fields`: the row's
        name of an argument, if it has another one.
        """

        def add(check: Check) -> Check:
            hints = get_type_hints(check, include_extras=True)
            _, *arguments = inspect.signature(check).parameters
            found: Any = {each: (hints[each], Field(validation_alias=fields.get(each, each))) for each in arguments}
            self[name] = check, create_model(name, __config__=ConfigDict(extra="ignore"), **found), at_most
            return check

        return add

    def read(self, name: str, arguments: Any) -> Instruction:
        """Build an instruction from the row's arguments. Raises ValueError, whose message starts with `name`."""
        if not isinstance(arguments, Mapping | None):
            raise ValueError(f"{name}: kwargs are {shown(arguments)}; expected an object")
        check, model, at_most = self[name]
        try:
            # Tabular datasets contain the arguments of all instructions, with null for the unused ones.
            given = {key: value for key, value in (arguments or {}).items() if value is not None}
            found = dict(model.model_validate(given))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            value = "" if first["type"] in ("missing", "value_error") else f", found {shown(first['input'])}"
            message = first["msg"].removeprefix("Value error, ") + value
            raise ValueError(": ".join([name, *map(str, first["loc"]), message])) from error
        if at_most and found[at_most[0]] > found[at_most[1]]:
            small, large = (f"{model.model_fields[each].validation_alias} is" for each in at_most)
            raise ValueError(f"{name}: {small} {found[at_most[0]]}, but {large} only {found[at_most[1]]}")
        return Instruction(check, found)


def shown(value: Any) -> str:
    """Format a value from a row for an error message, in at most 80 characters."""
    return repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."


def _holds(found: int, relation: Relation, number: int) -> bool:
    return found >= number if relation == "at least" else found < number


KINDS = InstructionKinds()


def instruction(kind: Any, arguments: Any) -> Instruction:
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"instruction {shown(kind)} is unknown; expected one of {', '.join(KINDS)}")
    return KINDS.read(kind, arguments)


# Instructions about the words, letters, language and letter case of a response.


def _everywhere(keyword: str) -> re.Pattern[str]:
    return re.compile(re.escape(keyword), re.IGNORECASE)


@KINDS.add("keywords:existence")
def existence(text: str, keywords: Phrases) -> bool:
    """The response contains every keyword, ignoring case. Keywords may be part of a longer word."""
    return all(_everywhere(keyword).search(text) for keyword in keywords)


@KINDS.add("keywords:frequency")
def frequency(text: str, keyword: Phrase, frequency: Count, relation: Relation) -> bool:
    """The keyword, ignoring case, occurs at least or fewer than `frequency` times, also within longer words."""
    return _holds(sum(1 for _ in _everywhere(keyword.strip()).finditer(text)), relation, frequency)


@KINDS.add("keywords:forbidden_words")
def forbidden_words(text: str, forbidden_words: Phrases) -> bool:
    """The response contains none of the words, ignoring case. Parts of longer words do not count."""
    return not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in forbidden_words)


@KINDS.add("keywords:letter_frequency")
def letter_frequency(text: str, letter: Letter, let_frequency: Count, let_relation: Relation) -> bool:
    """Any character, ignoring case; Google's checker counts a random letter instead of `#`."""
    return _holds(text.lower().count(letter.lower()), let_relation, let_frequency)


@KINDS.add("language:response_language")
def response_language(text: str, language: Language) -> bool:
    """The response is in the given language. A response whose language cannot be detected is rejected."""
    return language_of(text) == language


@KINDS.add("change_case:capital_word_frequency")
def capital_word_frequency(text: str, capital_frequency: Count, capital_relation: Relation) -> bool:
    return _holds(words_in_capitals(text), capital_relation, capital_frequency)


@KINDS.add("change_case:english_capital")
def english_capital(text: str) -> bool:
    return text.isupper() and language_of(text) == "en"


@KINDS.add("change_case:english_lowercase")
def english_lowercase(text: str) -> bool:
    return text.islower() and language_of(text) == "en"


@KINDS.add("punctuation:no_comma")
def no_comma(text: str) -> bool:
    return "," not in text


# Instructions about the length, beginning, end and parts of a response.

_STARS = re.compile(r"\s?\*\*\*\s?")
_PUNCTUATION = re.compile(r"[.,?!'\"]")


@KINDS.add("length_constraints:number_sentences")
def number_sentences(text: str, num_sentences: Count, relation: Relation) -> bool:
    return _holds(sentence_count(text), relation, num_sentences)


@KINDS.add("length_constraints:number_words")
def number_words(text: str, num_words: Count, relation: Relation) -> bool:
    return _holds(word_count(text), relation, num_words)


@KINDS.add("length_constraints:number_paragraphs")
def number_paragraphs(text: str, num_paragraphs: Number) -> bool:
    """The response has exactly the given number of paragraphs, separated by `***`. None of them is empty."""
    parts = _inner(_STARS.split(text))
    return len(parts) == num_paragraphs and all(part.strip() for part in parts)


@KINDS.add("length_constraints:nth_paragraph_first_word", at_most=("nth_paragraph", "num_paragraphs"))
def nth_paragraph_first_word(text: str, num_paragraphs: Number, nth_paragraph: Number, first_word: Phrase) -> bool:
    """That many paragraphs, separated by an empty line; the nth starts with the given word."""
    parts = text.split("\n\n")
    full = sum(bool(part.strip()) for part in parts)
    if full != num_paragraphs or nth_paragraph > full:
        return False
    words = parts[nth_paragraph - 1].split()
    first = _PUNCTUATION.split(words[0].lstrip("'").lstrip('"'))[0] if words else ""
    return first.lower() == first_word.lower()


@KINDS.add("startend:end_checker")
def end_checker(text: str, end_phrase: Phrase) -> bool:
    """The response ends with exactly this phrase, ignoring case."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@KINDS.add("startend:quotation")
def quotation(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


@KINDS.add("combination:repeat_prompt")
def repeat_prompt(text: str, prompt_to_repeat: Phrase) -> bool:
    """The response starts with the prompt, repeated word for word. Case is ignored."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@KINDS.add("combination:two_responses")
def two_responses(text: str) -> bool:
    """The response consists of exactly two different answers, separated by `******`."""
    parts = [part.strip() for part in _inner(text.split("******"))]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def _inner(parts: list[str]) -> list[str]:
    """Drop an empty part before the first separator, and one after the last separator."""
    parts = parts if parts[0].strip() else parts[1:]
    return parts[:-1] if parts and not parts[-1].strip() else parts


# Instructions about the markup of a response: lists, sections, highlights, titles, JSON.

_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_STAR_POINT = re.compile(r"^[^\S\n]*\*[^*].*$", re.MULTILINE)
_DASH_POINT = re.compile(r"^[^\S\n]*-", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\*[^\n*]*\*")
_BOLD = re.compile(r"\*\*[^\n*]*\*\*")
_PLACEHOLDER = re.compile(r"\[.*?\]")
_TITLE = re.compile(r"<<[^\n]+>>")
_FENCE = re.compile(r"```(?:json|Json|JSON)?")


@KINDS.add("detectable_content:number_placeholders")
def number_placeholders(text: str, num_placeholders: Count) -> bool:
    return sum(len(_PLACEHOLDER.findall(line)) for line in _up_to_last("]", text)) >= num_placeholders


@KINDS.add("detectable_content:postscript")
def postscript(text: str, postscript_marker: Phrase) -> bool:
    """A postscript that starts with the marker, such as `P.S.`. Spaces are allowed between its letters."""
    letters = [re.escape(letter) for letter in postscript_marker.strip().lower().split(".")]
    return re.search(r"\.\s?".join(letters), text.lower()) is not None


@KINDS.add("detectable_format:number_bullet_lists")
def number_bullet_lists(text: str, num_bullets: Count) -> bool:
    return len(_STAR_POINT.findall(text)) + len(_DASH_POINT.findall(text)) == num_bullets


@KINDS.add("detectable_format:constrained_response")
def constrained_response(text: str) -> bool:
    return any(option in text for option in _OPTIONS)


@KINDS.add("detectable_format:number_highlighted_sections")
def number_highlighted_sections(text: str, num_highlights: Count) -> bool:
    """The response has at least the given number of highlights, such as `*this*`. Bold text also counts."""
    found = _HIGHLIGHT.findall(text) + _BOLD.findall(text)
    return sum(bool(mark.strip("*").strip()) for mark in found) >= num_highlights


@KINDS.add("detectable_format:multiple_sections")
def multiple_sections(text: str, section_spliter: Phrase, num_sections: Count) -> bool:
    """The response has at least the given number of sections. Each starts with the given word and a number."""
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


@KINDS.add("detectable_format:title")
def title(text: str) -> bool:
    titles = [title for line in _up_to_last(">>", text) for title in _TITLE.findall(line)]
    return any(title.lstrip("<").rstrip(">").strip() for title in titles)


@KINDS.add("detectable_format:json_format")
def json_format(text: str) -> bool:
    """The response is a JSON document. It may be in a code fence, whose opening or closing line may be missing."""
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

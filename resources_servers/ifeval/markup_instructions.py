"""Instructions about the markup of a response: lists, sections, highlights, titles, JSON."""

from __future__ import annotations

import json
import re
from typing import NoReturn

from rollyard.resources_servers.ifeval.instruction import Count, Instruction, Phrase

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
    """The response has a postscript that starts with the marker, such as `P.S.`. Spaces are allowed between its
    letters.
    """

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
    """Truncate each line after its last `ending`, so that an unclosed bracket does not cause a scan of the rest of the
    line.
    """
    return [line[: line.rfind(ending) + len(ending)] for line in text.split("\n") if ending in line]

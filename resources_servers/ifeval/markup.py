"""Instructions on marks in a text: lists, sections, highlights, titles, JSON."""

from __future__ import annotations

import re

import orjson

from resources_servers.ifeval.instruction import Instruction

_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_BULLET = re.compile(r"^[^\S\n]*(?:\*[^*]|-).*$", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\*[^\n*]*\*")
_BOLD = re.compile(r"\*\*[^\n*]*\*\*")
_PLACEHOLDER = re.compile(r"\[.*?\]")
_TITLE = re.compile(r"<<[^\n]+>>")
_FENCE = re.compile(r"^```(?:json)?(.*?)(?:```)?$", re.DOTALL | re.IGNORECASE)


class NumberPlaceholders(Instruction):
    """Has at least that many placeholders in square brackets."""

    num_placeholders: int

    def _holds(self, text: str) -> bool:
        return sum(len(_PLACEHOLDER.findall(line)) for line in _up_to_last("]", text)) >= self.num_placeholders


class Postscript(Instruction):
    """Has a postscript that begins with the marker, such as `P.S.`, blanks between its letters allowed."""

    postscript_marker: str

    def _holds(self, text: str) -> bool:
        letters = [re.escape(letter) for letter in self.postscript_marker.strip().lower().split(".")]
        return re.search(r"\.\s?".join(letters), text.lower()) is not None


class NumberBulletLists(Instruction):
    """Has exactly that many bullet points."""

    num_bullets: int

    def _holds(self, text: str) -> bool:
        return len(_BULLET.findall(text)) == self.num_bullets


class ConstrainedResponse(Instruction):
    """Contains one of `My answer is yes.`, `... no.` and `... maybe.`"""

    def _holds(self, text: str) -> bool:
        return any(option in text for option in _OPTIONS)


class NumberHighlightedSections(Instruction):
    """Has at least that many highlights, `*so*`; bold ones count too."""

    num_highlights: int

    def _holds(self, text: str) -> bool:
        found = _HIGHLIGHT.findall(text) + _BOLD.findall(text)
        return sum(bool(mark.strip("*").strip()) for mark in found) >= self.num_highlights


class MultipleSections(Instruction):
    """Has at least that many sections, each headed by the word and a number."""

    section_spliter: str
    num_sections: int

    def _holds(self, text: str) -> bool:
        return len(re.findall(rf"{re.escape(self.section_spliter.strip())}\s?\d+", text)) >= self.num_sections


class Title(Instruction):
    """Has a title in double angular brackets."""

    def _holds(self, text: str) -> bool:
        titles = [title for line in _up_to_last(">>", text) for title in _TITLE.findall(line)]
        return any(title.lstrip("<").rstrip(">").strip() for title in titles)


class JsonFormat(Instruction):
    """Is JSON as a whole; a code fence around it is allowed."""

    def _holds(self, text: str) -> bool:
        fenced = _FENCE.match(text.strip())
        try:
            orjson.loads((fenced.group(1) if fenced else text).strip())
        except orjson.JSONDecodeError:
            return False
        return True


def _up_to_last(ending: str, text: str) -> list[str]:
    """Each line up to the last `ending`: openings that nothing closes would be searched to the line's end, each."""
    return [line[: line.rfind(ending) + len(ending)] for line in text.split("\n") if ending in line]

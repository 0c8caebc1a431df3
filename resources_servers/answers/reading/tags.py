"""Finds answers with explicit markers: `<answer>18</answer>`, `#### 18`, `Final Answer: ... I hope it is correct.`"""

from __future__ import annotations

import re
from collections import deque

from rollyard.resources_servers.answers.reading.adjacent_values import last_row
from rollyard.resources_servers.answers.reading.answer_phrases import phrased
from rollyard.resources_servers.answers.reading.boxes import boxed
from rollyard.resources_servers.answers.reading.extraction import Found, scan
from rollyard.resources_servers.answers.reading.sentence_values import undecorated

MAX_LINE_LENGTH = 3000
MAX_TAGS = 50
"""Maximum number of markers of each kind that are considered, counted from the end of the text."""
_HASHES = re.compile(r"####[ \t]*(?![ \t]|[^\W\d_]{2})")
"""Matches `####` before an answer, but not in a Markdown heading such as `#### Step 2`."""
_MINERVA = re.compile(r"(final answer is:?)|\.?\s{0,9}I hope it is correct", re.IGNORECASE)
_TAG = re.compile(r"<(/?)(?:final_?)?answer>", re.IGNORECASE)


def tagged(text: str) -> Found | None:
    """Return the content of the last `<answer>` tag, which may be unclosed: `</answer>` is a common stop string."""
    opening, found = None, list[tuple[int, Found]]()
    for match in deque(_TAG.finditer(text), MAX_TAGS):
        if not match[1]:
            opening = match
        elif opening is not None:
            inner = _content(text[opening.end() : match.start()])
            found.append((opening.start(), Found(inner, "answer_tag", match.end())))
            opening = None
    if opening is not None and text[opening.end() :].strip():
        return Found(_content(text[opening.end() :]), "answer_is", len(text))
    return last_row(text, found)


def _content(inner: str) -> str:
    """Return the answer in a tag's content, which may consist of whole sentences."""
    later = phrased(inner)
    return later.text if later else undecorated(inner)


def boxed_or_tagged(text: str) -> Found | None:
    """Return the last box or the last tag, whichever begins later. For a box inside a tag, that is the box."""
    box, tag = boxed(text), tagged(text)
    if tag is None or box is None:
        return box or tag
    return tag if any(not sign[1] for sign in _TAG.finditer(text, box.end, tag.end)) else box


def hashes(text: str) -> Found | None:
    """Return the last non-empty answer in GSM8K's format, `#### 18`, combined with those adjacent to it."""
    found, end = deque[tuple[int, Found]](), len(text)
    for match in reversed(deque(_HASHES.finditer(text), MAX_TAGS)):
        line = text[match.end() : min(end, match.end() + MAX_LINE_LENGTH)].partition("\n")[0].rstrip()
        if line:
            found.appendleft((match.start(), Found(line.strip("* "), "hashes", match.end() + len(line))))
        end = match.start()
    return last_row(text, found)


def minerva(text: str) -> Found | None:
    """Find the answer in `Final Answer: The final answer is $18$. I hope it is correct.`"""
    opening, last = None, None
    for match in scan(_MINERVA, text):
        if match[1]:
            opening = match.end()
        elif opening is not None:
            last = (opening, match)
    if last is None:
        return None
    opening, ending = last
    return Found(text[opening : ending.start()].strip(), "final_answer", ending.end())

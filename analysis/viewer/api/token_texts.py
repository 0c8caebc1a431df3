"""Joins the texts of tokens that contain only a part of a character.

Tokens of a byte-level vocabulary can end in the middle of a character, for example of an emoji. Engines report such
tokens as U+FFFD. The character itself is in the text that the engine returned for the whole turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.viewer.api.untrusted_values import sanitize

REPLACEMENT = "\ufffd"
_CONTEXT = 12
"""Number of characters before and after an incomplete character by which it is found in the turn's text."""
_SHORT = 4
_LONGEST = 8
"""Maximum number of characters that are looked for in place of adjacent incomplete tokens."""


def joined_texts(texts: list[str], written: Sequence[str]) -> list[str]:
    """Return the texts with each run of incomplete tokens as one text, which is that of its last token.

    `written` contains the texts of the turn. A character that is not found in them remains U+FFFD.
    """
    if not any(REPLACEMENT in text for text in texts):
        return [sanitize(text) for text in texts]
    result = list(texts)
    start = 0
    while start < len(texts):
        if REPLACEMENT not in texts[start]:
            start += 1
            continue
        end = start + 1
        while end < len(texts) and REPLACEMENT in texts[end]:
            end += 1
        run = "".join(texts[start:end])
        before = "".join(result[max(0, start - _CONTEXT) : start])
        after = "".join(texts[end : end + _CONTEXT]).partition(REPLACEMENT)[0]
        found = _found(before, run, after, written)
        result[start:end] = [""] * (end - start - 1) + [found or _collapsed(run)]
        start = end
    return [sanitize(text) for text in result]


def _found(before: str, run: str, after: str, written: Sequence[str]) -> str:
    """Return what the texts contain in place of `run`, between the text before and after it; empty if not found."""
    head, tail = run.partition(REPLACEMENT)[0], run.rpartition(REPLACEMENT)[2]
    before, after = before + head, tail + after
    # The texts lack the markers between them, such as `</think>`, so the context after a character may be short.
    for left in (before[-_CONTEXT:], before[-_SHORT:]):
        for right in (after[:_CONTEXT], after[:_SHORT], after[:1], ""):
            for text in written:
                if found := _between(text, left, right, _LONGEST + len(run)):
                    return head + found + tail
    return ""


def _between(text: str, left: str, right: str, longest: int) -> str:
    """Return at most `longest` characters of `text` between `left` and `right`; an empty `right` is the text's end."""
    at = text.find(left)
    while at >= 0:
        begin = at + len(left)
        end = text.find(right, begin + 1) if right else len(text)
        if begin < end <= begin + longest:
            return text[begin:end]
        at = text.find(left, at + 1)
    return ""


def _collapsed(run: str) -> str:
    """Return the run with adjacent U+FFFD as one, because they are pieces of a character."""
    head, _, rest = run.partition(REPLACEMENT)
    return head + REPLACEMENT + rest.replace(REPLACEMENT, "")

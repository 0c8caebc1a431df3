"""Turns a rollout row into terms: its behaviour, its tool calls, the words of its answer, the reasons of its verdict.

The prompt is not part of it. Words of the answer that the prompt contains are omitted, too, because rollouts of one
task would otherwise resemble each other by what the task is about. Numbers become `#` for the same reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise

from rollyard.analysis.clusters.behaviour import behaviour_of, error_text, json_object
from rollyard.analysis.findings.row_view import RowView
from rollyard.records.io.json_values import items
from rollyard.records.types import Json
from rollyard.records.verdict_fields import VerdictField, fields_of

_MAX_CALLS = 200
_MAX_VALUES = 400
_MAX_VALUE = 24
"""Maximum length of an argument that is a term. Longer ones are texts, which hardly ever occur twice."""
_FIRST_WORDS, _LAST_WORDS = 60, 120
"""Words of the answer that count: how it begins and how it ends."""
_MAX_REASON = 400
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d[\d.,]*")


class Kind(StrEnum):
    """What a term is about; the first character of the term."""

    BEHAVIOUR = "b"
    CALL = "c"
    WORD = "w"
    REASON = "r"


def terms_of(row: Json) -> Counter[str]:
    """Return how often each term occurs in a row. A term begins with its Kind."""
    view, fields = RowView(row), fields_of(row)
    found: Counter[str] = Counter()
    found.update(Kind.BEHAVIOUR + term for term in behaviour_of(view, fields))
    found.update(Kind.CALL + term for term in _calls(view))
    known = set(_tokens(view.prompt[:20_000]))
    words = _tokens(view.final_message)
    if len(words) > _FIRST_WORDS + _LAST_WORDS:
        words = [*words[:_FIRST_WORDS], "…", *words[-_LAST_WORDS:]]
    found.update(Kind.WORD + term for term in _shingles(words, known))
    for text in _reasons(view, fields):
        found.update(Kind.REASON + term for term in _shingles(_tokens(text[:_MAX_REASON]), known))
    return found


def shown_term(term: str) -> str:
    """Return a term as it is shown to users."""
    kind, text = term[0], term[1:]
    if kind == Kind.WORD:
        return f"says “{text}”"
    return f"reason “{text}”" if kind == Kind.REASON else f"calls {text}" if kind == Kind.CALL else text


def _tokens(text: str) -> list[str]:
    return ["#" if token[0].isdigit() else token.lower() for token in _TOKEN.findall(text)]


def _shingles(words: list[str], known: set[str]) -> Iterator[str]:
    """Yield the words that the prompt does not contain, and pairs and triples in which one of them occurs."""
    new = [word not in known and word not in ("#", "…") for word in words]
    for at, word in enumerate(words):
        if new[at] and len(word) > 1:
            yield word
        for length in (2, 3):
            if at + length <= len(words) and any(new[at : at + length]) and "…" not in words[at : at + length]:
                yield " ".join(words[at : at + length])


def _calls(view: RowView) -> Iterator[str]:
    """Yield names, pairs of names, short arguments, and pairs and triples of the values that were passed one after
    another.
    """
    calls = view.calls[:_MAX_CALLS]
    names = [call.name[:40] for call in calls]
    yield from names
    for first, second in pairwise(names):
        if first != second:
            yield f"{first} → {second}"
    values: list[str] = []
    for call in calls:
        for key, value in _leaves(call.arguments):
            values.append(value)
            yield f"{call.name[:40]} {key}={value}"
        if len(values) > _MAX_VALUES:
            break
    for length in (2, 3):
        for at in range(len(values) - length + 1):
            yield " ".join(values[at : at + length])


def _leaves(arguments: str) -> Iterator[tuple[str, str]]:
    """Yield the short scalar arguments of a call with their keys; values of a list share its key."""
    for key, inner in list((json_object(arguments) or {}).items())[:20]:
        for leaf in items(inner)[:_MAX_VALUES] if isinstance(inner, list) else [inner]:
            text = leaf if isinstance(leaf, str) else "" if isinstance(leaf, dict | list) else str(leaf)
            if 0 < len(text) <= _MAX_VALUE:
                yield str(key)[:40], "#" if text.replace(".", "", 1).lstrip("-").isdigit() else text


def _reasons(view: RowView, fields: Sequence[VerdictField]) -> Iterator[str]:
    """Yield the texts that explain the verdict, and the errors that tools reported."""
    for field in fields:
        if field.role in ("reason", "limit") and isinstance(value := field.value(view.row), str):
            yield value
    seen: set[str] = set()
    for call in view.calls[:_MAX_CALLS]:
        error = error_text(call.output)
        if error and error not in seen:
            seen.add(error)
            yield error

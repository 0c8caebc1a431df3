"""Overlap: finds rows of a dataset that are also in a test set, even if they are formatted differently.

Four kinds of overlap are counted separately: the same row, the same id, the same question, and a shared n-gram. The
last one is GPT-3's contamination check (Brown et al. 2020, arXiv:2005.14165, appendix C; lm_eval's decontamination):
13 consecutive words. N-grams that occur in many test rows belong to a common prompt and do not count.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence

from rollyard.records.datasets.data_files import DataFile
from rollyard.records.datasets.rows import exact_objects, id_of_row
from rollyard.records.types import Json, Record
from rollyard.services.datasets.dataset import fingerprint
from rollyard.services.datasets.ngram_index import NgramIndex, is_evidence
from rollyard.services.datasets.prompt_text import prompts_of, questions_of, words_of

KINDS = ("row", "id", "question", "words")
DEFAULT_N = 13
"""N-gram length in words, as in GPT-3."""
MIN_WORDS = 4
"""Questions with at least this many words are also searched for inside prompts. Shorter ones must match exactly."""


class Match(Record):
    """A row that overlaps with a row of a test set."""

    kind: str
    """The kind of overlap: row, id, question or words."""
    line: int
    path: str
    """The file that contains the test set's row, on line `first_line`."""
    first_line: int
    evidence: str
    """The shared id, question or words; empty for the kind `row`."""


class TestSets:
    """The test sets that other rows must not overlap with, stored as hashes."""

    __test__ = False  # not pytest's

    def __init__(self, files: Iterable[DataFile], n: int) -> None:
        """Read each file once. Its rows do not have to be valid tasks. `n`: n-gram length in words.

        Raises OperatorError if a file cannot be read or a row is not a JSON object.
        """
        self._n = n
        self._files: list[DataFile] = []
        self._origins = array("q")
        """Where each row comes from: the line number, and in the low 16 bits the index of the file."""
        self._rows: dict[bytes, int] = {}
        self._ids: dict[str, int] = {}
        self._questions: dict[bytes, list[int]] = {}
        """Hash of a question -> the rows with exactly this question."""
        self._short_questions = {length: NgramIndex(length) for length in range(MIN_WORDS, n)}
        """Length in words -> index of the questions with that length, if it is less than n. They are searched for
        inside prompts."""
        self._ngrams = {length: NgramIndex(length) for length in range(MIN_WORDS, n + 1)}
        """Length in words -> index of all n-grams with that length in the rows' questions."""
        for number, row in self._read(files):
            self._rows.setdefault(_row_hash(row), number)
            if (name := _id(row)) is not None:
                self._ids.setdefault(name, number)
            questions = _questions(row)
            for key in {_key(words) for words in questions}:
                self._questions.setdefault(key, []).append(number)
            for length, index in self._short_questions.items():
                index.add([words for words in questions if len(words) == length], number)
            for index in self._ngrams.values():
                index.add(_most_specific(questions, n), number)

    def __len__(self) -> int:
        return len(self._origins)

    def matches(self, row: Json, line: int) -> Iterator[Match]:
        """Compare a row on line `line` with the test sets. Yields at most one match of each kind."""
        if (number := self._rows.get(_row_hash(row))) is not None:
            yield self._match("row", line, number, "")
        if (name := _id(row)) is not None and (number := self._ids.get(name)) is not None:
            yield self._match("id", line, number, name)
        questions = _questions(row)
        if (match := self._same_question(questions)) is not None:
            yield self._match("question", line, *match)
        for words in _most_specific(questions, self._n):
            if (position := self._ngrams[self._n].find(words)) is not None:
                yield self._match("words", line, position[1], " ".join(words[position[0] : position[0] + self._n]))

    def _same_question(self, questions: Sequence[Sequence[str]]) -> tuple[int, str] | None:
        """Find a test row whose question equals, contains or is contained in one of these.

        Returns the row and the shared words, or None.
        """
        for words in questions:
            rows = self._questions.get(_key(words), ())
            if rows and is_evidence(len(rows), len(self)):
                return rows[0], " ".join(words)
        for words in (words for words in questions if len(words) >= MIN_WORDS):
            if len(words) < self._n and (position := self._ngrams[len(words)].find(words)) is not None:
                return position[1], " ".join(words)
            for length, index in self._short_questions.items():
                if (position := index.find(words)) is not None:
                    return position[1], " ".join(words[position[0] : position[0] + length])
        return None

    def _read(self, files: Iterable[DataFile]) -> Iterator[tuple[int, Json]]:
        for file in files:
            self._files.append(file)
            for match in exact_objects(file):
                self._origins.append(match.number << 16 | len(self._files) - 1)
                yield len(self._origins) - 1, match.value

    def _match(self, kind: str, line: int, number: int, evidence: str) -> Match:
        origin = self._origins[number]
        path = str(self._files[origin & 0xFFFF])
        return Match(kind=kind, line=line, path=path, first_line=origin >> 16, evidence=evidence[:200])


def _questions(row: Json) -> list[list[str]]:
    """Return the candidate questions of the row as lists of words, without duplicates, shortest first."""
    variants = {tuple(words_of(question)) for text in prompts_of(row) for question in questions_of(text)} - {()}
    return [list(words) for words in sorted(variants, key=lambda words: (len(words), words))]


def _most_specific(questions: Sequence[Sequence[str]], n: int) -> Sequence[Sequence[str]]:
    """Return the variant closest to the bare question: the shortest with at least n words, else the longest."""
    return [words for words in questions if len(words) >= n][:1] or questions[-1:]


def _id(row: Json) -> str | None:
    try:
        return id_of_row(row)
    except ValueError:
        return None


def _row_hash(row: Json) -> bytes:
    return bytes.fromhex(fingerprint(row))[:16]


def _key(words: Sequence[str]) -> bytes:
    return hashlib.sha256(" ".join(words).encode("utf-8", "surrogatepass")).digest()[:16]

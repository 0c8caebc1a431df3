"""Overlap: which rows of a data set are in a test set, too, also where they are written in another form.

Four kinds, each counted by itself: the same row, the same id, the same question, and a run of words in common. The last
is GPT-3's rule against contamination (Brown et al. 2020, arXiv:2005.14165, appendix C; lm_eval's decontamination): 13
words in a row, where runs that many test rows share are the prompt's and do not count.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence

from rollyard.services.datasets.data_files import DataFile
from rollyard.services.datasets.dataset import fingerprint
from rollyard.services.datasets.ngram_index import NgramIndex, is_evidence
from rollyard.services.datasets.prompt_text import prompts_of, questions_of, words_of
from rollyard.services.datasets.rows import exact_objects, id_of_row
from rollyard.services.types import Json, Record

KINDS = ("row", "id", "question", "words")
USUAL_RUN = 13
"""GPT-3's: words in a row."""
FEWEST_WORDS = 4
"""Of a question inside of a prompt, where fewer say nothing; a question of fewer words must be the whole question."""


class Match(Record):
    """A row that is in a test set, too."""

    kind: str
    """row, id, question or words."""
    line: int
    path: str
    """Where the test set has it: the file, and its line."""
    first_line: int
    evidence: str
    """The id, the question, or the words in common."""


class TestSets:
    """What rows must be kept apart from, as hashes."""

    __test__ = False  # not pytest's

    def __init__(self, files: Iterable[DataFile], run: int) -> None:
        """Reads the files once; rows need not be playable. `run`: words in a row. Raises OperatorError."""
        self._run = run
        self._files: list[DataFile] = []
        self._places = array("q")
        """Of each row: its line, and the number of its file in the last 16 bits."""
        self._rows: dict[bytes, int] = {}
        self._ids: dict[str, int] = {}
        self._questions: dict[bytes, list[int]] = {}
        """Key of a whole question -> the rows that ask it."""
        self._short = {length: NgramIndex(length) for length in range(FEWEST_WORDS, run)}
        """Whole questions of fewer words than a run: looked for inside of prompts."""
        self._runs = {length: NgramIndex(length) for length in range(FEWEST_WORDS, run + 1)}
        """All runs of words of what the rows ask."""
        for number, row in self._read(files):
            self._rows.setdefault(_short(row), number)
            if (name := _id(row)) is not None:
                self._ids.setdefault(name, number)
            questions = _questions(row)
            for key in {_key(words) for words in questions}:
                self._questions.setdefault(key, []).append(number)
            for length, whole in self._short.items():
                whole.add([words for words in questions if len(words) == length], number)
            for index in self._runs.values():
                index.add(_best(questions, run), number)

    def __len__(self) -> int:
        return len(self._places)

    def matches(self, row: Json, line: int) -> Iterator[Match]:
        """At most one of each kind."""
        if (number := self._rows.get(_short(row))) is not None:
            yield self._match("row", line, number, "")
        if (name := _id(row)) is not None and (number := self._ids.get(name)) is not None:
            yield self._match("id", line, number, name)
        questions = _questions(row)
        if (found := self._same_question(questions)) is not None:
            yield self._match("question", line, *found)
        for words in _best(questions, self._run):
            if (hit := self._runs[self._run].find(words)) is not None:
                yield self._match("words", line, hit[1], " ".join(words[hit[0] : hit[0] + self._run]))

    def _same_question(self, questions: Sequence[Sequence[str]]) -> tuple[int, str] | None:
        """A test row's question, as a whole or inside of the other's prompt, and how it reads."""
        for words in questions:
            rows = self._questions.get(_key(words), ())
            if rows and is_evidence(len(rows), len(self)):
                return rows[0], " ".join(words)
        for words in (words for words in questions if len(words) >= FEWEST_WORDS):
            if len(words) < self._run and (hit := self._runs[len(words)].find(words)) is not None:
                return hit[1], " ".join(words)
            for length, whole in self._short.items():
                if (hit := whole.find(words)) is not None:
                    return hit[1], " ".join(words[hit[0] : hit[0] + length])
        return None

    def _read(self, files: Iterable[DataFile]) -> Iterator[tuple[int, Json]]:
        for file in files:
            self._files.append(file)
            for found in exact_objects(file):
                self._places.append(found.number << 16 | len(self._files) - 1)
                yield len(self._places) - 1, found.value

    def _match(self, kind: str, line: int, number: int, evidence: str) -> Match:
        place = self._places[number]
        path = str(self._files[place & 0xFFFF])
        return Match(kind=kind, line=line, path=path, first_line=place >> 16, evidence=evidence[:200])


def _questions(row: Json) -> list[list[str]]:
    """What the row may ask, as words, each once; the shortest first."""
    readings = {tuple(words_of(question)) for text in prompts_of(row) for question in questions_of(text)} - {()}
    return [list(words) for words in sorted(readings, key=lambda words: (len(words), words))]


def _best(questions: Sequence[Sequence[str]], run: int) -> Sequence[Sequence[str]]:
    """The reading that is most the question alone: the shortest one that has a run of words, else the longest."""
    return [words for words in questions if len(words) >= run][:1] or questions[-1:]


def _id(row: Json) -> str | None:
    try:
        return id_of_row(row)
    except ValueError:
        return None


def _short(row: Json) -> bytes:
    return bytes.fromhex(fingerprint(row))[:16]


def _key(words: Sequence[str]) -> bytes:
    return hashlib.sha256(" ".join(words).encode("utf-8", "surrogatepass")).digest()[:16]

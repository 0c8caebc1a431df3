"""Validates dataset files: reports their contents, invalid and duplicate rows, and overlap with other files.

A row overlaps with one of a test set if it is the same row or has its id or its question. All are compared as hashes.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from rollyard.records.data_files import DataFile
from rollyard.records.rows import agent_of, exact_objects, id_of_row, messages_of, rows_of
from rollyard.records.scores import Spread, spread
from rollyard.records.types import Json, Record
from rollyard.services.datasets.dataset import fingerprint

FIELDS = ("question", "problem", "query", "instruction", "prompt", "text", "messages", "conversations", "input")
"""Top-level keys that contain the prompt in published datasets, in addition to `responses_create_params`."""
_LATEX = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|[bB]igg?[lr]?|quad|qquad)(?![a-zA-Z])|\\[,;:! ]"
    r"|\\(?:text(?:bf|it|rm|tt)?|mathrm|mathbf|mathit|mathbb|operatorname|boxed|mbox)(?![a-zA-Z])"
    r"|\\[()\[\]]"
)
_UNSPACED_SCRIPTS = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
"""Characters of scripts that are written without spaces. Each character counts as a word."""
_WORD = re.compile(rf"[0-9]+(?:\.[0-9]+)?|{_UNSPACED_SCRIPTS}|(?:(?!{_UNSPACED_SCRIPTS})[^\W\d_])+|[-+*/=<>^!%]")
"""Matches one word. Decimal numbers and operators are words, so 3.5 differs from 35, and x + 1 from x - 1."""
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")
_QUESTION_PREFIX = re.compile(
    r"(?:^|\n)[\s#*]*(?:question|problem|q|task|exercise|user|human|input)\s*\d*\s*[:.][\s*]*", re.IGNORECASE
)
_QUESTION_END = re.compile(
    r"\n[\s#*]*(?:answer|solution|a|response|assistant|output)\s*\d*\s*:|\n+\s*(?:please |let'?s |now )?"
    r"(?:reason|think|solve|show|put|give|write|end|provide|answer|respond)\b[^\n]*\s*$",
    re.IGNORECASE,
)


def words_of(text: str) -> list[str]:
    """Return the words of a text, numbers and operators in lower case, without punctuation and LaTeX markup."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"\\[dt]frac(?![a-z])", r"\\frac", text)
    text = _LATEX.sub(" ", text).replace("−", "-").replace("–", "-")
    return _WORD.findall(_HYPHEN.sub(" ", _THOUSANDS.sub("", text)))


def prompts_of(row: Json) -> list[str]:
    """Return the row's prompts: first the text of its own fields, then that of `responses_create_params.input`."""
    texts = [text for field in FIELDS for text in _field_texts(row.get(field))]
    params = row.get("responses_create_params")
    if isinstance(params, dict):
        texts += _field_texts(params.get("input"))
    return [text for text in dict.fromkeys(texts) if text.strip()]


def questions_of(text: str) -> Iterator[str]:
    """Yield the text, then its part after the last `Question:` and before an `Answer:` or an instruction to reason."""
    yield text
    starts = [found.end() for found in _QUESTION_PREFIX.finditer(text)]
    rest = text[starts[-1] :] if starts else text
    while (end := _QUESTION_END.search(rest)) is not None and end.start() > 0:
        rest = rest[: end.start()]
    if rest.strip() and rest != text:
        yield rest


def _field_texts(value: Any) -> list[str]:
    """Return the text of a field: the string itself, or the last user message of a conversation."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence):
        return []
    for item in reversed(value):
        if isinstance(item, dict) and item.get("role", item.get("from")) in ("user", "human"):
            return [_content(item.get("content", item.get("value")))]
    return []


def _content(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str))


KINDS = ("row", "id", "question")
MAX_ROWS_OF_EVIDENCE = 10
"""A text in more rows of the test sets than this, or in more than half of them, is a common prompt, not a question."""


class Match(Record):
    """A row that overlaps with a row of a test set."""

    kind: str
    """The kind of overlap: row, id or question."""
    line: int
    path: str
    """The file that contains the test set's row, on line `first_line`."""
    first_line: int
    evidence: str
    """The shared id or question; empty for the kind `row`."""


class TestSets:
    """The test sets that other rows must not overlap with, stored as hashes."""

    __test__ = False  # not pytest's

    def __init__(self, files: Iterable[DataFile]) -> None:
        """Read each file once; its rows need not be valid tasks. Raises OperatorError for one that is no object."""
        self._files: list[DataFile] = []
        self._origins = array("q")
        """Where each row comes from: the line number, and in the low 16 bits the index of the file."""
        self._rows: dict[bytes, int] = {}
        self._ids: dict[str, int] = {}
        self._questions: dict[bytes, list[int]] = {}
        """Hash of a question -> the rows with exactly this question."""
        for number, row in self._read(files):
            self._rows.setdefault(row_hash(row), number)
            if (name := _id(row)) is not None:
                self._ids.setdefault(name, number)
            for question in _questions(row):
                self._questions.setdefault(_key(question), []).append(number)

    def __len__(self) -> int:
        return len(self._origins)

    def matches(self, row: Json, line: int) -> Iterator[Match]:
        """Compare a row on line `line` with the test sets. Yields at most one match of each kind."""
        if (number := self._rows.get(row_hash(row))) is not None:
            yield self._match("row", line, number, "")
        if (name := _id(row)) is not None and (number := self._ids.get(name)) is not None:
            yield self._match("id", line, number, name)
        for question in _questions(row):
            rows = self._questions.get(_key(question), ())
            if len(rows) == 1 or 1 < len(rows) <= min(MAX_ROWS_OF_EVIDENCE, len(self) / 2):
                yield self._match("question", line, rows[0], question)
                break

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


def _questions(row: Json) -> list[str]:
    """Return the candidate questions of the row in normalized words, without duplicates, shortest first."""
    variants = {" ".join(words_of(question)) for text in prompts_of(row) for question in questions_of(text)} - {""}
    return sorted(variants, key=lambda words: (words.count(" "), words))


def _id(row: Json) -> str | None:
    try:
        return id_of_row(row)
    except ValueError:
        return None


def row_hash(row: Json) -> bytes:
    return bytes.fromhex(fingerprint(row))[:16]


def _key(question: str) -> bytes:
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()[:16]


MAX_LISTED = 20
"""Maximum number of problems and duplicates that are listed individually."""

R = TypeVar("R")


class RowProblem(Record):
    line: int
    problem: str


class Repetition(Record):
    line: int
    path: str
    """The file that contains the earlier row, on line `first_line`."""
    first_line: int


class FileReport(Record):
    path: str
    rows: int
    """Number of valid rows."""
    problems: int
    first_problems: list[RowProblem]
    agents: dict[str, int]
    """Agent -> number of rows; '' for rows without an agent."""
    keys: dict[str, int]
    """Top-level key -> number of rows that have it."""
    prompt_characters: Spread | None
    """Number of characters in the prompt, per row."""
    repeated_ids: int
    """Number of rows with the same id as an earlier row of this file. A mixture rejects such a file."""
    first_repeated_ids: list[RowProblem]
    duplicates: int
    """Number of duplicate tasks: rows that equal an earlier row of any file, except for ids and agents."""
    first_duplicates: list[Repetition]
    overlap: dict[str, int]
    """Number of rows that overlap with a test set, by kind: the same row (except for ids and agents), the same id, or
    the same question. A row may be counted under several kinds."""
    first_overlap: list[Match]
    """The first matches of each kind."""


def validate(files: Iterable[DataFile], against: Iterable[DataFile] = ()) -> list[FileReport]:
    """Report on each of `files`. `against`: files that must contain different tasks. Raises OperatorError."""
    test_sets = TestSets(against)
    seen = _Seen()
    return [_file(file, seen, test_sets) for file in files]


class _Seen:
    """Remembers where each row first occurred. File and line are packed into one integer to save memory."""

    def __init__(self) -> None:
        self._files: list[DataFile] = []
        self._origins: dict[bytes, int] = {}

    def start_file(self, file: DataFile) -> None:
        self._files.append(file)

    def add(self, task: bytes, line: int) -> None:
        self._origins.setdefault(task, line << 16 | len(self._files) - 1)

    def earlier(self, task: bytes, line: int) -> Repetition | None:
        origin = self._origins.get(task)
        if origin is None:
            return None
        return Repetition(line=line, path=str(self._files[origin & 0xFFFF]), first_line=origin >> 16)


class _Listed(Generic[R]):
    """Counts all items, but stores only the first MAX_LISTED."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[R] = []

    def add(self, item: R) -> None:
        self.count += 1
        if self.count <= MAX_LISTED:
            self.first.append(item)


def _file(file: DataFile, seen: _Seen, test_sets: TestSets) -> FileReport:
    problems, repeated_ids = _Listed[RowProblem](), _Listed[RowProblem]()
    duplicates = _Listed[Repetition]()
    overlap = {kind: _Listed[Match]() for kind in KINDS}
    ids = set[int]()
    agents, keys = Counter[str](), Counter[str]()
    lengths = array("q")
    seen.start_file(file)
    for row in rows_of(file):
        if row.problem:
            problems.add(RowProblem(line=row.line, problem=row.problem.lstrip(": ")))
            continue
        task = row_hash(row.value)
        if (repetition := seen.earlier(task, row.line)) is not None:
            duplicates.add(repetition)
        if len(test_sets):
            for match in test_sets.matches(row.value, row.line):
                overlap[match.kind].add(match)
        seen.add(task, row.line)
        if (own_id := id_of_row(row.value)) is not None:
            # Hashes take a third of the memory of ids; collisions among 2^61 values are negligible.
            if hash(own_id) in ids:
                repeated_ids.add(RowProblem(line=row.line, problem=f"has the same id as an earlier row ({own_id!r})"))
            ids.add(hash(own_id))
        agents[agent_of(row.value) or ""] += 1
        keys.update(row.value.keys())
        lengths.append(_prompt_length(row.value))
    return FileReport(
        path=str(file),
        rows=len(lengths),
        problems=problems.count,
        first_problems=problems.first,
        agents=dict(agents.most_common()),
        keys=dict(keys.most_common()),
        prompt_characters=spread(np.asarray(lengths, np.float64)),
        repeated_ids=repeated_ids.count,
        first_repeated_ids=repeated_ids.first,
        duplicates=duplicates.count,
        first_duplicates=duplicates.first,
        overlap={kind: listed.count for kind, listed in overlap.items()},
        first_overlap=[match for listed in overlap.values() for match in listed.first],
    )


def _prompt_length(row: Json) -> int:
    """Return the characters of the prompt, or of all texts of the row if the environment builds the prompt."""
    if row.get("responses_create_params", {}).get("input") is None:
        return sum(len(value) for value in row.values() if isinstance(value, str))
    return sum(len(message["content"]) for message in messages_of(row))

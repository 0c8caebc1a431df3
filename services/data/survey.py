"""survey: what is in the files of a data set, what is wrong with them, and what they share with others."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import orjson

from services.data.dataset import fingerprint
from services.metrics.estimators import spread
from services.metrics.records import Spread
from services.rows import agent_of, rows_of
from services.types import Json, Record

FIRST = 20
"""Problems and repetitions that are told one by one."""


class Problem(Record):
    """A row that cannot be played."""

    line: int
    problem: str


class Repetition(Record):
    """A row that was there before."""

    line: int
    path: str
    """Where it was: the file, and its line."""
    first_line: int


class FileSurvey(Record):
    """One file."""

    path: str
    rows: int
    """That can be played."""
    problems: int
    first_problems: list[Problem]
    agents: dict[str, int]
    """Who plays how many; '' where the row does not say."""
    keys: dict[str, int]
    """Top-level keys and how many rows have them."""
    prompt_characters: Spread | None
    """Of all texts in `input`."""
    duplicates: int
    """Rows that ask the same as an earlier one of any of the files: equal but for ids and players."""
    first_duplicates: list[Repetition]
    overlap: int
    """Rows that ask the same as one of the files that were given to be kept apart from."""
    first_overlap: list[Repetition]
    prompt_overlap: int
    """Rows whose prompt, white space aside, is that of a row there; prompts that several rows there share (a world's
    standing instruction) do not count."""


def survey(paths: Iterable[Path], against: Iterable[Path] = ()) -> list[FileSurvey]:
    """Read each of `paths` once; `against`: files that must hold other tasks (a test set). Raises OperatorError."""
    apart = _Seen()
    for path in against:
        for row in rows_of(path):
            if not row.problem:
                apart.add(row.value, path, row.line)
    seen = _Seen()
    return [_file(path, seen, apart) for path in paths]


class _Seen:
    """Fingerprints of rows and prompts, 16 bytes each, and where they were."""

    def __init__(self) -> None:
        self.tasks: dict[bytes, tuple[Path, int]] = {}
        self._prompts: Counter[bytes] = Counter()

    def add(self, row: Json, path: Path, line: int) -> None:
        """Remember a row; the first of equal ones stays."""
        self.tasks.setdefault(_short(row), (path, line))
        self._prompts[_prompt(row)] += 1

    def asks(self, row: Json) -> bool:
        """Whether a row with this prompt is there that does not share it with others."""
        return self._prompts[_prompt(row)] == 1


def _file(path: Path, seen: _Seen, apart: _Seen) -> FileSurvey:
    problems: list[Problem] = []
    duplicates: list[Repetition] = []
    overlap: list[Repetition] = []
    agents, keys = Counter[str](), Counter[str]()
    lengths: list[int] = []
    prompts = 0
    for row in rows_of(path):
        if row.problem:
            problems.append(Problem(line=row.line, problem=row.problem.lstrip(": ")))
            continue
        task = _short(row.value)
        if (first := seen.tasks.get(task)) is not None:
            duplicates.append(Repetition(line=row.line, path=str(first[0]), first_line=first[1]))
        if (there := apart.tasks.get(task)) is not None:
            overlap.append(Repetition(line=row.line, path=str(there[0]), first_line=there[1]))
        prompts += apart.asks(row.value)
        seen.add(row.value, path, row.line)
        agents[agent_of(row.value) or ""] += 1
        keys.update(row.value.keys())
        lengths.append(sum(map(len, texts(row.value))))
    return FileSurvey(
        path=str(path),
        rows=len(lengths),
        problems=len(problems),
        first_problems=problems[:FIRST],
        agents=dict(agents.most_common()),
        keys=dict(keys.most_common()),
        prompt_characters=spread(np.asarray(lengths, np.float64)),
        duplicates=len(duplicates),
        first_duplicates=duplicates[:FIRST],
        overlap=len(overlap),
        first_overlap=overlap[:FIRST],
        prompt_overlap=prompts,
    )


def texts(row: Json) -> list[str]:
    """What the prompt says, message by message."""
    asked = row["responses_create_params"]["input"]
    if isinstance(asked, str):
        return [asked]
    said: list[str] = []
    for item in asked:
        content = item.get("content") if isinstance(item, dict) else None
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                said.append(text)
    return said


def _short(row: Json) -> bytes:
    return bytes.fromhex(fingerprint(row))[:16]


def _prompt(row: Json) -> bytes:
    words = [" ".join(text.split()) for text in texts(row)]
    return hashlib.sha256(orjson.dumps(words)).digest()[:16]

"""Ledger: which checkpoint has been evaluated on what. A killed evaluation is not in it, and so is done again."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from services.errors import RunError
from services.evaluation.benchmarks import Benchmark
from services.evaluation.scores import Score, as_csv, as_json, as_markdown
from services.jsonl import replace
from services.types import Record

MOST_TRIES = 3


class Entry(Record):
    """One checkpoint on one benchmark."""

    checkpoint: str
    title: str
    """The benchmark's."""
    scores: list[Score]
    """Empty while it failed."""
    tries: int = 1
    error: str = ""


_ENTRIES = TypeAdapter(list[Entry])


class Ledger:
    """`lm_eval.json` in the output folder, replaced whole after each evaluation, and the tables made of it."""

    def __init__(self, folder: Path) -> None:
        """Raises RunError when there is one that cannot be read."""
        self.folder = folder
        self._path = folder / "lm_eval.json"
        self._entries: dict[tuple[str, str], Entry] = {}
        try:
            for entry in _ENTRIES.validate_json(self._path.read_bytes()):
                self._entries[entry.checkpoint, entry.title] = entry
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            raise RunError(f"{self._path} cannot be read ({error}); move it aside to evaluate anew") from error

    def wants(self, checkpoint: str, benchmark: Benchmark) -> bool:
        """Whether it is to be evaluated: never done, or failed and not yet given up."""
        entry = self._entries.get((checkpoint, benchmark.title))
        return entry is None or (bool(entry.error) and entry.tries < MOST_TRIES)

    def record(self, checkpoint: str, benchmark: Benchmark, scores: list[Score]) -> None:
        """It is done."""
        self._keep(Entry(checkpoint=checkpoint, title=benchmark.title, scores=scores))

    def fail(self, checkpoint: str, benchmark: Benchmark, error: str) -> None:
        """It failed; it is tried MOST_TRIES times in all."""
        before = self._entries.get((checkpoint, benchmark.title))
        tries = before.tries + 1 if before else 1
        self._keep(Entry(checkpoint=checkpoint, title=benchmark.title, scores=[], tries=tries, error=error))

    @property
    def scores(self) -> list[Score]:
        """All of them, by step and checkpoint, in the order in which they were made."""
        found = [score for entry in self._entries.values() for score in entry.scores]
        return sorted(found, key=lambda score: (-1 if score.step is None else score.step, score.checkpoint))

    @property
    def failed(self) -> list[Entry]:
        """What failed last time it was tried."""
        return [entry for entry in self._entries.values() if entry.error]

    def _keep(self, entry: Entry) -> None:
        self._entries[entry.checkpoint, entry.title] = entry
        self.folder.mkdir(parents=True, exist_ok=True)
        replace(self._path, _ENTRIES.dump_json(list(self._entries.values()), indent=2))
        replace(self.folder / "results.csv", as_csv(self.scores).encode())
        replace(self.folder / "results.md", as_markdown(self.scores).encode())
        replace(self.folder / "results.json", as_json(self.scores))

"""What both sides made of an environment, and the file that keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Result:
    name: str
    also: tuple[str, ...]
    """Other configs that play the same."""
    kind: str
    agent: str
    """NeMo Gym's agent that plays the reference."""
    named_agent: str | None
    """The agent that the config names, if that is another."""
    starts: bool
    """Whether the server starts, under NeMo Gym's rules and from `ng_run`."""
    theirs: tuple[float | None, ...]
    """Rewards under NeMo Gym's agent; None for a rollout that failed."""
    ours: tuple[float | None, ...]
    reason: str
    """Why the rewards are not equal or none exist; otherwise empty."""

    @property
    def equal(self) -> bool:
        """Whether every row has the same reward on both sides."""
        return bool(self.theirs) and None not in self.theirs and self.theirs == self.ours

    @property
    def distinct(self) -> int:
        """The number of different rewards. One is weak evidence."""
        return len(set(self.theirs) - {None})


def read(path: Path = RESULTS) -> dict[str, Result]:
    listed: list[dict[str, Any]] = json.loads(path.read_bytes()) if path.is_file() else []
    tuples = ("also", "theirs", "ours")
    return {one["name"]: Result(**{**one, **{key: tuple(one[key]) for key in tuples}}) for one in listed}


def write(results: Iterable[Result], path: Path = RESULTS) -> None:
    entries = [json.dumps(asdict(result), ensure_ascii=False) for result in results]
    path.write_text("[\n" + ",\n".join(entries) + "\n]\n")

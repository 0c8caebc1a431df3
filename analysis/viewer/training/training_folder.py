"""TrainingFolder: the files of a training run, as `ng_train` writes them (training/run_paths.py)."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import orjson

from rollyard.analysis.metrics.loader.columns import displayable
from rollyard.records.io.json_values import is_number, items, mapping, text_of
from rollyard.records.types import Json

_STEP_FILE = re.compile(r"step_(\d{6,})(\.jsonl?)")
_TIMES = ("created", "time", "ended")
_MAX_TIME = 1e10
_MAX_FACTS = 40
_MAX_FACT_LENGTH = 300


class TrainingFolder:
    """Lists the files as they appear."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.metrics = root / "metrics.jsonl"

    @property
    def is_training_run(self) -> bool:
        has_files = self.metrics.is_file() or self.rollouts() or self.evaluations()
        return bool(has_files or "starts" in self.record())

    def rollouts(self) -> dict[int, Path]:
        """Return the rollout file of each step, in ascending order."""
        return _step_files(self.root / "rollouts")

    def evaluations(self) -> dict[int, Path]:
        """Return the rollout file of each evaluation by the number of updates before it, in ascending order."""
        return _step_files(self.root / "evaluations")

    def token_pairs(self) -> dict[int, Path]:
        """Return the file with log-probabilities of engine and trainer of each step, in ascending order."""
        return _step_files(self.root / "token_pairs", ".json")

    def record(self) -> Json:
        """Return the contents of run.json; empty if there is no such file, or while it is being written."""
        try:
            record = orjson.loads((self.root / "run.json").read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return {}
        return mapping(record)


def state_of(record: Json) -> str:
    """Return how the last start of the run ended, such as `complete`; '' while it runs, or if it was killed."""
    return displayable(text_of(_last_start(record).get("state")))


def facts_of(record: Json) -> dict[str, str]:
    """Return what run.json says about the run and its last start, as text."""
    starts = items(record.get("starts"))
    plain = {name: value for name, value in record.items() if name != "starts"}
    found = {**_flat(plain), **({"starts": str(len(starts))} if starts else {}), **_flat(_last_start(record))}
    return dict(list(found.items())[:_MAX_FACTS])


def _last_start(record: Json) -> Json:
    starts = items(record.get("starts"))
    return mapping(starts[-1]) if starts else {}


def _flat(tree: Json, prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in tree.items():
        shown = displayable(prefix + name)
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name} ")
        elif name in _TIMES and is_number(value, _MAX_TIME):
            found[shown] = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(value))
        else:
            found[shown] = displayable(_text(value), _MAX_FACT_LENGTH)
    return found


def _text(value: object) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return shlex.join(value)
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _step_files(folder: Path, suffix: str = ".jsonl") -> dict[int, Path]:
    try:
        paths = list(folder.iterdir())
    except OSError:
        return {}
    steps = ((_STEP_FILE.fullmatch(path.name), path) for path in paths)
    return dict(sorted((int(found[1]), path) for found, path in steps if found and found[2] == suffix))

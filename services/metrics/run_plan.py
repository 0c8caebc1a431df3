"""What was asked for and what went wrong: read from the files that stand beside a rollout file, ours or NeMo Gym's."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rollyard.services.config.server_code.code_history import notes_of
from rollyard.services.datasets.data_files import DataFile, lines_of
from rollyard.services.io.json_values import text_of, whole_number
from rollyard.services.io.jsonl import ParsedLine, hand_over, iter_jsonl
from rollyard.services.metrics.loader.columns import Ints, word
from rollyard.services.rollouts.store import StorePaths
from rollyard.services.types import Json


@dataclass(frozen=True)
class Attempts:
    """Failed attempts in the order they happened."""

    task: Ints
    repeat: Ints
    kind: list[str]
    server: list[str]


@dataclass(frozen=True)
class RunPlan:
    """How many rollouts a collection is to have, and its failed attempts."""

    rollouts: int | None = None
    tasks: int | None = None
    repeats: int | None = None
    source: str = ""
    """Name of the file that says so."""
    identity: Json | None = None
    exact: bool = False
    """The manifest says so: tasks and repeats are counted from 0, and there are no others."""
    attempts: Attempts = field(default_factory=lambda: Attempts(np.empty(0, np.int64), np.empty(0, np.int64), [], []))
    notes: list[str] = field(default_factory=list)


def read_run_plan(output: Path, *, inputs: DataFile | None = None, materialized: Path | None = None) -> RunPlan:
    """What stands beside `output`: its manifest, else the materialized inputs, else its status.

    `inputs`: the data set (a row a task), `materialized`: a row a rollout, as NeMo Gym writes them. Said by the user,
    they win over what stands beside. Raises OperatorError when one of the two cannot be read.
    """
    paths, notes = StorePaths(output), list[str]()
    manifest = _mapping(paths.manifest, notes)
    identity = manifest.get("identity") if isinstance(manifest.get("identity"), dict) else None
    notes += notes_of(manifest.get("code"))
    attempts = _attempts(paths.failures, notes)
    rows, repeats = _whole(identity, "rows"), _whole(identity, "num_repeats")
    said: dict[str, Any] = {}
    if materialized is not None:
        said = {"rollouts": count_lines(materialized), "source": materialized.name}
    elif inputs is not None:
        tasks = count_lines(inputs)
        said = {"tasks": tasks, "repeats": repeats, "rollouts": tasks * repeats if repeats else None}
        said["source"] = Path(str(inputs)).name
    elif rows is not None and repeats is not None:
        said = {"rollouts": rows * repeats, "tasks": rows, "repeats": repeats, "source": paths.manifest.name}
        said["exact"] = True
    elif paths.materialized.exists():
        said = {"rollouts": count_lines(paths.materialized), "source": paths.materialized.name}
    elif (expected := _whole(_mapping(paths.status, notes), "expected")) is not None:
        said = {"rollouts": expected, "source": paths.status.name}
    return RunPlan(**said, identity=identity, attempts=attempts, notes=notes)


def count_lines(file: DataFile) -> int:
    """Lines that hold something, or rows of a table. Raises OperatorError when it cannot be read."""
    return sum(1 for line in lines_of(file) if not line.isspace())


def _mapping(path: Path, notes: list[str]) -> Json:
    """A JSON object, or {} with a note when the file is there and holds none."""
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        notes.append(f"{path.name} cannot be read ({error}): it counts as not there.")
        return {}
    return value if isinstance(value, dict) else {}


def _whole(mapping: Json | None, key: str) -> int | None:
    return whole_number((mapping or {}).get(key), least=0)


def _attempts(path: Path, notes: list[str]) -> Attempts:
    """Failed attempts. A line that is none is counted in a note: what failed must not hide what was measured."""
    task, repeat, kind, server, bad = array("q"), array("q"), list[str](), list[str](), 0
    shared: dict[str, str] = {}
    try:
        for found in iter_jsonl(path, hand_over):
            row = found.value if isinstance(found, ParsedLine) else {}
            index, number = whole_number(row.get("_ng_task_index")), whole_number(row.get("_ng_rollout_index"))
            if index is None or number is None:
                bad += 1
                continue
            task.append(index)
            repeat.append(number)
            for texts, name in ((kind, "failure_kind"), (server, "server")):
                text = text_of(row.get(name)) or "unknown"
                texts.append(shared.get(text) or shared.setdefault(text, word(text)))
    except FileNotFoundError:
        pass
    except OSError as error:
        notes.append(f"{path.name} cannot be read ({error.strerror}): failures are not counted.")
    if bad:
        notes.append(f"{path.name} has {bad} lines that are no failure row; they are not counted.")
    return Attempts(np.asarray(task, np.int64), np.asarray(repeat, np.int64), kind, server)

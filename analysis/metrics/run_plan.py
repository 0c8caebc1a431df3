"""Reads the expected rollouts and the failed attempts from a rollout file's sidecar files."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pydantic import TypeAdapter, ValidationError

from rollyard.analysis.metrics.columns import Floats, Ints, displayable
from rollyard.records.data_files import DataFile, lines_of
from rollyard.records.jsonl import ParsedLine, hand_over, iter_jsonl
from rollyard.records.manifest import PLANNED, ROLLOUTS
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.run_types import CodeVersion
from rollyard.records.types import Json, mapping, number, text_of, whole_number

_CODE_VERSIONS = TypeAdapter(list[CodeVersion])


@dataclass(frozen=True)
class FailedAttempts:
    """The rows of X_failures.jsonl, in the order of the file."""

    task: Ints
    repeat: Ints
    time: Floats
    """Unix time; NaN if it is not recorded."""
    kind: list[str]
    server: list[str]


NO_ATTEMPTS = FailedAttempts(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), [], [])
SELECTION = "a selection of the rollouts"
"""Source of the plan of rollouts that an expression selects, for which no number is expected."""


@dataclass(frozen=True)
class RunPlan:
    """The number of rollouts that a collection should contain, and its failed attempts."""

    rollouts: int | None = None
    tasks: int | None = None
    repeats: int | None = None
    source: str = ""
    """Name of the file that contains these numbers, or SELECTION."""
    identity: Json | None = None
    exact: bool = False
    """Whether the numbers come from the manifest. If so, tasks and repeats are numbered from 0 without gaps."""
    attempts: FailedAttempts = NO_ATTEMPTS
    notes: list[str] = field(default_factory=list)


def read_run_plan(output: Path, *, inputs: DataFile | None = None, materialized: Path | None = None) -> RunPlan:
    """Read the plan from `inputs` (one row per task), `materialized` (one row per rollout), or else the files beside
    `output`: its manifest, its materialized inputs or its status.

    Raises OperatorError if `inputs` or `materialized` cannot be read.
    """
    paths, notes = RolloutPaths(output), list[str]()
    manifest = _mapping(paths.manifest, notes)
    identity = manifest.get("identity") if isinstance(manifest.get("identity"), dict) else None
    notes += _code_notes(manifest.get("code"))
    attempts = read_failed_attempts(output, notes)
    rows, repeats = _integer(identity, "rows"), _integer(identity, "num_repeats")
    plan: dict[str, Any] = {}
    if materialized is not None:
        plan = {"rollouts": count_lines(materialized), "source": materialized.name}
    elif inputs is not None:
        tasks = count_lines(inputs)
        plan = {"tasks": tasks, "repeats": repeats, "rollouts": tasks * repeats if repeats else None}
        plan["source"] = Path(str(inputs)).name
    elif (stored := _integer(identity, ROLLOUTS)) is not None and not mapping(identity).get(PLANNED):
        plan = {"rollouts": stored, "source": paths.manifest.name}
    elif rows is not None and repeats is not None:
        plan = {"rollouts": rows * repeats, "tasks": rows, "repeats": repeats, "exact": True}
        plan["source"] = paths.manifest.name
    elif paths.materialized.exists():
        plan = {"rollouts": count_lines(paths.materialized), "source": paths.materialized.name}
    elif (expected := _integer(_mapping(paths.status, notes), "expected")) is not None:
        plan = {"rollouts": expected, "source": paths.status.name}
    return RunPlan(**plan, identity=identity, attempts=attempts, notes=notes)


def manifest_model(output: Path) -> str:
    """Return the last part of the model's name in the manifest of `output`; empty if it has none."""
    identity = mapping(_mapping(RolloutPaths(output).manifest, []).get("identity"))
    model = mapping(identity.get("responses_create_params")).get("model")
    return Path(model).name if isinstance(model, str) else ""


def count_lines(file: DataFile) -> int:
    """Count the non-empty lines, or the rows of a table. Raises OperatorError if the file cannot be read."""
    return sum(1 for line in lines_of(file) if not line.isspace())


def _code_notes(recorded: Any) -> list[str]:
    try:
        versions = _CODE_VERSIONS.validate_python(recorded)
    except ValidationError:
        return []
    if len(versions) < 2:
        return []
    changes = "; ".join(f"{new.digest}: {', '.join(old.changes_to(new))}" for old, new in pairwise(versions))
    several = f"{len(versions)} versions of the servers' code (see _ng_code in the rows)"
    return [f"The rollouts are from {several}: {changes}."]


def _mapping(path: Path, notes: list[str]) -> Json:
    """Read a JSON object. Return {} if the file is missing or does not contain one; add a note if it cannot be read."""
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        notes.append(f"{path.name} is ignored because it cannot be read: {error}.")
        return {}
    return value if isinstance(value, dict) else {}


def _integer(mapping: Json | None, key: str) -> int | None:
    return whole_number((mapping or {}).get(key), least=0)


def read_failed_attempts(output: Path, notes: list[str] | None = None) -> FailedAttempts:
    """Read the failed attempts of the rollout file `output`; none if there is no failures file.

    Invalid lines and an unreadable file only add a note: they must not prevent a report on the measured rollouts.
    """
    path, notes = RolloutPaths(output).failures, [] if notes is None else notes
    task, repeat, time, kind, server, bad = array("q"), array("q"), array("d"), list[str](), list[str](), 0
    interned: dict[str, str] = {}
    try:
        for found in iter_jsonl(path, hand_over):
            row = found.value if isinstance(found, ParsedLine) else {}
            index, rollout = whole_number(row.get("_ng_task_index")), whole_number(row.get("_ng_rollout_index"))
            if index is None or rollout is None:
                bad += 1
                continue
            task.append(index)
            repeat.append(rollout)
            time.append(number(row.get("time"), math.nan))
            for texts, name in ((kind, "failure_kind"), (server, "server")):
                text = text_of(row.get(name)) or "unknown"
                texts.append(interned.get(text) or interned.setdefault(text, displayable(text)))
    except FileNotFoundError:
        pass
    except OSError as error:
        notes.append(f"Failures are not counted because {path.name} cannot be read: {error.strerror}.")
    if bad:
        notes.append(f"{path.name} has {bad} lines that are not valid failure rows; they are not counted.")
    return FailedAttempts(
        np.asarray(task, np.int64), np.asarray(repeat, np.int64), np.asarray(time, np.float64), kind, server
    )

"""Recognises files of other programs, and makes rollout files of them: trajectories in ATIF, and logs of inspect_ai.

Whatever a command can open becomes a rollout file beside it first (`rollout_file`), so that all commands and pages read
one format, and notes have a place. An existing one is only replaced by another content.
"""

from __future__ import annotations

import filecmp
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.inspect_log import inspect_samples
from rollyard.records.jsonl import iter_jsonl, lenient, refuse
from rollyard.records.rewards import is_reward
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import digest, prompt_of
from rollyard.records.types import Json, items, mapping, text_of, whole_number

SOURCE = "_ng_source"
"""Key of a row that was read from a file of another program: `file`, relative to what was opened, and `session_id` and
`agent_version` of a trajectory, with which it is exported again."""
_MAX_IMAGE_BYTES = 32 << 20
_MAX_BYTES_OF_IMAGES = 256 << 20
"""Of a document, each time that it shows one. The row keeps the path of any further image."""
_ENDING = ".rollouts.jsonl"
_INSPECT_LOG = re.compile(rb'\s*{\s*"version":\s*\d+,\s*"status":\s*"\w+",[^{[]*"eval":\s*{')
_INVALID = "invalid_reward"
"""Failure kind of a trial whose reward does not count, without an exception."""


def rollout_file(path: Path) -> Path:
    """Return the file itself, or a rollout file made of it if it is of another program: a log of inspect_ai (`.eval` or
    `.json`), a trajectory in ATIF (`.json`), JSON Lines of trajectories, or a folder of them, also Harbor's of a job or
    trial.

    Raises RunError if the file is malformed, with the place and what was expected, and OperatorError if the rollouts
    cannot be written.
    """
    entries = _entries(path)
    return path if entries is None else _made(path, entries)


@dataclass(frozen=True)
class _Entry:
    row: Json
    """With the keys of task and repeat, if the source has them."""
    failure: Json | None = None
    """The row of X_failures.jsonl, instead of a rollout."""
    task: Any = None
    """What identifies the task, if there is no index."""


def _entries(path: Path) -> Iterator[_Entry] | None:
    """Return what the file or folder has; None if it is not of another program."""
    if path.is_dir():
        files = _documents(path)
        return _of_files(path, files) if files else None
    if not path.is_file():
        return None
    if path.suffix == ".eval":
        return _of_inspect(path)
    first = _first_value(path)
    if path.suffix == ".json" and not {"reward", "response"} & mapping(first).keys():
        return _of_inspect(path) if _is_inspect_log(path) else _of_files(path.parent, [path])
    return _of_lines(path) if _is_trajectory(first) else None


def _first_value(path: Path) -> Any:
    """Return the JSON value on the first line; None if there is none, as in a JSON file of several lines."""
    try:
        with path.open("rb") as file:
            line = next((line for line in islice(file, 100) if not line.isspace()), b"")
        return lenient(line)
    except (OSError, ValueError):
        return None


def _is_trajectory(value: Any) -> bool:
    """Return whether a JSON value claims to be a trajectory in ATIF, whether valid or not."""
    return text_of(mapping(value).get("schema_version")).startswith("ATIF-")


def _is_inspect_log(path: Path) -> bool:
    """Return whether a JSON file is a log of inspect_ai. Its samples may be large; the keys before them are not."""
    with suppress(OSError), path.open("rb") as file:
        return _INSPECT_LOG.match(file.read(1000)) is not None
    return False


def _documents(folder: Path) -> list[Path]:
    """Return the trajectories in a folder: those of its manifest, as NeMo Gym's export writes it, and failed attempts;
    else its JSON files, and those that Harbor's agents wrote below it.
    """
    manifest = folder / "manifest.jsonl"
    if manifest.is_file():
        names = [line.value.get("trajectory_path") for line in iter_jsonl(manifest, refuse(manifest))]
        files = [(_inside(folder, name), name) for name in names if isinstance(name, str)]
        if outside := next((name for file, name in files if file is None), None):
            raise RunError(f"{manifest} names {outside!r:.200}; expected the path of a file in {folder}")
        return [*(file for file, _ in files if file is not None), *sorted((folder / "failures").glob("*.json"))]
    found = [*sorted(folder.glob("*.json")), *sorted(folder.rglob("agent/trajectory.json"))]
    return [file for file in found if file.name == "trajectory.json" or _mentions_atif(file)]


def _inside(folder: Path, name: str) -> Path | None:
    """Return the file that a document of the folder names; None if it is elsewhere: a document may name any path."""
    with suppress(OSError, RuntimeError, ValueError):  # a circle of links, or a character that no path has
        root = folder.resolve()
        return folder / (folder / name).resolve().relative_to(root)
    return None


def _mentions_atif(file: Path) -> bool:
    with suppress(OSError):
        return b'"ATIF-v' in file.read_bytes()
    return False


def _of_files(root: Path, files: list[Path]) -> Iterator[_Entry]:
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror}") from error
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RunError(f"{file} is not JSON ({error}); expected a trajectory in ATIF") from error
        if not _is_trajectory(value):
            raise RunError(
                f"{file} is not a trajectory: found {_found(value)}, expected an object whose schema_version begins "
                "with ATIF-v1"
            )
        yield _entry(value, f"{file}", str(file.relative_to(root)), file.parent, _trial(file))


def _found(value: Any) -> str:
    if not isinstance(value, dict):
        return f"a {type(value).__name__}"
    version = value.get("schema_version")
    return f"keys {', '.join(map(repr, islice(value, 5))) or 'none'}" if version is None else f"version {version!r:.40}"


def _of_lines(path: Path) -> Iterator[_Entry]:
    for line in iter_jsonl(path, refuse(path)):
        yield _entry(line.value, f"{path}: line {line.number}", f"{path.name}:{line.number}", path.parent, {})


def _entry(value: Any, place: str, source: str, folder: Path, trial: Json) -> _Entry:
    left = _MAX_BYTES_OF_IMAGES

    def image(name: str) -> bytes | None:
        nonlocal left
        if (file := _inside(folder, name)) is None:
            return None
        with suppress(OSError):
            if (size := file.stat().st_size) <= min(left, _MAX_IMAGE_BYTES):
                left -= size
                return file.read_bytes()
        return None

    from rollyard.records import atif  # its models take longer to build than most commands to read their options

    try:
        trajectory = atif.parse(value)
        row = atif.row_of(trajectory, image)
        failure = atif.failure_of(trajectory, row)
    except ValueError as error:
        raise RunError(f"{place}: {error}") from error
    except RecursionError as error:
        raise RunError(f"{place} is nested too deeply") from error
    agent = {"session_id": trajectory.session_id, "agent_version": trajectory.agent.version}
    origin = {SOURCE: {"file": source, **agent}}
    known = {**_key_of_nemo_gym(value), **trial, **row, **origin}
    task = trial.get("task_name") or digest(prompt_of(known))
    return _Entry(known, None if failure is None else {**failure, **origin}, task)


def _key_of_nemo_gym(document: Any) -> Json:
    """Return the keys of task and repeat that NeMo Gym's export writes."""
    source = mapping(mapping(mapping(mapping(document).get("extra")).get("nemo_gym")).get("source"))
    task, repeat = (whole_number(source.get(name), least=0) for name in ("task_index", "rollout_index"))
    return {} if task is None or repeat is None else {"_ng_task_index": task, "_ng_rollout_index": repeat}


def _trial(file: Path) -> Json:
    """Return what Harbor's result.json tells of the trial whose agent wrote this trajectory."""
    if file.parent.name != "agent":
        return {}
    base, step = file.parent.parent, ""
    if base.parent.name == "steps":
        base, step = base.parent.parent, base.name
    try:
        result = mapping(orjson.loads((base / "result.json").read_bytes()))
    except (OSError, ValueError):
        return {}
    of_step = next(
        (each for each in map(mapping, items(result.get("step_results"))) if each.get("step_name") == step), {}
    )
    rewards = mapping(mapping((of_step or result).get("verifier_result")).get("rewards"))
    reward = rewards.get("reward", next(iter(rewards.values()), None) if len(rewards) == 1 else None)
    error = mapping((of_step or result).get("exception_info"))
    found: Json = {
        "task_name": "/".join(filter(None, (text_of(result.get("task_name")), step))),
        "trial_name": text_of(result.get("trial_name")),
        "reward": reward if is_reward(reward) else None,
        "reward_components": rewards if len(rewards) > 1 else None,
        "exception": error.get("exception_message"),
        # Harbor says itself whether the reward counts.
        "failure_kind": None if result.get("reward_valid", True) else text_of(error.get("exception_type")) or _INVALID,
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def _of_inspect(path: Path) -> Iterator[_Entry]:
    for row, error in inspect_samples(path):
        known = {**row, SOURCE: {"file": path.name}}
        if error is None:
            yield _Entry(known)
            continue
        keys = ("_ng_task_index", "_ng_rollout_index", "agent_ref", SOURCE)
        failure = {**{key: known[key] for key in keys}, "_ng_attempt_index": 0, "failure_kind": "sample_error"}
        partial = {"source": "agent", "row": {key: value for key, value in row.items() if key not in keys}}
        yield _Entry(known, {**failure, "server": "inspect_ai", "status": 0, "detail": error, "partial": partial})


def _made(path: Path, entries: Iterator[_Entry]) -> Path:
    """Write the rollout file and its failures, and return its path. What is there already stays if it is the same."""
    named = path if path.name not in ("", "..") else path.resolve()
    # With the suffix: x.eval, x.json, x.jsonl and the folder x are sources beside each other.
    target = named.with_name(f"{named.name}{_ENDING}")
    failures = RolloutPaths(target).failures
    new = [file.with_name(f".{file.name}.{os.getpid()}") for file in (target, failures)]
    try:
        for file in (target, failures):
            if file.exists() and SOURCE not in mapping(_first_value(file)) and file.stat().st_size:
                raise OperatorError(
                    f"the rollouts of {path} would be written to {file}, which exists and was not made of such a "
                    "file: move it away"
                )
        with new[0].open("wb") as rows, new[1].open("wb") as failed:
            _write(path, entries, rows, failed)
        for made, file in zip(new, (target, failures), strict=True):
            if made.stat().st_size == 0 and file == failures:
                file.unlink(missing_ok=True)
            elif not (file.exists() and filecmp.cmp(made, file, shallow=False)):
                made.replace(file)
    except OSError as error:
        raise OperatorError(
            f"the rollouts of {path} cannot be written beside it, to {target}: {error.strerror}. Copy it to a folder "
            "in which such a file can be written"
        ) from error
    finally:
        for made in new:
            with suppress(OSError):
                made.unlink(missing_ok=True)
    return target


def _write(path: Path, entries: Iterator[_Entry], rows: BinaryIO, failed: BinaryIO) -> None:
    tasks: dict[Any, int] = {}
    repeats: dict[int, int] = {}
    has_keys: bool | None = None
    for entry in entries:
        row = entry.row if entry.failure is None else entry.failure
        is_indexed = "_ng_task_index" in row and "_ng_rollout_index" in row
        has_keys = is_indexed if has_keys is None else has_keys
        if is_indexed != has_keys:
            file, found = row[SOURCE]["file"], "an" if is_indexed else "no"
            raise OperatorError(
                f"{path}: {file} has {found} index of its task, unlike those before it; expected trajectories of one "
                "program: open them apart"
            )
        if not is_indexed:
            task = tasks.setdefault(entry.task, len(tasks))
            repeat = repeats[task] = repeats.get(task, -1) + 1
            row = {**row, "_ng_task_index": task, "_ng_rollout_index": repeat}
        (rows if entry.failure is None else failed).write(_line(row))


def _line(row: Json) -> bytes:
    try:
        return orjson.dumps(row) + b"\n"
    except TypeError:  # an integer over 64 bits, or a lone surrogate
        return json.dumps(row).encode() + b"\n"

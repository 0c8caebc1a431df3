"""The files of a collection in the form in which NeMo Gym 0.7's collector writes them, for `ng_export`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from rollyard.records import nemo_gym
from rollyard.records.aggregate_metrics import aggregate
from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.jsonl import iter_jsonl, refuse_unless_torn
from rollyard.records.manifest import Manifest
from rollyard.records.rewards import MASK_KEYS, mask_of
from rollyard.records.rollout_file import RolloutPaths, Rollouts
from rollyard.records.rollout_keys import Key, key_of
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.types import Json, is_number, mapping
from rollyard.services.datasets.mixture import is_materialized
from rollyard.services.rollouts.run_answer import without_keys
from rollyard.services.rollouts.task_subset import Origin

_OF_INPUT = frozenset({"responses_create_params", "agent_ref", "_ng_task_index", "_ng_rollout_index", "task_id", "id"})
"""What is known of the request of a rollout whose input is gone. It is enough for a profile."""
NAME = "rollouts.jsonl"
"""The name of a rollout file that NeMo Gym's health check expects in a folder."""


def write_folder(source: Path, folder: Path) -> tuple[int, int, bool]:
    """Write the files into `folder`. Return the numbers of rollouts and of failed attempts, and whether the
    materialized inputs are those of the whole plan, with which NeMo Gym's collector can continue.

    Raises RunError if a rollout has no valid key, or one that another has, too.
    """
    paths, target = RolloutPaths(source), RolloutPaths(folder / NAME)
    is_whole = _write_inputs(paths, target.materialized)
    known = set[Key]()
    numbers = dict[str, list[Json]]()
    with target.output.open("wb") as rollouts, target.materialized.open("ab") as inputs:
        for row in Rollouts(source):
            try:
                key = key_of(row)
            except ValueError as error:
                raise RunError(f"{source}: a rollout {error}") from error
            if key in known:
                raise RunError(f"{source}: task {key[0]}, repeat {key[1]} is there twice; expected each rollout once")
            known.add(key)
            agent = str(mapping(row.get("agent_ref")).get("name") or "agent")
            numbers.setdefault(agent, []).append(_numbers(row))
            rollouts.write(_line({**row, "ng_trajectory": nemo_gym.trajectory_of(row)}))
            if not is_whole:
                inputs.write(_line({name: value for name, value in row.items() if name in _OF_INPUT}))
    failures = _write_failures(paths, target.failures)
    entries = [{"agent_ref": {"name": agent}, **aggregate(rows)} for agent, rows in sorted(numbers.items())]
    target.sidecar("aggregate_metrics.json").write_bytes(json.dumps(entries, indent=2).encode())
    return len(known), failures, is_whole


def _write_inputs(paths: RolloutPaths, target: Path) -> bool:
    """Write the requests of the whole collection. Return False if its input is not one file, is gone or has changed."""
    try:
        identity = Manifest.model_validate_json(paths.manifest.read_bytes()).identity
    except (OSError, ValidationError):
        return False
    origin, repeats = Origin.of_manifest(paths.manifest), identity.get("num_repeats")
    tasks = None if origin is None else origin.find(identity.get("agent_name"), (paths.output.parent,))
    if tasks is None or not isinstance(repeats, int):
        return False
    params, seeded = mapping(identity.get("responses_create_params")), bool(identity.get("num_repeats_add_seed"))
    with target.open("wb") as file:
        for rollout in tasks.rollouts(repeats):
            with suppress(Failure):  # a row that no collector can send
                body = without_keys(rollout.body(params, seeded=seeded))
                if is_materialized(rollout.row):  # the body is that of an environment server, without keys
                    indices = {"_ng_task_index": rollout.task_index, "_ng_rollout_index": rollout.rollout_index}
                    body = orjson.dumps({**orjson.loads(body)["task"], **indices})
                file.write(body + b"\n")
    return True


def _numbers(row: RolloutRow) -> Json:
    """Return what is averaged, and what masks the row, so that no conversation stays in memory."""
    known = ((key, value) for key, value in row.items() if key not in MASK_KEYS)
    kept: Json = {key: value for key, value in known if isinstance(value, bool) or is_number(value)}
    usage = mapping(row.get("response")).get("usage")
    return {**kept, "response": {"usage": usage}, **({"mask_sample": True} if mask_of(row) else {})}


def _write_failures(paths: RolloutPaths, target: Path) -> int:
    written = 0
    with target.open("wb") as file:
        for failure in _failures(paths.failures):
            file.write(_line(failure))
            written += 1
    return written


def _failures(path: Path) -> Iterator[Json]:
    if not path.is_file():
        return
    for line in iter_jsonl(path, refuse_unless_torn(path)):
        row: Mapping[str, Any] = line.value
        kind, name = str(row.get("failure_kind")), nemo_gym.name_of(str(row.get("failure_kind")))
        keys = ("_ng_task_index", "_ng_rollout_index", "_ng_attempt_index", "agent_ref")
        yield {
            **{key: row[key] for key in keys if key in row},
            "_ng_failure_class": name,
            "_ng_failure_terminal": kind == FailureKind.BAD_TASK,
            "_ng_failure_message": row.get("detail"),
            "_ng_failure_http_status": row.get("status"),
            "failure_kind": name,
            "failure_reason": row.get("detail"),
        }


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(row) + b"\n"
    except TypeError:  # an integer over 64 bits, or nested too deeply
        try:
            return json.dumps(row).encode() + b"\n"
        except RecursionError as error:
            key = f"task {row.get('_ng_task_index')}, repeat {row.get('_ng_rollout_index')}"
            raise RunError(f"{key} is nested too deeply to be exported") from error

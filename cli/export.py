"""ng_export: writes rollouts as trajectories in ATIF, one file each, or as the files of NeMo Gym 0.7's collector."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field, ValidationError

from rollyard.cli.options import Options, read_options, rollout_files, run_command
from rollyard.records import atif, nemo_gym
from rollyard.records.aggregate_metrics import aggregate
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.foreign_files import SOURCE
from rollyard.records.jsonl import iter_jsonl, refuse_unless_torn
from rollyard.records.manifest import Manifest
from rollyard.records.rewards import MASK_KEYS, mask_of
from rollyard.records.rollout_file import RolloutPaths, Rollouts
from rollyard.records.rollout_keys import Key, key_of
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.script import EXIT_DONE
from rollyard.records.terminal import pluralize
from rollyard.records.types import Json, is_number, mapping, whole_number
from rollyard.services.datasets.mixture import is_materialized
from rollyard.services.rollouts.run_answer import without_keys
from rollyard.services.rollouts.task_subset import Origin

EXAMPLE = "ng_export results/rollouts.jsonl --output-dir results/atif"
_VERSIONS = {"atif": atif.VERSION, "nemo_gym": "the files of NeMo Gym 0.7"}
_NUMBERS = re.compile(rb"\[\n[\s\d.,eE+-]+\]")


class ExportOptions(Options):
    SUBJECT: ClassVar[str] = "jsonl_fpath"

    jsonl_fpath: Path
    """The rollouts. Failed attempts are read from X_failures.jsonl beside them."""
    format: Literal["atif", "nemo_gym"] = "atif"
    """ATIF v1.7, the Agent Trajectory Interchange Format; or the files of NeMo Gym 0.7's collector, which its profile,
    compare, export, health-check and run --resume read."""
    output_dir: Path | None = None
    """A new folder: TASK-REPEAT.json, failures/TASK-REPEAT-ATTEMPT.json, images/, manifest.jsonl, or NeMo Gym's
    rollouts.jsonl and the files beside it; default: X_atif or X_nemo_gym."""
    session_id: str | None = Field(default=None, min_length=1)
    """Identifies the run in each trajectory; default: the name of the file and a hash of its manifest."""
    agent_version: str | None = Field(default=None, min_length=1)
    """Version of the agent; default: Rollyard's at the collection, from the manifest."""


def main() -> None:
    run_command("ng_export", ExportOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Write rollouts as trajectories in ATIF, which ng_viewer, ng_reward_profile and others read, or for NeMo Gym."""
    options, _ = read_options(ExportOptions, arguments)
    (source,) = rollout_files([options.jsonl_fpath])
    paths = RolloutPaths(source)
    output = options.output_dir or paths.sidecar(options.format)
    if output.exists():
        raise OperatorError(f"{output} exists; expected a new folder: choose another one with --output-dir")
    identities = _Identities.of(paths, options)
    staging = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        staging.mkdir(parents=True)
        is_whole = True
        if options.format == "nemo_gym":
            rollouts, failures, is_whole = write_nemo_gym_folder(source, staging)
        else:
            rollouts, failures = (
                _write_rollouts(source, staging, identities),
                _write_failures(paths, staging, identities),
            )
        if not rollouts and not failures:
            raise RunError(f"{source} has no rollouts")
        staging.rename(output)
    except OSError as error:
        raise OperatorError(f"{output} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    place = " in failures/" if options.format == "atif" else ""
    failed = f", {pluralize(failures, 'failed attempt')}{place}" if failures else ""
    print(f"{pluralize(rollouts, 'rollout')}{failed} -> {output} ({_VERSIONS[options.format]})")
    if not is_whole:
        print(
            f"note: the input of {source} is not one file, was not found or has changed, so that the materialized "
            "inputs are those of the stored rollouts: NeMo Gym can profile them, but cannot continue the collection"
        )
    return EXIT_DONE


@dataclass(frozen=True)
class _Identities:
    """What the trajectories say of their run."""

    options: ExportOptions
    default: atif.Identity

    @classmethod
    def of(cls, paths: RolloutPaths, options: ExportOptions) -> _Identities:
        name, version = paths.output.stem, atif.NO_VERSION
        with suppress(OSError, ValidationError):  # rollouts of another program have no manifest
            manifest = Manifest.model_validate_json(paths.manifest.read_bytes())
            name += f"-{hashlib.sha256(str(manifest.created).encode()).hexdigest()[:8]}"
            version = manifest.versions.get("rollyard", version)
        return cls(options, atif.Identity(name, version))

    def without(self, row: Mapping[str, Any]) -> tuple[Json, atif.Identity]:
        """Return the row without its source, and its identity: from the options, from the source, or the default."""
        source = mapping(row.get(SOURCE))
        session = self.options.session_id or source.get("session_id") or self.default.session_id
        version = self.options.agent_version or source.get("agent_version") or self.default.agent_version
        return {key: value for key, value in row.items() if key != SOURCE}, atif.Identity(session, version)


def _write_rollouts(source: Path, folder: Path, identities: _Identities) -> int:
    written: set[str] = set()
    with (folder / "manifest.jsonl").open("wb") as manifest:
        for row in Rollouts(source):
            try:
                task, repeat = key_of(row)
            except ValueError as error:
                raise RunError(f"{source}: a rollout {error}") from error
            name = f"{task}-{repeat}.json"
            if name in written:
                raise RunError(f"{source}: task {task}, repeat {repeat} is there twice; expected each rollout once")
            written.add(name)
            known, identity = identities.without(row)
            with _naming(f"{source}: task {task}, repeat {repeat}"):
                data = _write(folder / name, atif.trajectory_of(known, identity))
            entry = {"trajectory_path": name, "_ng_task_index": task, "_ng_rollout_index": repeat}
            manifest.write(orjson.dumps({**entry, "expected_sha256": hashlib.sha256(data).hexdigest()}) + b"\n")
    return len(written)


def _write_failures(paths: RolloutPaths, folder: Path, identities: _Identities) -> int:
    if not paths.failures.is_file():
        return 0
    written: Counter[str] = Counter()
    for line in iter_jsonl(paths.failures, refuse_unless_torn(paths.failures)):
        failure, identity = identities.without(line.value)
        keys = ("_ng_task_index", "_ng_rollout_index", "_ng_attempt_index")
        name = "-".join(str(whole_number(failure.get(key))) for key in keys)
        # A collection that was killed may have written an attempt twice.
        again = f"-again-{written[name]}" if written[name] else ""
        written[name] += 1
        file = folder / "failures" / f"{name}{again}.json"
        file.parent.mkdir(exist_ok=True)
        with _naming(f"{paths.failures}: line {line.number}"):
            _write(file, atif.trajectory_of_failure(failure, identity))
    return written.total()


@contextmanager
def _naming(place: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise RunError(f"{place} cannot be exported: {error}") from error


def _write(file: Path, export: atif.Export) -> bytes:
    data = _encoded(atif.dump(export.trajectory))
    file.write_bytes(data)
    for path, image in export.images.items():
        place = file.parent / path
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(image)
    return data


def _encoded(document: Json) -> bytes:
    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2)
    except TypeError:  # an integer over 64 bits, or a lone surrogate
        text = json.dumps(document, indent=2).encode()
    # Lists of token ids in one line each.
    return _NUMBERS.sub(lambda found: b" ".join(found[0].split()), text) + b"\n"


_OF_INPUT = frozenset({"responses_create_params", "agent_ref", "_ng_task_index", "_ng_rollout_index", "task_id", "id"})
"""What is known of the request of a rollout whose input is gone. It is enough for a profile."""
NEMO_GYM_NAME = "rollouts.jsonl"
"""The name of a rollout file that NeMo Gym's health check expects in a folder."""


def write_nemo_gym_folder(source: Path, folder: Path) -> tuple[int, int, bool]:
    """Write the files into `folder`. Return the numbers of rollouts and of failed attempts, and whether the
    materialized inputs are those of the whole plan, with which NeMo Gym's collector can continue.

    Raises RunError if a rollout has no valid key, or one that another has, too.
    """
    paths, target = RolloutPaths(source), RolloutPaths(folder / NEMO_GYM_NAME)
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
    failures = _write_failed_attempts(paths, target.failures)
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


def _write_failed_attempts(paths: RolloutPaths, target: Path) -> int:
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

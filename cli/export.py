"""ng_export: writes rollouts as trajectories in ATIF, one file each, which Harbor's and other tools read."""

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

from rollyard.cli import nemo_gym_files
from rollyard.cli.options import Options, read_options, rollout_files, run_command
from rollyard.records import atif
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.foreign_files import SOURCE
from rollyard.records.jsonl import iter_jsonl, refuse_unless_torn
from rollyard.records.manifest import Manifest
from rollyard.records.rollout_file import RolloutPaths, Rollouts
from rollyard.records.rollout_keys import key_of
from rollyard.records.script import EXIT_DONE
from rollyard.records.terminal import pluralize
from rollyard.records.types import Json, mapping, whole_number

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
            rollouts, failures, is_whole = nemo_gym_files.write_folder(source, staging)
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

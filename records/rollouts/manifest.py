"""The manifest of a collection: written when it starts, compared when it is resumed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from rollyard.records.errors import OperatorError
from rollyard.records.io.json_differences import differences
from rollyard.records.rollouts.code_history import accepted, version_of
from rollyard.records.rollouts.manifest_records import Adoption, Manifest
from rollyard.records.run_types import ServerCode
from rollyard.records.types import Json


class ChangedParameters(OperatorError):
    """The output was collected with different parameters."""


def new_manifest(
    output: Path,
    identity: Json,
    versions: Json,
    code: dict[str, ServerCode],
    *,
    input_path: str = "",
    adopted: Adoption | None = None,
) -> Manifest:
    now = time.time()
    return Manifest(
        identity=identity,
        versions=versions,
        created=now,
        output=output.name,
        code=[version_of(code, now)],
        input=input_path,
        adopted=adopted,
    )


def resumed_manifest(
    path: Path, output: Path, identity: Json, code: Mapping[str, ServerCode], *, accept_changed_code: bool
) -> Manifest:
    """Return the manifest at `path` for resuming `output`. Raises OperatorError if it cannot be resumed."""
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise OperatorError(
            f"{output} exists, but its manifest {path.name} cannot be read "
            f"({type(error).__name__}): restore it, move it away to have the rollouts checked and adopted, choose "
            "another output, or rename the old files with --overwrite"
        ) from error
    return continued(manifest, output, identity, code, accept_changed_code=accept_changed_code)


def continued(
    manifest: Manifest, output: Path, identity: Json, code: Mapping[str, ServerCode], *, accept_changed_code: bool
) -> Manifest:
    """Return the manifest for continuing `output` with `code`. Raises OperatorError if it cannot be continued."""
    known = _with_added_tasks(_reached_settings_only(manifest.identity, identity), identity)
    if changed_parameters := list(differences(known, identity)):
        listed = "\n".join(
            f"  {name}: {_shown(old)} in the file, {_shown(new)} now" for name, old, new in changed_parameters
        )
        raise ChangedParameters(
            f"{output} was collected with different parameters:\n{listed}\n"
            "Repeat the original command to continue, choose another output, or rename the old files with "
            "--overwrite."
        )
    versions = accepted(manifest.code, version_of(code, time.time()), output, accept_changed_code)
    recorded = _with_added_tasks(manifest.identity, identity)
    return manifest.model_copy(update={"identity": recorded, "code": versions, "output": output.name})


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the contents of the manifest file."""
    return orjson.dumps(manifest.model_dump(), option=orjson.OPT_INDENT_2)


def check_not_shared(output: Path, manifest: Path, others: tuple[Path, ...]) -> None:
    """Raise OperatorError if `manifest` or one of `others` (sidecars of `output`) belongs to another collection."""
    try:
        owner = Manifest.model_validate_json(manifest.read_bytes()).output or f"{output.stem}.jsonl"
    except (OSError, ValidationError):
        owner = output.name
    if owner != output.name and output.with_name(owner).exists():
        raise OperatorError(
            f"{manifest.name} belongs to {owner}, and {output.name} would share it: outputs in the same folder "
            f"need names that differ in more than the extension. Choose another output, or move {owner} "
            "and its files elsewhere"
        )
    for path in others:
        if path.exists() and path.with_name(f"{path.stem}_manifest.json").exists():
            raise OperatorError(
                f"{path} is the output of another collection, and {output.name} needs that name for a sidecar file: "
                "choose another output"
            )


def _reached_settings_only(old: Json, new: Json) -> Json:
    """Return `old` without the settings of servers that the rows do not use, which older manifests contain."""
    settings, now = old.get("settings"), new.get("settings")
    if not isinstance(settings, dict) or not isinstance(now, dict):
        return old
    return {**old, "settings": {name: value for name, value in settings.items() if name in now}}


def _with_added_tasks(old: Json, new: Json) -> Json:
    """Return `old` with the tasks of `new`, if `new` only adds tasks after those of `old`, as training does."""
    before, now = old.get("task_rows"), new.get("task_rows")
    if not isinstance(before, list) or not isinstance(now, list) or now[: len(before)] != before:
        return old
    return {**old, "task_rows": now, "rows": new.get("rows")}


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)

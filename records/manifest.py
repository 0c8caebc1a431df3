"""The manifest of a collection: written when it starts, compared when it is resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field, ValidationError

from rollyard.records.errors import OperatorError
from rollyard.records.run_types import CodeVersion, ServerCode
from rollyard.records.types import Json, Record, differences

ROLLOUTS = "rollouts"
"""Key of the identity of a collection of other verdicts: the number of stored rollouts in its input."""
PLANNED = "planned"
"""Key beside it: whether the input's own collection planned `num_repeats` for each of `rows` tasks."""


class Adoption(Record):
    """Records that rollouts without a manifest were checked and adopted."""

    time: float
    rollouts: int
    new_keys: int
    """Number of rollouts whose `_ng_task_index` or `_ng_rollout_index` was missing or had to be changed."""
    original: str = ""
    """Name of the file before keys were written; empty if none had to be."""


class Manifest(Record):
    """The contents of `X_manifest.json`. Only a collection with the same `identity` can resume the output."""

    identity: Json
    versions: Json
    created: float
    output: str = ""
    """File name of the output; empty in older manifests, which did not record it."""
    code: list[CodeVersion] = Field(default_factory=list)
    """The servers' original code version, then the accepted changes; empty in manifests older than this field."""
    input: str = ""
    """Path of the input; empty if it is not one local file, and in older manifests."""
    adopted: Adoption | None = None
    """Set if the output existed before this manifest. Settings and code at that time are unknown."""


class ChangedParameters(OperatorError):
    """The output was collected with different parameters."""


class ChangedCode(OperatorError):
    """The output was collected with different server code."""


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
        code=[CodeVersion.of(code, now)],
        input=input_path,
        adopted=adopted,
    )


def resumed_manifest(
    path: Path,
    output: Path,
    identity: Json,
    code: Mapping[str, ServerCode],
    *,
    accept_changed_code: bool,
    note: Callable[[str], None] = lambda text: None,
) -> Manifest:
    """Return the manifest at `path` for resuming `output`. Raises OperatorError if it cannot be resumed.

    `note` receives what the user should know.
    """
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise OperatorError(
            f"{output} exists, but its manifest {path.name} cannot be read "
            f"({type(error).__name__}): restore it, move it away to have the rollouts checked and adopted, choose "
            "another output, or rename the old files with --overwrite"
        ) from error
    return continued(manifest, output, identity, code, accept_changed_code=accept_changed_code, note=note)


def continued(
    manifest: Manifest,
    output: Path,
    identity: Json,
    code: Mapping[str, ServerCode],
    *,
    accept_changed_code: bool,
    note: Callable[[str], None] = lambda text: None,
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
    versions = _code_versions(manifest.code, CodeVersion.of(code, time.time()), output, accept_changed_code, note)
    recorded = _with_added_tasks(manifest.identity, identity)
    return manifest.model_copy(update={"identity": recorded, "code": versions, "output": output.name})


def _code_versions(
    known: Sequence[CodeVersion], now: CodeVersion, output: Path, accept: bool, note: Callable[[str], None]
) -> list[CodeVersion]:
    """Return the code versions of a collection that resumes with `now`. Raises ChangedCode if it may not."""
    if not (known or now.servers) or any(not version.changes_to(now) for version in known):
        return list(known)
    if not known or any(code.revision is None for code in known[-1].servers.values()):
        note(f"the code with which an older Rollyard collected {output} is not compared with the present code")
        rows_have = {"digest": known[-1].digest, "since": known[-1].since} if known else {}
        return [*known[:-1], now.model_copy(update=rows_have)]
    if not accept:
        raise ChangedCode(
            f"{output} was collected with different server code: {'; '.join(known[-1].changes_to(now))}\n"
            "Restore the code and restart ng_run, choose another output, start over with --overwrite, or "
            "continue with --accept-changed-code, which marks the new rows."
        )
    return [*known, now]


def code_mark(versions: Sequence[CodeVersion], now: CodeVersion) -> str:
    """Return `_ng_code` of the rows collected with `now`; empty for the collection's first version."""
    if not versions or not versions[0].changes_to(now):
        return ""
    return next((version.digest for version in versions if not version.changes_to(now)), now.digest)


def encode_manifest(manifest: Manifest) -> bytes:
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

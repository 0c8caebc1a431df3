"""Compares the versions of the servers' code in a collection, and rejects changes that the user has not accepted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rollyard.records.errors import OperatorError
from rollyard.records.run_types import ServerCode
from rollyard.records.types import Record

_MAX_FILES = 6


class ChangedCode(OperatorError):
    """The output was collected with different server code."""


class CodeVersion(Record):
    """The code of the servers that a collection uses, as recorded when a command started or resumed it."""

    digest: str
    """Short digest. Rows collected with this version have it as `_ng_code`, unless this is the first version."""
    servers: dict[str, ServerCode]
    """Server name -> its code; a server that does not report its code is absent."""
    since: float
    """Time at which the collection first used this version, in Unix seconds."""


_VERSIONS = TypeAdapter(list[CodeVersion])


def reachable(agents: Iterable[str], references: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the agents and all servers that their settings refer to, directly or indirectly."""
    found: set[str] = set()
    waiting = list(agents)
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += references.get(name, ())
    return found


def version_of(servers: Mapping[str, ServerCode], since: float) -> CodeVersion:
    """Combine the code of the given servers into one version."""
    own = {name: sorted(_own(code, code.folder).files.items()) or code.digest for name, code in servers.items()}
    text = "\n".join(f"{name} {files}" for name, files in sorted(own.items()))
    return CodeVersion(digest=hashlib.sha256(text.encode()).hexdigest()[:12], servers=dict(servers), since=since)


def accepted(known: Sequence[CodeVersion], now: CodeVersion, output: Path, accept: bool) -> list[CodeVersion]:
    """Return the code versions of a collection that resumes with `now`. Raises ChangedCode if `now` is rejected."""
    if any(_is_same(version, now) for version in known) or not (known or now.servers):
        return list(known)
    if not accept:
        what = "; ".join(changes(known[-1], now)) if known else _UNRECORDED
        raise ChangedCode(
            f"{output} was collected with different server code: {what}\n"
            "Restore the code and restart ng_run, choose another output, start over with --overwrite, or "
            "continue with --accept-changed-code, which marks the new rows."
        )
    return [*known, now] if known else [CodeVersion(digest="unknown", servers={}, since=0.0), now]


_UNRECORDED = "its manifest was written by an older Rollyard, which did not record the code, so it may have changed"


def mark_of(versions: Sequence[CodeVersion], now: CodeVersion) -> str:
    """Return the value of `_ng_code` in rows collected with `now`; empty for the collection's first version."""
    return "" if not versions or _is_same(versions[0], now) else now.digest


def _is_same(old: CodeVersion, new: CodeVersion) -> bool:
    return old.digest == new.digest or (bool(old.servers) and not changes(old, new))


def _own(code: ServerCode, folder: str) -> ServerCode:
    """Return the code in the server's own folder: what makes it a different server, unlike what it imports."""
    files = {path: digest for path, digest in code.files.items() if folder and path.startswith(f"{folder}/")}
    return code.model_copy(update={"files": files, "packages": {}})


def changes(old: CodeVersion, new: CodeVersion) -> list[str]:
    """Return the differences between two versions, one line per server."""
    lines = []
    for name in sorted({*old.servers, *new.servers}):
        before, now = old.servers.get(name), new.servers.get(name)
        if before is None or now is None:
            lines.append(f"{name}: its code {'was not reported before' if before is None else 'is no longer reported'}")
        elif before.digest != now.digest and (found := _own_difference(before, now)):
            lines.append(f"{name}: {found}")
    return lines


def notes_of(recorded: Any) -> list[str]:
    """Return notes for a reward profile if the rollouts were collected with several versions of the code."""
    try:
        versions = _VERSIONS.validate_python(recorded)
    except ValidationError:
        return []
    if len(versions) < 2:
        return []
    summary = "; ".join(f"{new.digest}: {', '.join(changes(old, new))}" for old, new in pairwise(versions))
    return [
        f"The rollouts are from {len(versions)} versions of the servers' code (see _ng_code in the rows): {summary}."
    ]


def _own_difference(old: ServerCode, new: ServerCode) -> str:
    """Return what differs in the server's own folder, or, if a record does not say which that is, in all files."""
    folder = old.folder or new.folder
    before, now = _own(old, folder), _own(new, folder)
    if not (before.files and now.files):
        return difference(old, new)
    if before.files != now.files:
        return difference(before, now)
    is_explained = (old.files, old.packages) != (new.files, new.packages)
    return "" if is_explained else difference(old, new)


def difference(old: ServerCode, new: ServerCode) -> str:
    """Return the files and packages that differ, as one line."""
    added, removed = new.files.keys() - old.files.keys(), old.files.keys() - new.files.keys()
    changed = {path for path in old.files.keys() & new.files.keys() if old.files[path] != new.files[path]}
    parts = [
        f"{what} {_join_paths(paths)}"
        for what, paths in (("changed", changed), ("added", added), ("removed", removed))
        if paths
    ]
    parts += [
        f"{name} {old.packages.get(name, 'absent')} -> {new.packages.get(name, 'absent')}"
        for name in sorted({*old.packages, *new.packages})
        if old.packages.get(name) != new.packages.get(name)
    ]
    return ", ".join(parts) or "changed"


def _join_paths(paths: set[str]) -> str:
    shown = sorted(paths)[:_MAX_FILES]
    more = len(paths) - len(shown)
    return " ".join(shown) + (f" and {more} more" if more else "")

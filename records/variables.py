"""Environment variables whose value may be in a file, as secrets of Docker and Kubernetes are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollyard.records.errors import OperatorError


def variable(environ: Mapping[str, str], name: str) -> str | None:
    """Return the variable `name`; if it is not set, the line in the file that the variable `name`_FILE names.

    None if neither is set. Raises OperatorError if the file cannot be read or does not contain exactly one line.
    """
    if value := environ.get(name):
        return value
    if not (path := environ.get(f"{name}_FILE")):
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        found = f"contains {len(lines)} lines" if len(lines) != 1 else "contains an empty line"
    except OSError as error:
        lines, found = [], f"cannot be read: {error.strerror}"
    except ValueError:
        lines, found = [], "is not UTF-8"
    if len(lines) != 1 or not lines[0].strip():
        raise OperatorError(f"{name}_FILE={path} {found}; expected a file with the value of {name} on one line")
    return lines[0].strip()

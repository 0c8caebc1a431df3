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
    expected = f"expected a file with the value of {name} on one line"
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise OperatorError(f"{name}_FILE={path} cannot be read: {error.strerror}; {expected}") from error
    except ValueError as error:
        raise OperatorError(f"{name}_FILE={path} does not contain UTF-8; {expected}") from error
    if len(lines) != 1 or not lines[0].strip():
        raise OperatorError(f"{name}_FILE={path} contains {len(lines)} lines; {expected}")
    return lines[0].strip()

"""The JSON schema of `profile.json`. Run as a module, it writes the schema of the current version."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from rollyard.analysis.report.document import SCHEMA_VERSION, Report


def schema() -> dict[str, Any]:
    """Return the schema without descriptions, which may be reworded at any time."""
    found = _without_texts(Report.model_json_schema(mode="serialization"))
    assert isinstance(found, dict)
    return found


def committed(version: int = SCHEMA_VERSION) -> bytes:
    """Return the published schema of a version."""
    return (files("rollyard.analysis.report") / "schemas" / f"profile-{version}.json").read_bytes()


def _without_texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_texts(one) for one in value]
    if isinstance(value, dict):
        return {
            key: _without_texts(one)
            for key, one in value.items()
            if not (key in ("description", "title") and isinstance(one, str))
        }
    return value


if __name__ == "__main__":
    path = Path(str(files("rollyard.analysis.report"))) / "schemas" / f"profile-{SCHEMA_VERSION}.json"
    path.write_bytes(orjson.dumps(schema(), option=orjson.OPT_INDENT_2) + b"\n")

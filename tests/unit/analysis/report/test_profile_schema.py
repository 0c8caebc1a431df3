"""profile.json has a published schema that only gains fields while its version stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from rollyard.analysis.report.document import SCHEMA_VERSION, Report
from rollyard.analysis.report.profile_schema import committed, schema
from tests.support.rollout_files import load_run, random_rows


def test_the_schema_is_the_published_one_of_its_version() -> None:
    assert schema() == orjson.loads(committed()), (
        "profile.json has changed. If a field was removed, renamed or got another type, increment SCHEMA_VERSION; "
        "then run python -m rollyard.analysis.report.profile_schema"
    )


def test_fields_of_the_first_version_keep_their_names() -> None:
    """Guards against a published file that was overwritten: these names are in other people's programs."""
    names = set(_definition(orjson.loads(committed(1)), "Profile"))
    assert {"name", "path", "coverage", "solved", "rewards", "tool_calls", "tasks", "tokens", "failures"} <= names


def test_a_report_states_the_version_of_its_schema(tmp_path: Path) -> None:
    report = Report(version="1", runs=[load_run(tmp_path, random_rows(3, 2)).profile], differences=[])
    assert report.model_dump()["schema_version"] == SCHEMA_VERSION


def _definition(found: dict[str, Any], name: str) -> dict[str, Any]:
    properties = found["$defs"][name]["properties"]
    assert isinstance(properties, dict)
    return properties

"""profile.json has a published schema that only gains fields while its version stays the same."""

from __future__ import annotations

from pathlib import Path

import orjson

from rollyard.analysis.report.document import SCHEMA_VERSION, Report
from rollyard.analysis.report.profile_schema import committed, schema
from tests.support.rollout_files import load_run, random_rows


def test_the_schema_is_the_published_one_of_its_version() -> None:
    assert schema() == orjson.loads(committed()), (
        "profile.json has changed. If a field was removed, renamed or got another type, increment SCHEMA_VERSION; "
        "then run python -m rollyard.analysis.report.profile_schema"
    )


def test_a_report_states_the_version_of_its_schema(tmp_path: Path) -> None:
    report = Report(version="1", runs=[load_run(tmp_path, random_rows(3, 2)).profile], differences=[])
    assert report.model_dump()["schema_version"] == SCHEMA_VERSION

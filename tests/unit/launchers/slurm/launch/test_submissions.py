from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rollyard.launchers.slurm.launch.submissions import Submissions
from rollyard.records.errors import RunError


def filled(path: Path) -> Submissions:
    submissions = Submissions(path)
    submissions.announce("a")
    submissions.record("a", "101", path.parent / "a")
    submissions.announce("b")
    return submissions


def test_submitted_jobs_and_open_submissions_are_read_back(tmp_path: Path) -> None:
    filled(tmp_path / "submitted.jsonl")
    found = Submissions(tmp_path / "submitted.jsonl")
    assert {name: job.job_id for name, job in found.jobs.items()} == {"a": "101"}
    assert found.intents == {"b"}


def test_after_a_kill_at_any_byte_the_manifest_can_be_read_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "submitted.jsonl"
    filled(path)
    data = path.read_bytes()
    line = data.index(b"\n")
    for length in sorted(
        {*range(0, len(data) + 1, 7), *range(line - 2, line + 3), *range(len(data) - 2, len(data) + 1)}
    ):
        path.write_bytes(data[:length])
        before = Submissions(path)
        before.record("c", "103", tmp_path)
        after = Submissions(path)
        assert after.jobs.keys() == {*before.jobs, "c"}
        assert after.intents == before.intents
        assert ("a" in after.jobs) == (length >= data.index(b"\n", data.index(b"job_id")))


def test_an_invalid_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "submitted.jsonl"
    path.write_bytes(b'{"name": "a"\n{"name":"b","submitting":1.0}\n')
    with pytest.raises(RunError, match="line 1"):
        Submissions(path)
    path.write_bytes(b'{"name": "a"}\n')
    with pytest.raises(RunError, match="line 1 "):
        Submissions(path)


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "submitted.jsonl"
    submissions = Submissions(path)
    path.symlink_to("/dev/full")
    with pytest.raises(RunError, match=os.strerror(errno.ENOSPC)):
        submissions.announce("a")

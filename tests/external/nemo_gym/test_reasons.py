"""Why an environment does not play, from the end of what its program printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.external.nemo_gym.compatibility.reasons import reason


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("ConnectionError: Couldn't reach 'a/b' on the Hub (OfflineModeIsEnabled)", "download: dataset a/b"),
        ("'git', 'clone', '--depth=1', 'https://a.org/b', '/x'] returned 128", "download: clones https://a.org/b"),
        ("api_key\n  Input should be a valid string [type=string_type]", "external service: needs api_key"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'docker'", "Docker"),
    ],
)
def test_a_known_cause_is_named(printed: str, expected: str, tmp_path: Path) -> None:
    assert reason(printed, tmp_path) == expected


def test_an_unknown_cause_is_shown_as_unexplained_with_its_last_line(tmp_path: Path) -> None:
    assert reason("Traceback\nZeroDivisionError: by zero\n\n", tmp_path) == "unexplained: ZeroDivisionError: by zero"


def test_a_missing_package_is_explained_by_the_requirements_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("my-tools @ git+https://example.org/my-tools\n")
    assert reason("No module named 'my_tools.a'", tmp_path) == "package my_tools: installed from a Git repository"
    assert reason("No module named 'other'", tmp_path) == "package other: not on the package index"


def test_of_several_causes_in_a_chain_of_exceptions_the_last_is_named(tmp_path: Path) -> None:
    printed = "raise ConnectionError(f\"Couldn't reach '{path}' on the Hub\")\nCouldn't reach 'a/b' on the Hub (x)"
    assert reason(printed, tmp_path) == "download: dataset a/b"

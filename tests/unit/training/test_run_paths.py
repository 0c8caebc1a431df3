"""The name of a version says how many updates the weights have had."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.errors import RunError
from rollyard.training.run_folder import VersionNames, updates_of


@pytest.mark.parametrize("version", ["step_000012", "step_000012-r1", "step_000012.1", "step_000012-a1b2-r3.2"])
def test_later_starts_and_repaired_weights_count_the_same_updates(version: str) -> None:
    assert updates_of(version) == 12


def test_a_second_start_gives_no_version_the_name_of_an_earlier_one(tmp_path: Path) -> None:
    first = VersionNames(tmp_path / "weights").name(3)
    (tmp_path / "weights" / first).mkdir(parents=True)
    second = VersionNames(tmp_path / "weights").name(3)
    assert second != first
    assert updates_of(second) == 3


@pytest.mark.parametrize("version", ["0", "sft", "step_2", "step_000002x"])
def test_a_version_of_something_else_is_an_error(version: str) -> None:
    with pytest.raises(RunError, match=f"version '{version}'"):
        updates_of(version)

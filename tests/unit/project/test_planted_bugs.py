"""The bugs that the simulator has to find can still be planted. `make sim-bugs` looks for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.modules import ROOT
from tests.sim.planted.bugs import Bug, Outdated, all_bugs


@pytest.mark.parametrize("bug", all_bugs(), ids=lambda bug: bug.name)
def test_a_planted_bug_applies_to_the_product_and_compiles(bug: Bug, tmp_path: Path) -> None:
    bug.plant(tmp_path)
    assert bug.files
    for file in bug.files:
        content = (tmp_path / file).read_text()
        compile(content, file, "exec")
        assert content != (ROOT / file).read_text()


def test_a_patch_that_does_not_apply_any_more_is_named(tmp_path: Path) -> None:
    with pytest.raises(Outdated, match=r"gone\.patch does not apply"):
        replace(all_bugs()[0], name="gone").plant(tmp_path)


def test_a_patch_that_does_not_say_what_it_breaks_is_named(tmp_path: Path) -> None:
    (tmp_path / "00_nothing.patch").write_text("--- a/x\n+++ b/x\n")
    with pytest.raises(Outdated, match=r"00_nothing\.patch begins with"):
        Bug.read(tmp_path / "00_nothing.patch")

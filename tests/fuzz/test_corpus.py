"""The kept inputs of `make fuzz`: a seed of each kind, and what once broke something, none of which does now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, corpus


@pytest.mark.parametrize(
    ("target", "file"),
    [pytest.param(name, file, id=f"{name}/{file.name}") for name in TARGETS for file in corpus(name)],
)
def test_no_kept_input_breaks_its_target(target: str, file: Path) -> None:
    TARGETS[target](file.read_bytes())

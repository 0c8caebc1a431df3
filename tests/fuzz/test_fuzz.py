"""The part of `make fuzz` for each change: the inputs that are kept, and as many histories as take a few seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fuzz.histories import Histories
from tests.fuzz.targets import TARGETS, corpus


@pytest.mark.parametrize(
    ("target", "file"),
    [pytest.param(name, file, id=f"{name}/{file.name}") for name in TARGETS for file in corpus(name)],
)
def test_no_kept_input_breaks_its_target(target: str, file: Path) -> None:
    TARGETS[target](file.read_bytes())


def test_no_history_loses_or_repeats_a_rollout() -> None:
    run_state_machine_as_test(Histories, settings=settings(max_examples=40, stateful_step_count=30, derandomize=True))

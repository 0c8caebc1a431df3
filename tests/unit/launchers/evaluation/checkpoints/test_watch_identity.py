"""A table of checkpoints holds the evaluations of one watch."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.launchers.evaluation.checkpoints.watch_identity import (
    check_watch_identity,
    identity_of_watch,
    write_watch_identity,
)
from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json


def identity(address: str = "/checkpoints", **keys: object) -> Json:
    return identity_of_watch(
        EvalConfig.model_validate({"output_dir": "out", "environments": ["gsm8k"], **keys}), address
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (identity("/others"), "watch: '/checkpoints' .*'/others'"),
        (identity(num_repeats=4), "num_repeats: 1 .*4"),
        (identity(vllm={"dtype": "float32"}), "vllm.dtype: 'auto' .*'float32'"),
    ],
)
def test_a_watch_of_other_checkpoints_or_parameters_is_refused(tmp_path: Path, changed: Json, message: str) -> None:
    write_watch_identity(tmp_path, identity())
    with pytest.raises(OperatorError, match=message):
        check_watch_identity(tmp_path, changed)


def test_how_fast_a_watch_evaluates_may_change(tmp_path: Path) -> None:
    check_watch_identity(tmp_path, identity())
    write_watch_identity(tmp_path, identity())
    check_watch_identity(tmp_path, identity(num_samples_in_parallel=4, max_attempts=3, vllm={"port": 8000}))

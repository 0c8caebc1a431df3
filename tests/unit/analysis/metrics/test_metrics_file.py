"""Curves are read from metrics.jsonl while it grows, is cut off, and is rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.analysis.metrics.training_steps import MetricsFile
from rollyard.training.metrics_log import MetricsLog

FIRST = b'{"step": 1, "train/reward": 0.5}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def rewards(file: MetricsFile) -> list[tuple[int, float]]:
    file.advance()
    curve = file.curve("train/reward")
    return [] if curve is None else list(zip(curve.steps, curve.values, strict=True))


def test_a_growing_file_is_followed_line_by_line(path: Path) -> None:
    log, file = MetricsLog(path), MetricsFile(path)
    assert not file.advance()
    log.write(1, {"train/reward": 0.5})
    assert file.advance() and not file.advance() and file.updated is not None
    for part, found in ((b'{"step": 2, "trai', [(1, 0.5)]), (b'n/reward": 1.0}\n', [(1, 0.5), (2, 1.0)])):
        with path.open("ab") as out:
            out.write(part)
        assert rewards(file) == found


def test_the_steps_of_a_resumed_run_replace_those_of_before(path: Path) -> None:
    log, file = MetricsLog(path), MetricsFile(path)
    for step in range(1, 6):
        log.write(step, {"train/reward": 0.0})
    file.advance()
    log.drop_after(2)
    log.write(3, {"train/reward": 1.0})
    assert rewards(file) == [(1, 0.0), (2, 0.0), (3, 1.0)]


def test_a_rewritten_file_is_read_again_and_one_that_disappears_leaves_nothing(path: Path) -> None:
    file = MetricsFile(path)
    path.write_bytes(FIRST)
    file.advance()
    path.write_bytes(b'{"step": 7, "train/reward": 0.25, "train/loss": 1}\n{"step": 8, "train/reward": 1}\n')
    assert rewards(file) == [(7, 0.25), (8, 1.0)]
    path.unlink()
    assert file.advance() and not file.steps and not file.advance()


def test_lines_of_one_step_belong_together(path: Path) -> None:
    log, file = MetricsLog(path), MetricsFile(path)
    log.write(10, {"train/reward": 0.5, "train/loss": 1.0})
    log.write(10, {"eval/success_rate": 0.25, "train/loss": 2.0})
    file.advance()
    assert file.at(10) == {"train/reward": 0.5, "train/loss": 2.0, "eval/success_rate": 0.25}


STEPS = [("-1", "1"), ('"2"', "1"), ("2.5", "1"), ("2", "null"), ("2", "true"), ("2", "NaN"), ("2", '"1"')]


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"nonsense", b"[1]", b"{}", b"\xff\xfe"),
        *(f'{{"step": {step}, "train/reward": {value}}}'.encode() for step, value in STEPS),
    ],
)
def test_lines_that_are_no_metrics_are_skipped(path: Path, line: bytes) -> None:
    path.write_bytes(FIRST + line + b'\n{"step": 3, "train/reward": 1}\n')
    assert rewards(MetricsFile(path)) == [(1, 0.5), (3, 1.0)]

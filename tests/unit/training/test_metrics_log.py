"""metrics.jsonl survives crashes, and a logger that fails does not end training."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import OperatorError, RunError
from rollyard.training.metrics_log import (
    MetricsLog,
    PrintSink,
    RetriedSink,
    RichSink,
    logger_names,
    sinks_of,
)


class Recorder:
    """A sink that keeps what it gets, and fails while `down` is positive."""

    def __init__(self, down: int = 0) -> None:
        self.got: list[tuple[int, dict[str, float]]] = []
        self.down = down
        self.tried = 0
        self.closed: bool | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.tried += 1
        if self.down:
            self.down -= 1
            raise ConnectionError("W&B is down")
        self.got.append((step, dict(metrics)))

    def close(self, *, failed: bool) -> None:
        self.closed = failed


class Tracker(Recorder):
    def log(self, metrics: Mapping[str, float], step: int) -> None:  # type: ignore[override]
        super().log(step, metrics)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def lines(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def steps(path: Path) -> list[int]:
    return [line["step"] for line in lines(path)]


def test_each_call_appends_a_line_and_reaches_every_sink_without_what_is_not_a_number(path: Path) -> None:
    sinks = [Recorder(), Recorder()]
    metrics_log = MetricsLog(path, sinks)
    metrics_log.write(1, {"train/reward": 0.5})
    metrics_log.write(2, {"train/loss": math.nan, "train/ratio_max": math.inf, "train/skipped_groups": 3})
    metrics_log.close(failed=True)
    first, second = lines(path)
    assert list(first) == ["step", "time", "train/reward"]
    assert second | {"time": 0} == {
        "step": 2,
        "time": 0,
        "train/loss": None,
        "train/ratio_max": None,
        "train/skipped_groups": 3,
    }
    for sink in sinks:
        assert sink.got == [(1, {"train/reward": 0.5}), (2, {"train/skipped_groups": 3})] and sink.closed


def test_a_resumed_run_drops_the_steps_after_its_checkpoint(path: Path) -> None:
    metrics_log = MetricsLog(path)
    metrics_log.drop_after(0)
    for step in range(1, 6):
        metrics_log.write(step, {"train/reward": float(step)})
    metrics_log.drop_after(3)
    metrics_log.write(4, {"train/reward": 4.0})
    assert steps(path) == [1, 2, 3, 4]


@pytest.mark.parametrize("resumes", [False, True])
def test_an_unfinished_last_line_is_never_joined_with_the_next(path: Path, resumes: bool) -> None:
    metrics_log = MetricsLog(path)
    metrics_log.write(1, {})
    with path.open("ab") as file:
        file.write(b'{"step": 2, "ti')
    if resumes:
        metrics_log.drop_after(1)
    metrics_log.write(2, {})
    assert steps(path) == [1, 2]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    with pytest.raises(RunError, match=r"cannot write .*metrics\.jsonl"):
        MetricsLog(tmp_path / "run" / "metrics.jsonl").write(1, {})


def test_a_sink_that_fails_is_dropped_with_one_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken, working = Recorder(down=9), Recorder()
    metrics_log = MetricsLog(path, [broken, working])
    for step in (1, 2, 3):
        metrics_log.write(step, {})
    assert (broken.tried, len(working.got), len(caplog.records), steps(path)) == (1, 3, 1, [1, 2, 3])


def test_a_tracker_that_is_down_for_a_while_gets_everything_afterwards_in_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Tracker()
    sink = RetriedSink("W&B", lambda: service)
    for step in range(1, 12):
        service.down = int(step in (3, 5))
        sink.log(step, {"train/reward": float(step)})
    sink.close(failed=False)
    assert [step for step, _ in service.got] == list(range(1, 12)) and service.closed is False
    assert len(caplog.records) == 1


def test_what_a_tracker_never_got_is_named_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    sink = RetriedSink("MLflow", lambda: Tracker(down=99))
    sink.log(7, {})
    sink.close(failed=False)
    assert {"MLflow", "7"} <= set(caplog.records[-1].getMessage().split())


METRICS = {
    "train/reward": 0.4123,
    "train/reward/format": 0.1,
    "train/correct_rate": 0.382,
    "train/total_completion_tokens": 900,
    "train/failed_rollouts": 0,
    "eval/failed_rollouts": 0,
    "train/learning_rate": 1e-6,
    "perf/step_s": 12.3,
    "eval/success_rate": 0.5,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def made(*loggers: str, stream: io.StringIO | None = None) -> list[Any]:
    run: dict[str, Any] = {"name": "run", "config": {}, "run_id": "1", "trackers": {}, "max_steps": 20}
    return sinks_of(loggers, **run, stream=stream or io.StringIO())


@pytest.mark.parametrize(
    ("given", "names"),
    [
        *[(both, ("rich", "print")) for both in ("rich,print", "rich+print", ("rich", "print"), "rich,rich,print")],
        *[(nothing, ()) for nothing in ("none", "", ())],
    ],
)
def test_lists_are_separated_by_commas_or_plus_signs(given: str | tuple[str, ...], names: tuple[str, ...]) -> None:
    assert logger_names(given) == names


@pytest.mark.parametrize(("given", "message"), [("wandbb", "'wandbb', .*'wandb'"), ("none,rich", "cannot be combined")])
def test_an_unknown_logger_is_refused(given: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        logger_names(given)


def test_without_a_terminal_rich_becomes_print() -> None:
    assert [type(sink) for sink in made("rich")] == [PrintSink]
    assert [type(sink) for sink in made("rich", "print")] == [PrintSink]
    assert [type(sink) for sink in made("rich", stream=Terminal())] == [RichSink]


def test_a_tracker_whose_package_is_missing_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(OperatorError, match="package wandb"):
        made("wandb")


def test_print_writes_a_line_per_step() -> None:
    stream = io.StringIO()
    [sink] = made("print", stream=stream)
    sink.log(3, METRICS)
    sink.log(4, {"eval/failed_rollouts": 2})
    assert stream.getvalue().splitlines() == [
        "step 3/20  reward 0.4123  correct_rate 38.2%  total_completion_tokens 900  step_s 12 s  "
        "eval/success_rate 50.0%",
        "step 4/20  eval/failed_rollouts 2",
    ]


def test_rich_shows_every_metric_but_failures_that_did_not_occur() -> None:
    stream = Terminal()
    [sink] = made("rich", stream=stream)
    sink.log(3, METRICS)
    assert all(word in stream.getvalue() for word in ("step 3/20", "reward/format", "1e-06", "50.0%"))
    assert "failed_rollouts" not in stream.getvalue()
    sink.log(4, {"train/failed_rollouts": 2})
    assert "failed_rollouts" in stream.getvalue()


def test_names_from_environments_cannot_control_the_terminal() -> None:
    stream = Terminal()
    [sink] = made("rich", stream=stream)
    sink.log(1, {"train/reward/\x1b]0;owned\x07[red]": 1.0})
    assert "\x1b]0" not in stream.getvalue() and "[red]" in stream.getvalue()

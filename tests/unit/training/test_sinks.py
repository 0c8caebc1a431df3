"""Loggers by name, and what they print."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.training.metrics_log import PrintSink, RichSink, logger_names, sinks_of

METRICS = {
    "train/reward": 0.4123,
    "train/reward/format": 0.1,
    "train/correct_rate": 0.382,
    "train/total_completion_tokens": 900,
    "train/failed_rollouts": 0,
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


@pytest.mark.parametrize("given", ["rich,print", "rich+print", ["rich", "print"], ["rich, print"], "rich,rich,print"])
def test_lists_are_separated_by_commas_or_plus_signs(given: str | list[str]) -> None:
    assert logger_names(given) == ("rich", "print")


@pytest.mark.parametrize("given", ["none", "", []])
def test_none_means_no_logger(given: str | list[str]) -> None:
    assert logger_names(given) == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("wandbb", "'wandbb', .*'wandb'.*rich, print, wandb, mlflow"),
        ("none,rich", "none cannot be combined"),
    ],
)
def test_an_unknown_logger_is_refused_with_the_known_ones(given: str, message: str) -> None:
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
    sink.log(4, {"eval/success_rate": 0.25})
    assert stream.getvalue().splitlines() == [
        "step 3/20  reward 0.4123  correct_rate 38.2%  total_completion_tokens 900  step_s 12 s  "
        "eval/success_rate 50.0%",
        "step 4/20  eval/success_rate 25.0%",
    ]


def test_evaluations_do_not_show_failures_that_did_not_occur() -> None:
    stream = io.StringIO()
    [sink] = made("print", stream=stream)
    sink.log(3, {"eval/failed_rollouts": 0, "eval/reward": 0.25})
    sink.log(4, {"eval/failed_rollouts": 2, "eval/reward": 0.25})
    assert stream.getvalue().splitlines() == [
        "step 3/20  eval/reward 0.25",
        "step 4/20  eval/failed_rollouts 2  eval/reward 0.25",
    ]


def test_rich_shows_every_metric_in_groups_and_the_change_of_the_reward() -> None:
    stream = Terminal()
    [sink] = made("rich", stream=stream)
    sink.log(3, METRICS)
    sink.log(4, METRICS | {"train/reward": 0.5, "train/failed_rollouts": 2})
    text = stream.getvalue()
    first, second = text[: text.index("step 4")], text[text.index("step 4") :]
    assert all(word in first for word in ("step 3/20", "reward/format", "1e-06", "50.0%", "evaluation"))
    assert "failed_rollouts" not in first and "failed_rollouts" in second and "+0.0877 reward" in second


def test_names_from_environments_cannot_control_the_terminal() -> None:
    stream = Terminal()
    [sink] = made("rich", stream=stream)
    sink.log(1, {"train/reward/\x1b]0;owned\x07[red]": 1.0})
    assert "\x1b]0" not in stream.getvalue() and "[red]" in stream.getvalue()

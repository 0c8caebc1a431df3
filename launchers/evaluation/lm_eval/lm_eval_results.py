"""Reads lm_eval's results files and formats the scores as a table."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.launchers.evaluation.lm_eval.benchmarks import Baseline, Benchmark
from rollyard.records.errors import RunError
from rollyard.records.io.json_values import number
from rollyard.records.scores.confidence_intervals import share_bounds
from rollyard.records.types import Record

COLUMNS = (
    "step",
    "checkpoint",
    "task",
    "num_fewshot",
    "metric",
    "value",
    "stderr",
    "samples",
    "baseline",
    "difference",
)


class Score(Record):
    """The value of one metric for one task and one checkpoint."""

    step: int | None
    """Training step, if the checkpoint's name contains it."""
    checkpoint: str
    task: str
    num_fewshot: int | None
    metric: str
    """Name of the metric in lm_eval, such as `pass@1`. If the task has several filters, the filter's name is appended,
    as in `exact_match/strict-match`."""
    value: float
    stderr: float | None
    samples: int | None
    baseline: float | None = None

    @property
    def difference(self) -> float | None:
        """The difference from the baseline; None if there is no baseline."""
        return None if self.baseline is None else self.value - self.baseline


def newest(folder: Path) -> Path | None:
    """Return the latest lm_eval results file under `folder`; None if there is none."""
    # The file names end with a timestamp.
    return max(folder.rglob("results_*.json"), key=lambda path: path.name, default=None)


def read_scores(
    path: Path, benchmark: Benchmark, checkpoint: str, step: int | None, baselines: Iterable[Baseline] = ()
) -> list[Score]:
    """Return every numeric metric in a results file. Raises RunError if the file is invalid or has no metrics."""
    reference: dict[tuple[str, int | None, str], float] = {
        (one.task, one.num_fewshot, one.metric): one.value for one in baselines
    }
    try:
        content = json.loads(path.read_bytes())  # orjson rejects the NaN that lm_eval may write
        results = {**content["results"], **(content.get("groups") or {})}
        shots, samples = content.get("n-shot") or {}, content.get("n-samples") or {}
        scores = [
            Score(
                step=step,
                checkpoint=checkpoint,
                task=task,
                num_fewshot=(used := shots[task] if isinstance(shots.get(task), int) else benchmark.num_fewshot),
                metric=metric,
                value=value,
                stderr=error,
                samples=(samples.get(task) or {}).get("effective"),
                baseline=reference.get((task, used, metric)),
            )
            for task, metrics in results.items()
            for metric, value, error in _metrics(metrics)
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is not a results file of lm_eval: {type(error).__name__}: {error}") from error
    if not scores:
        raise RunError(f"{path} has no numeric metric for {benchmark.task}")
    return scores


def _metrics(found: dict[str, Any]) -> Iterable[tuple[str, float, float | None]]:
    """Yield the name, value and standard error of each metric.

    lm_eval's keys are `metric,filter` and `metric_stderr,filter`, and before version 0.4 `metric` and `metric_stderr`.
    """
    new = any("," in key for key in found)
    keys = [key for key in found if ("," in key) == new and not key.partition(",")[0].endswith("_stderr")]
    counts = Counter(key.partition(",")[0] for key in keys)
    for key in keys:
        name, comma, chosen = key.partition(",")
        shown = name.replace("pass_at_", "pass@")
        if counts[name] > 1:
            shown = f"{shown}/{chosen}"
        if (value := number(found[key], None)) is not None:
            yield shown, value, number(found.get(f"{name}_stderr{comma}{chosen}"), None)


def as_csv(scores: Sequence[Score]) -> str:
    """Return the table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for score in scores:
        writer.writerow(["" if (value := getattr(score, name)) is None else value for name in COLUMNS])
    return text.getvalue()


def as_markdown(scores: Sequence[Score]) -> str:
    """Return the table as Markdown.

    Metrics from 0 to 1 are shown in percent, with differences in percentage points. Other metrics are not scaled.
    """
    lines = ["| step | checkpoint | task | examples | metric | value | baseline | difference |", "|" + "---|" * 8]
    others = {(score.task, score.metric) for score in scores if not 0 <= score.value <= 1}
    for score in scores:
        factor = 1 if (score.task, score.metric) in others else 100
        error = _error(score, factor)
        base = "" if score.baseline is None else f"{factor * score.baseline:.2f}"
        difference = "" if score.difference is None else f"{factor * score.difference:+.2f}"
        shots = "" if score.num_fewshot is None else score.num_fewshot
        step = "" if score.step is None else score.step
        value = f"{factor * score.value:.2f}{error}"
        cells = (step, score.checkpoint, score.task, shots, score.metric, value, base, difference)
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _error(score: Score, factor: int) -> str:
    """Format lm_eval's standard error as ` ± 1.00`. It is computed over examples, not over answers.

    For scores of 0% and 100% lm_eval's error is 0, so the 95% confidence bound is shown instead.
    """
    if score.stderr is None:
        return ""
    if (
        score.stderr == 0
        and score.value in (0, 1)
        and score.samples
        and (found := share_bounds(score.value, score.samples))
    ):
        return f" (at {'most' if score.value == 0 else 'least'} {factor * found[1 - int(score.value)]:.2f})"
    return f" ± {factor * score.stderr:.2f}"


def as_json(scores: Sequence[Score]) -> bytes:
    """Return the table as JSON with all fields."""
    rows = [{**score.model_dump(), "difference": score.difference} for score in scores]
    return orjson.dumps(rows, option=orjson.OPT_INDENT_2) + b"\n"

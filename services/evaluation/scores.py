"""scores: a results file of lm_eval -> rows of one table, whatever the task calls its metrics."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from services.errors import RunError
from services.evaluation.benchmarks import Baseline, Benchmark
from services.types import Record

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
    """One metric of one task."""

    step: int | None
    """Of the training, where the checkpoint's name has it."""
    checkpoint: str
    task: str
    num_fewshot: int | None
    metric: str
    """`exact_match/strict-match`, `pass@1`: lm_eval's name, with its filter only where the task has several."""
    value: float
    stderr: float | None
    samples: int | None
    baseline: float | None = None

    @property
    def difference(self) -> float | None:
        """From the baseline."""
        return None if self.baseline is None else self.value - self.baseline


def newest(folder: Path) -> Path:
    """The results file that lm_eval wrote last below `folder`. Raises RunError when it wrote none."""
    # Their names end with the time.
    found = sorted(folder.rglob("results_*.json"), key=lambda path: path.name)
    if not found:
        raise RunError(f"lm_eval ended well but wrote no results_*.json below {folder}")
    return found[-1]


def read_scores(
    path: Path, benchmark: Benchmark, checkpoint: str, step: int | None, baselines: Iterable[Baseline] = ()
) -> list[Score]:
    """Every metric in a results file. Raises RunError when it is none."""
    try:
        written = orjson.loads(path.read_bytes())
        results, samples = written["results"], written.get("n-samples") or {}
        known = {(one.title, one.metric): one.value for one in baselines}
        return [
            Score(
                step=step,
                checkpoint=checkpoint,
                task=task,
                num_fewshot=benchmark.num_fewshot,
                metric=metric,
                value=float(value),
                stderr=error,
                samples=(samples.get(task) or {}).get("effective"),
                baseline=known.get((_title(benchmark, task), metric)),
            )
            for task, metrics in results.items()
            for metric, value, error in _metrics(metrics)
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is no results file of lm_eval: {type(error).__name__}: {error}") from error


def _title(benchmark: Benchmark, task: str) -> str:
    return benchmark.model_copy(update={"task": task}).title


def _metrics(found: dict[str, Any]) -> Iterable[tuple[str, float, float | None]]:
    """lm_eval's keys are `metric,filter` and `metric_stderr,filter`."""
    keys = [key for key in found if "," in key and "_stderr," not in key]
    times = Counter(key.partition(",")[0] for key in keys)
    for key in keys:
        name, _, chosen = key.partition(",")
        shown = name.replace("pass_at_", "pass@")
        if times[name] > 1:
            shown = f"{shown}/{chosen}"
        if isinstance(value := found[key], int | float) and not isinstance(value, bool):
            error = found.get(f"{name}_stderr,{chosen}")
            yield shown, value, error if isinstance(error, int | float) else None


def as_csv(scores: Sequence[Score]) -> str:
    """The table for programs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for score in scores:
        writer.writerow(["" if (value := getattr(score, name)) is None else value for name in COLUMNS])
    return text.getvalue()


def as_markdown(scores: Sequence[Score]) -> str:
    """The table for people: values in percent, differences in points."""
    lines = ["| step | checkpoint | task | examples | metric | value | baseline | difference |", "|" + "---|" * 8]
    for score in scores:
        error = "" if score.stderr is None else f" ± {100 * score.stderr:.2f}"
        base = "" if score.baseline is None else f"{100 * score.baseline:.2f}"
        difference = "" if score.difference is None else f"{100 * score.difference:+.2f}"
        shots = "" if score.num_fewshot is None else score.num_fewshot
        step = "" if score.step is None else score.step
        cells = (step, score.checkpoint, score.task, shots, score.metric, f"{100 * score.value:.2f}{error}", base)
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in (*cells, difference)) + " |")
    return "\n".join(lines) + "\n"


def as_json(scores: Sequence[Score]) -> bytes:
    """The table with everything in it."""
    rows = [{**score.model_dump(), "difference": score.difference} for score in scores]
    return orjson.dumps(rows, option=orjson.OPT_INDENT_2) + b"\n"

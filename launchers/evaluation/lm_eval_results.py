"""What lm_eval has measured: benchmarks, scores, and the folder that keeps them.

A ResultsStore records each checkpoint's scores on each benchmark, so that nothing is evaluated twice, and writes them
as tables beside the reference scores of a Baseline. An evaluation that is killed is not stored, so it is repeated.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.json_values import number
from rollyard.records.jsonl import replace
from rollyard.records.locked_files import InUse, open_locked
from rollyard.records.scores import share_bounds
from rollyard.records.types import Record

_PATTERN = re.compile(r"(?P<task>[\w./-]+)(:(?P<shots>\d+))?")
_RUNS_CODE = ("mbpp", "humaneval")


class Benchmark(Record):
    task: str
    num_fewshot: int | None = None
    """Number of few-shot examples; None for the task's default."""

    @property
    def title(self) -> str:
        """The name used for files and table rows, such as `gsm8k_8shot`."""
        return self.task if self.num_fewshot is None else f"{self.task}_{self.num_fewshot}shot"

    @property
    def unsafe(self) -> bool:
        """Whether lm_eval runs code from the model locally, without a sandbox."""
        return self.task.startswith(_RUNS_CODE)

    @classmethod
    def read(cls, text: str) -> Benchmark:
        """Parse a benchmark: `gsm8k:8` means gsm8k with 8 few-shot examples. Raises OperatorError if it is invalid."""
        found = _PATTERN.fullmatch(text.strip())
        if found is None:
            raise OperatorError(
                f"benchmark {text!r}: expected an lm_eval task, optionally with a number of few-shot "
                "examples, such as gsm8k:8"
            )
        shots = found["shots"]
        return cls(task=found["task"], num_fewshot=None if shots is None else int(shots))


USUAL = ("gsm8k:0", "gsm8k:4", "gsm8k:8", "hendrycks_math:4", "ifeval", "mbpp:3", "humaneval:0")
"""The default benchmarks."""


class Baseline(Record):
    task: str
    num_fewshot: int
    metric: str
    value: float


QWEN3_1_7B_BASE = tuple(
    Baseline(task=task, num_fewshot=shots, metric=metric, value=value)
    for task, shots, metric, value in (
        ("gsm8k", 0, "exact_match/flexible-extract", 0.1471),
        ("gsm8k", 0, "exact_match/strict-match", 0.0),
        ("gsm8k", 4, "exact_match/flexible-extract", 0.6748),
        ("gsm8k", 4, "exact_match/strict-match", 0.5914),
        ("gsm8k", 8, "exact_match/flexible-extract", 0.6960),
        ("gsm8k", 8, "exact_match/strict-match", 0.6892),
        ("hendrycks_math", 4, "exact_match", 0.1768),
        ("ifeval", 0, "prompt_level_strict_acc", 0.22),
        ("ifeval", 0, "inst_level_strict_acc", 0.3381),
        ("mbpp", 3, "pass@1", 0.558),
        ("humaneval", 0, "pass@1", 0.4878),
    )
)
"""Scores of Qwen3-1.7B-Base with lm_eval's vLLM backend: seed 42, greedy decoding, bfloat16, context length 4,096."""


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


class BenchmarkScore(Record):
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
        return None if self.baseline is None else self.value - self.baseline


def newest(folder: Path) -> Path | None:
    """Return the latest lm_eval results file under `folder`; None if there is none."""
    # The file names end with a timestamp.
    return max(folder.rglob("results_*.json"), key=lambda path: path.name, default=None)


def read_scores(
    path: Path, benchmark: Benchmark, checkpoint: str, step: int | None, baselines: Iterable[Baseline] = ()
) -> list[BenchmarkScore]:
    """Return every numeric metric in a results file. Raises RunError if the file is invalid or has no metrics."""
    reference: dict[tuple[str, int | None, str], float] = {
        (one.task, one.num_fewshot, one.metric): one.value for one in baselines
    }
    try:
        content = json.loads(path.read_bytes())  # orjson rejects the NaN that lm_eval may write
        results = {**content["results"], **(content.get("groups") or {})}
        shots, samples = content.get("n-shot") or {}, content.get("n-samples") or {}
        scores = [
            BenchmarkScore(
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


def as_csv(scores: Sequence[BenchmarkScore]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for score in scores:
        writer.writerow(["" if (value := getattr(score, name)) is None else value for name in COLUMNS])
    return text.getvalue()


def as_markdown(scores: Sequence[BenchmarkScore]) -> str:
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


def _error(score: BenchmarkScore, factor: int) -> str:
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


def as_json(scores: Sequence[BenchmarkScore]) -> bytes:
    rows = [{**score.model_dump(), "difference": score.difference} for score in scores]
    return orjson.dumps(rows, option=orjson.OPT_INDENT_2) + b"\n"


MAX_ATTEMPTS = 3


class Entry(Record):
    """The result of evaluating one checkpoint on one benchmark."""

    checkpoint: str
    title: str
    """The benchmark's title."""
    scores: list[BenchmarkScore]
    """The scores; empty if the evaluation failed."""
    tries: int = 1
    error: str = ""
    measured: dict[str, str] = Field(default_factory=dict)
    """The settings that affect scores; empty in results stored by older versions."""


_ENTRIES = TypeAdapter(list[Entry])


class ResultsStore:
    """The results in the output folder: `lm_eval.json`, which is replaced atomically, and tables derived from it."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder and read the stored results.

        Raises OperatorError if the folder cannot be created, RunError if another command is writing to it or the
        results cannot be read.
        """
        self.folder = folder
        self._path = folder / "lm_eval.json"
        self._entries: dict[tuple[str, str], Entry] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = open_locked(folder / ".lm_eval.lock")
        except OSError as error:
            raise OperatorError(f"cannot write to output_dir {folder}: {error.strerror or error}") from error
        except InUse as error:
            raise RunError(
                f"another ng_lm_eval is writing to {folder}: wait for it, or pass a different --output-dir"
            ) from error
        try:
            for entry in _ENTRIES.validate_json(self._path.read_bytes()):
                self._entries[entry.checkpoint, entry.title] = entry
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            self.close()
            raise RunError(f"{self._path} cannot be read ({error}); rename or delete it to start over") from error
        self._write_tables()  # a killed command may have written the results without the tables

    def close(self) -> None:
        os.close(self._lock)

    def is_pending(self, checkpoint: str, benchmark: Benchmark, measured: Mapping[str, str]) -> bool:
        """Return whether to run this evaluation: it has not succeeded yet, and has attempts left.

        Raises OperatorError if it succeeded with different settings, because the tables could not show the difference.
        """
        entry = self._entries.get((checkpoint, benchmark.title))
        if entry is None or entry.error:
            return entry is None or entry.tries < MAX_ATTEMPTS or entry.measured != measured
        keys = sorted(entry.measured.keys() | measured.keys()) if entry.measured else []
        other = [key for key in keys if entry.measured.get(key) != measured.get(key)]
        if other:
            changes = ", ".join(f"{key} {entry.measured.get(key)}, now {measured.get(key)}" for key in other)
            raise OperatorError(
                f"{self.folder} has results of {benchmark.title} for {checkpoint} with different settings ({changes}). "
                "Pass a different --output-dir or --name"
            )
        return False

    def forget_failures(self, checkpoint: str | None = None) -> None:
        """Remove the recorded failures of one checkpoint, or of all checkpoints."""
        kept = [
            entry for entry in self._entries.values() if not entry.error or checkpoint not in (None, entry.checkpoint)
        ]
        self._entries = {(entry.checkpoint, entry.title): entry for entry in kept}

    def record(
        self, checkpoint: str, benchmark: Benchmark, scores: list[BenchmarkScore], measured: Mapping[str, str]
    ) -> None:
        self._keep(Entry(checkpoint=checkpoint, title=benchmark.title, scores=scores, measured=dict(measured)))

    def fail(self, checkpoint: str, benchmark: Benchmark, error: str, measured: Mapping[str, str]) -> None:
        """Store a failure. An evaluation is attempted at most MAX_ATTEMPTS times."""
        before = self._entries.get((checkpoint, benchmark.title))
        tries = before.tries + 1 if before and before.measured == measured else 1
        self._keep(
            Entry(
                checkpoint=checkpoint,
                title=benchmark.title,
                scores=[],
                tries=tries,
                error=error,
                measured=dict(measured),
            )
        )

    @property
    def scores(self) -> list[BenchmarkScore]:
        """All scores, sorted by step and checkpoint, and then in the order of evaluation."""
        found = [score for entry in self._entries.values() for score in entry.scores]
        return sorted(found, key=lambda score: (-1 if score.step is None else score.step, score.checkpoint))

    def failed(self, titles: Collection[str], checkpoint: str | None = None) -> list[Entry]:
        return [
            entry
            for entry in self._entries.values()
            if entry.error and entry.title in titles and checkpoint in (None, entry.checkpoint)
        ]

    def _keep(self, entry: Entry) -> None:
        self._entries[entry.checkpoint, entry.title] = entry
        replace(self._path, _ENTRIES.dump_json(list(self._entries.values()), indent=2))
        self._write_tables()

    def _write_tables(self) -> None:
        scores = self.scores
        replace(self.folder / "results.csv", as_csv(scores).encode())
        replace(self.folder / "results.md", as_markdown(scores).encode())
        replace(self.folder / "results.json", as_json(scores))

"""Evaluates checkpoints with EleutherAI's lm_eval: each benchmark once on each checkpoint, with retries of failures."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from rollyard.launchers.evaluation.checkpoints import CheckpointWatch, Source, step_of
from rollyard.records import process_group
from rollyard.records.errors import OperatorError, RunError, did_you_mean
from rollyard.records.jsonl import replace
from rollyard.records.locked_files import InUse, open_locked
from rollyard.records.scores import share_bounds
from rollyard.records.script import EXIT_DONE, own_command, run_foreground
from rollyard.records.types import Json, Record, number
from rollyard.services.config.overrides import format_value

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


Baselines = Mapping[tuple[str, int | None, str], float]
"""Task, number of few-shot examples and metric -> value."""
QWEN3_1_7B_BASE: Baselines = {
    ("gsm8k", 0, "exact_match/flexible-extract"): 0.1471,
    ("gsm8k", 0, "exact_match/strict-match"): 0.0,
    ("gsm8k", 4, "exact_match/flexible-extract"): 0.6748,
    ("gsm8k", 4, "exact_match/strict-match"): 0.5914,
    ("gsm8k", 8, "exact_match/flexible-extract"): 0.6960,
    ("gsm8k", 8, "exact_match/strict-match"): 0.6892,
    ("hendrycks_math", 4, "exact_match"): 0.1768,
    ("ifeval", 0, "prompt_level_strict_acc"): 0.22,
    ("ifeval", 0, "inst_level_strict_acc"): 0.3381,
    ("mbpp", 3, "pass@1"): 0.558,
    ("humaneval", 0, "pass@1"): 0.4878,
}
"""Scores of Qwen3-1.7B-Base with lm_eval's vLLM backend: seed 42, greedy decoding, bfloat16, context length 4,096."""

COLUMNS = (
    *("step", "checkpoint", "task", "num_fewshot", "metric", "value", "stderr", "samples", "baseline", "difference"),
)


class BenchmarkScore(Record):
    step: int | None
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
    # The file names end with a timestamp.
    return max(folder.rglob("results_*.json"), key=lambda path: path.name, default=None)


def read_scores(
    path: Path, benchmark: Benchmark, checkpoint: str, step: int | None, baselines: Baselines = MappingProxyType({})
) -> list[BenchmarkScore]:
    """Return every numeric metric in a results file. Raises RunError if the file is invalid or has no metrics."""
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
                baseline=baselines.get((task, used, metric)),
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
        base = "" if score.baseline is None else f"{factor * score.baseline:.2f}"
        difference = "" if score.difference is None else f"{factor * score.difference:+.2f}"
        shots = "" if score.num_fewshot is None else score.num_fewshot
        step = "" if score.step is None else score.step
        value = f"{factor * score.value:.2f}{_error(score, factor)}"
        cells = (step, score.checkpoint, score.task, shots, score.metric, value, base, difference)
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _error(score: BenchmarkScore, factor: int) -> str:
    """Format lm_eval's standard error as ` ± 1.00`. It is computed over examples, not over answers.

    For scores of 0% and 100% lm_eval's error is 0, so the 95% confidence bound is shown instead.
    """
    if score.stderr is None:
        return ""
    extreme = score.stderr == 0 and score.value in (0, 1) and score.samples
    if extreme and (found := share_bounds(score.value, extreme)):
        return f" (at {'most' if score.value == 0 else 'least'} {factor * found[1 - int(score.value)]:.2f})"
    return f" ± {factor * score.stderr:.2f}"


MAX_ATTEMPTS = 3


class Entry(Record):
    checkpoint: str
    title: str
    scores: list[BenchmarkScore]
    tries: int = 1
    error: str = ""
    measured: dict[str, str] = Field(default_factory=dict)
    """The settings that affect scores; empty in results stored by older versions."""


_ENTRIES = TypeAdapter(list[Entry])


class ResultsStore:
    """The results in the output folder: `lm_eval.json`, which is replaced atomically, and tables derived from it."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder and read the stored results."""
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
        """Return whether to run this evaluation: it has not succeeded yet, and has attempts left."""
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
        kept = self._entries.items()
        self._entries = {
            key: entry for key, entry in kept if not entry.error or checkpoint not in (None, entry.checkpoint)
        }

    def record(
        self,
        checkpoint: str,
        benchmark: Benchmark,
        measured: Mapping[str, str],
        scores: Sequence[BenchmarkScore] = (),
        error: str = "",
    ) -> None:
        """Store scores or a failure. An evaluation is attempted at most MAX_ATTEMPTS times."""
        key = checkpoint, benchmark.title
        before = self._entries.get(key)
        tries = before.tries + 1 if error and before and before.measured == measured else 1
        result: Json = {"scores": list(scores), "tries": tries, "error": error, "measured": dict(measured)}
        self._entries[key] = Entry(checkpoint=checkpoint, title=benchmark.title, **result)
        replace(self._path, _ENTRIES.dump_json(list(self._entries.values()), indent=2))
        self._write_tables()

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

    def _write_tables(self) -> None:
        scores = self.scores
        rows = [{**score.model_dump(), "difference": score.difference} for score in scores]
        replace(self.folder / "results.csv", as_csv(scores).encode())
        replace(self.folder / "results.md", as_markdown(scores).encode())
        replace(self.folder / "results.json", orjson.dumps(rows, option=orjson.OPT_INDENT_2) + b"\n")


@dataclass(frozen=True)
class LmEvaluator:
    harness: Harness
    results_store: ResultsStore
    benchmarks: Sequence[Benchmark]
    environment: Mapping[str, str]
    baselines: Baselines = field(default_factory=dict)
    print_line: Callable[[str], None] = lambda text: None
    show: Callable[[str], None] = lambda text: None

    def evaluate(self, checkpoint: str, model: Model) -> None:
        """Run all pending benchmarks on `checkpoint`. If one fails, the failure is recorded and the others still run.

        Raises OperatorError at the end if a failure is permanent.
        """
        permanent_error: OperatorError | None = None
        for benchmark in self.benchmarks:
            measured = self.harness.measured(benchmark, model)
            if not self.results_store.is_pending(checkpoint, benchmark, measured):
                self.print_line(f"{checkpoint}: {benchmark.title} is already recorded in {self.results_store.folder}")
                continue
            self.print_line(f"{checkpoint}: {benchmark.title} ...")
            try:
                scores = self._scores(checkpoint, model, benchmark)
            except RunError as error:
                self.results_store.record(checkpoint, benchmark, measured, error=str(error))
                self.print_line(f"{checkpoint}: {benchmark.title} failed: {error}")
            except OperatorError as error:
                permanent_error = permanent_error or error
            else:
                self.results_store.record(checkpoint, benchmark, measured, scores)
                for score in scores:
                    base = "" if score.baseline is None else f" (baseline {score.baseline:.4f})"
                    self.print_line(f"{checkpoint}: {score.task} {score.metric} {score.value:.4f}{base}")
        if permanent_error is not None:
            raise permanent_error

    def watch(self, source: Source, model: Model, poll_s: float, stopped: Event, *, once: bool) -> None:
        """Evaluate complete checkpoints as they appear, until `stopped` is set.

        With `once`, evaluate the existing ones and return. Raises OperatorError if the checkpoints cannot be listed at
        the first attempt.
        """

        def located(name: str) -> Model:
            return dataclasses.replace(model, origin=source.address(name))

        def is_pending(name: str) -> bool:
            there = located(name)
            return any(
                self.results_store.is_pending(name, one, self.harness.measured(one, there)) for one in self.benchmarks
            )

        CheckpointWatch(
            source,
            self.results_store.folder / "staged",
            is_pending,
            lambda name, folder: self.evaluate(name, dataclasses.replace(located(name), name=str(folder))),
            self.print_line,
        ).run(poll_s, stopped, once=once)

    def _scores(self, checkpoint: str, model: Model, benchmark: Benchmark) -> list[BenchmarkScore]:
        folder = self.results_store.folder
        output = folder / "raw" / checkpoint / benchmark.title
        log = folder / "logs" / f"{checkpoint}_{benchmark.title}.log"
        before = newest(output)
        self.harness.run(benchmark, model, output, log, self.environment, self.show)
        results = newest(output)
        if results is None or results == before:
            raise RunError(f"lm_eval succeeded but wrote no results_*.json under {output} (log: {log})")
        return read_scores(results, benchmark, checkpoint, step_of(checkpoint), self.baselines)


_GRACE_S = 20.0
"""How long an interrupted lm_eval has to stop its engine."""
_PERMANENT = re.compile(r"Tasks not found|No module named|unrecognized arguments|marked as unsafe|pip install")
_ERROR = re.compile(r"(?:^|[\s.])\w*(?:Error|Exception|error): ")
"""Matches the line that contains the error. Warnings from child processes may follow it."""
_ACCESS_ARGUMENTS = frozenset(
    {"base_url", "num_concurrent", "max_retries", "tensor_parallel_size", "gpu_memory_utilization"}
)
"""Arguments that affect how the model is accessed and run, but not its scores."""


@dataclass(frozen=True)
class Model:
    """The model to evaluate, which is either served by an endpoint or loaded by vLLM from a folder or by name."""

    name: str
    url: str | None = None
    """`http://host:port/v1` of a model server; None if vLLM loads `name` in the lm_eval process."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Additional --model_args for lm_eval."""
    concurrent: int = 64
    origin: str | None = None
    """Path or URL of the original checkpoint if `name` is a copy."""

    def command_arguments(self, seed: int) -> list[str]:
        """Return lm_eval's arguments for the model. The seed is set explicitly, because lm_eval's default is 1234."""
        model_args = _pairs({**self._arguments(), "seed": self.arguments.get("seed", seed)})
        if self.url is None:
            return ["--model", "vllm", "--model_args", model_args, "--batch_size", "auto"]
        return ["--model", "local-chat-completions", "--model_args", model_args, "--apply_chat_template"]

    def measured(self) -> dict[str, str]:
        settings = {key: str(value) for key, value in self._arguments().items() if key not in _ACCESS_ARGUMENTS}
        settings.pop("pretrained", None)
        return {**settings, "model": self.origin or self.name}

    def _arguments(self) -> Json:
        if self.url is None:
            arguments: Json = {"pretrained": self.name, "dtype": "bfloat16", "gpu_memory_utilization": 0.8}
            return arguments | {"max_model_len": 4096, **self.arguments}
        arguments = {"model": self.name, "base_url": f"{self.url}/chat/completions", "num_concurrent": self.concurrent}
        return arguments | {"max_retries": 3, "tokenized_requests": False, **self.arguments}


@dataclass(frozen=True)
class Harness:
    command: Sequence[str] = ("lm_eval",)
    """The command to run. Use a path if lm_eval is installed in a different virtual environment."""
    seed: int = 42
    gen_kwargs: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})
    max_gen_toks: Mapping[str, int] = field(default_factory=dict)
    """Task -> maximum number of tokens per answer. The key `default` applies to all other tasks. lm_eval's own default
    of 256 truncates 10% of the answers."""
    limit: int | None = None
    include_path: Path | None = None
    unsafe_code: bool = False

    def check(self, benchmarks: Sequence[Benchmark]) -> None:
        """Raise OperatorError for settings that lm_eval would reject only after minutes."""
        if wrong := [name for name in ("max_tokens", "max_new_tokens") if name in self.gen_kwargs]:
            raise OperatorError(
                f"gen_kwargs contains {wrong[0]}, which the vLLM backend would pass twice; use max_gen_toks instead"
            )
        if self.include_path is not None and not self.include_path.is_dir():
            raise OperatorError(f"include_path {self.include_path} is not a folder")
        unsafe = sorted({one.task for one in benchmarks if one.unsafe})
        if unsafe and not self.unsafe_code:
            raise OperatorError(
                f"{', '.join(unsafe)}: lm_eval runs the model's code locally without a sandbox. Pass "
                "--confirm-run-unsafe-code to allow it, or use Rollyard's own mbpp and humaneval environments"
            )
        if not self.command or shutil.which(self.command[0]) is None:
            raise OperatorError(
                f"{' '.join(self.command[:1])} was not found: run pip install 'rollyard[lm-eval]', or pass the program "
                "from a different virtual environment with --lm-eval-command /path/to/env/bin/lm_eval"
            )

    def command_line(self, benchmark: Benchmark, model: Model, output: Path) -> list[str]:
        generation = self._generation(benchmark)
        options = {
            "--tasks": benchmark.task,
            "--seed": self.seed,
            "--gen_kwargs": _pairs(generation) if generation else None,
            "--num_fewshot": benchmark.num_fewshot,
            "--limit": self.limit,
            "--include_path": self.include_path,
        }
        words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        unsafe = ["--confirm_run_unsafe_code"] if self.unsafe_code else []
        return [*self.command, *model.command_arguments(self.seed), *words, *unsafe, "--output_path", str(output)]

    def measured(self, benchmark: Benchmark, model: Model) -> dict[str, str]:
        """Return the settings that affect the scores. Earlier results are reused only if these have not changed."""
        own = {"seed": self.seed, "limit": self.limit, **self._generation(benchmark)}
        return {**model.measured(), **{key: str(value) for key, value in own.items()}}

    def _generation(self, benchmark: Benchmark) -> Json:
        limit = self.max_gen_toks.get(benchmark.task, self.max_gen_toks.get("default"))
        return {**self.gen_kwargs, **({} if limit is None else {"max_gen_toks": limit})}

    def run(
        self,
        benchmark: Benchmark,
        model: Model,
        output: Path,
        log: Path,
        environment: Mapping[str, str],
        show: Callable[[str], None],
    ) -> None:
        """Run lm_eval. Each line of its output is appended to `log` and passed to `show`."""
        command = self.command_line(benchmark, model, output)
        environment = {**environment, "PYTHONUNBUFFERED": "1"}
        if self.unsafe_code:
            environment["HF_ALLOW_CODE_EVAL"] = "1"
        log.parent.mkdir(parents=True, exist_ok=True)
        last, error = "no output", ""
        # Guarded, because vLLM's engine is a child of lm_eval and would outlive it.
        streams: Json = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process: subprocess.Popen[str] = process_group.start(
            command, env=environment, encoding="utf-8", errors="replace", **streams
        )
        assert process.stdout is not None
        try:
            with log.open("a", encoding="utf-8") as file, process.stdout:
                file.write(f"$ {shlex.join(command)}\n")
                for text in process.stdout:
                    file.write(text)
                    file.flush()
                    last = text.strip() or last
                    error = text.strip() if _ERROR.search(text) else error
                    show(text.rstrip())
            status = process.wait()
        finally:
            _end(process)
        if status != 0:
            why = error or last
            message = f"lm_eval exited with status {status} on {benchmark.title}: {why} (its log: {log})"
            raise OperatorError(message) if _PERMANENT.search(why) else RunError(message)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the remaining processes: immediately if lm_eval has exited, else after a grace period.

    A second interrupt skips the grace period.
    """
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # forwarded to lm_eval
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
    finally:
        process_group.end(process)


def _pairs(arguments: Mapping[str, Any]) -> str:
    """Format the arguments as `key=value,key=value`. Raises OperatorError if a key or value contains a comma."""
    for key, value in arguments.items():
        if "," in str(value) or "," in key:
            raise OperatorError(f"{key}={value}: lm_eval does not support commas in argument values")
    return ",".join(f"{key}={value}" for key, value in arguments.items())


_TIMEOUT_S = 600.0
"""lm_eval reads thousands of files for the check, which takes 6 s of CPU time, and minutes if the disk is slow."""
_NOT_FOUND = re.compile(r"Tasks not found: (.+)")
_LISTED = re.compile(r"^\|\s*([\w./-]+)\s*\|", re.MULTILINE)


def check_task_names(
    command: Sequence[str],
    tasks: Iterable[str],
    include_path: Path | None,
    environment: Mapping[str, str],
    print_line: Callable[[str], None],
) -> None:
    """Raise OperatorError if a task is unknown. The message suggests the most similar existing name.

    lm_eval before 0.4.10 does not support this check. `print_line` then receives a message, and a mistyped task fails
    only when it runs.
    """
    named = [task for task in dict.fromkeys(tasks) if not Path(task).is_file()]  # lm_eval accepts a task file, too
    own = ["--include_path", str(include_path)] if include_path is not None else []

    def run_lm_eval(*arguments: str) -> subprocess.CompletedProcess[str]:
        streams: Json = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        return subprocess.run([*command, *arguments, *own], env=environment, timeout=_TIMEOUT_S, **streams)

    if not named:
        return
    try:
        found = run_lm_eval("validate", "--tasks", ",".join(named))
        if found.returncode == 0:
            return
        missing = _NOT_FOUND.search(found.stdout)
        if missing is None:
            last = (found.stderr or found.stdout).strip().rpartition("\n")[2]
            print_line(f"lm_eval could not check the task names in advance ({last or f'status {found.returncode}'})")
            return
        known = _LISTED.findall(run_lm_eval("ls", "tasks").stdout)
    except subprocess.TimeoutExpired:
        print_line(f"lm_eval did not finish checking the task names within {_TIMEOUT_S:.0f} s")
        return
    wrong = [task.strip() for task in missing[1].split(",")]
    hints = "; ".join(f"{task!r}{did_you_mean(task, known)}" for task in wrong)
    raise OperatorError(f"lm_eval has no task {hints} (to list all tasks: {shlex.join(command)} ls tasks)")


class Part(BaseModel):
    """Base class of the parts of the file. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class CheckpointEntry(Part):
    name: str
    path: str
    """Folder or hub name that vLLM loads."""


class BenchmarkEntry(Part):
    task: str
    num_fewshot: int | None = None


class WatchEntry(Part):
    enable: bool = True
    local_dir: str | None = None
    s3_prefix: str | None = None
    pattern: str = "*"
    poll_interval_s: float = Field(default=300.0, gt=0)


class BenchmarkConfig(Part):
    """The file's keys. `ng_lm_eval` runs once per checkpoint, or watches a folder."""

    seed: int = 42
    output_dir: str = "results/lm_eval"
    vllm: Json = Field(default_factory=dict)
    """lm_eval's model_args of vLLM, such as {tensor_parallel_size: 8, max_model_len: 4096}."""
    max_gen_toks: dict[str, int] = Field(default_factory=dict)
    """Maximum number of tokens per answer, by task or `default`."""
    checkpoints: tuple[CheckpointEntry, ...] = ()
    benchmarks: tuple[BenchmarkEntry, ...] = Field(min_length=1)
    watch: WatchEntry | None = None
    confirm_run_unsafe_code: bool = False

    def commands(self, *, watch_path: str | None = None) -> list[list[str]]:
        """Return the arguments of each `ng_lm_eval` to run. `watch_path` takes precedence over that of the file."""
        shots = ["" if one.num_fewshot is None else f":{one.num_fewshot}" for one in self.benchmarks]
        common: Json = {
            "benchmarks": [f"{one.task}{count}" for one, count in zip(self.benchmarks, shots, strict=True)],
            "output_dir": self.output_dir,
            "seed": self.seed,
            "confirm_run_unsafe_code": self.confirm_run_unsafe_code,
            **({"model_args": self.vllm} if self.vllm else {}),
            **({"max_gen_toks": self.max_gen_toks} if self.max_gen_toks else {}),
        }
        runs: list[Json] = [{"model": one.path, "name": one.name} for one in self.checkpoints]
        entry = self.watch if self.watch is not None and self.watch.enable else WatchEntry()
        if (path := watch_path or entry.local_dir or entry.s3_prefix) is not None:
            watched = {"watch_path": path, "watch_pattern": entry.pattern}
            runs.append({**watched, "poll_interval_s": entry.poll_interval_s})
        if not runs:
            raise OperatorError("nothing to evaluate: expected checkpoints, or watch with local_dir or s3_prefix")
        return [[f"+{name}={format_value(value)}" for name, value in {**run, **common}.items()] for run in runs]


def run_commands(commands: Sequence[Sequence[str]]) -> int:
    """Run `ng_lm_eval` with each list of arguments. Returns the first exit status that is not 0, or 0.

    An interruption ends the remaining ones, too.
    """
    found = EXIT_DONE
    for given in commands:
        status = run_foreground(own_command("ng_lm_eval", *given))
        found = found or status
        if status > 128:
            return status
    return found

"""Evaluates checkpoints with EleutherAI's lm_eval.

An Evaluator runs each benchmark once on each checkpoint and retries what failed; a Harness runs one of them as a
process, writes its output to a log and reports its errors.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rollyard.launchers.evaluation.checkpoints import CheckpointWatch, Source, step_of
from rollyard.launchers.evaluation.lm_eval_results import (
    Baseline,
    Benchmark,
    BenchmarkScore,
    ResultsStore,
    newest,
    read_scores,
)
from rollyard.records import process_group
from rollyard.records.errors import OperatorError, RunError, did_you_mean
from rollyard.records.script import EXIT_DONE, own_command, run_foreground
from rollyard.records.types import Json
from rollyard.services.config.overrides import format_value


@dataclass(frozen=True)
class LmEvaluator:
    harness: Harness
    results_store: ResultsStore
    benchmarks: Sequence[Benchmark]
    environment: Mapping[str, str]
    baselines: Sequence[Baseline] = ()
    print_line: Callable[[str], None] = lambda text: None
    """Called with progress messages."""
    show: Callable[[str], None] = lambda text: None
    """Called with each line of lm_eval's output."""

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
                self.results_store.fail(checkpoint, benchmark, str(error), measured)
                self.print_line(f"{checkpoint}: {benchmark.title} failed: {error}")
            except OperatorError as error:
                permanent_error = permanent_error or error
            else:
                self.results_store.record(checkpoint, benchmark, scores, measured)
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
            return replace(model, origin=source.address(name))

        def is_pending(name: str) -> bool:
            there = located(name)
            return any(
                self.results_store.is_pending(name, one, self.harness.measured(one, there)) for one in self.benchmarks
            )

        CheckpointWatch(
            source,
            self.results_store.folder / "staged",
            is_pending,
            lambda name, folder: self.evaluate(name, replace(located(name), name=str(folder))),
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
"""Matches error messages of lm_eval after which a retry would fail again."""
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
    """Maximum number of concurrent requests to an endpoint."""
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
    """Evaluate only this many examples of each task."""
    include_path: Path | None = None
    """A folder that contains custom tasks."""
    unsafe_code: bool = False
    """Allow lm_eval to run code from the model locally (MBPP, HumanEval)."""

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
        command = [
            *self.command,
            *model.command_arguments(self.seed),
            "--tasks",
            benchmark.task,
            "--seed",
            str(self.seed),
        ]
        if generation:
            command += ["--gen_kwargs", _pairs(generation)]
        if benchmark.num_fewshot is not None:
            command += ["--num_fewshot", str(benchmark.num_fewshot)]
        if self.limit is not None:
            command += ["--limit", str(self.limit)]
        if self.include_path is not None:
            command += ["--include_path", str(self.include_path)]
        if self.unsafe_code:
            command.append("--confirm_run_unsafe_code")
        return [*command, "--output_path", str(output)]

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
        """Run lm_eval. Each line of its output is appended to `log` and passed to `show`.

        Raises RunError with lm_eval's error message, or OperatorError if a retry would fail again.
        """
        command = self.command_line(benchmark, model, output)
        environment = {**environment, "PYTHONUNBUFFERED": "1"}
        if self.unsafe_code:
            environment["HF_ALLOW_CODE_EVAL"] = "1"
        log.parent.mkdir(parents=True, exist_ok=True)
        last, error = "no output", ""
        # Guarded, because vLLM's engine is a child of lm_eval and would outlive it.
        process: subprocess.Popen[str] = process_group.start(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            encoding="utf-8",
            errors="replace",
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
    named = [
        task for task in dict.fromkeys(tasks) if not Path(task).is_file()
    ]  # lm_eval also accepts the path of a task file
    own = ["--include_path", str(include_path)] if include_path is not None else []

    def run_lm_eval(*arguments: str) -> subprocess.CompletedProcess[str]:
        full_command = [*command, *arguments, *own]
        return subprocess.run(
            full_command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )

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
    """Name in the tables."""
    path: str
    """Folder or hub name that vLLM loads."""


class BenchmarkEntry(Part):
    task: str
    num_fewshot: int | None = None

    @property
    def title(self) -> str:
        return self.task if self.num_fewshot is None else f"{self.task}:{self.num_fewshot}"


class WatchEntry(Part):
    enable: bool = True
    local_dir: str | None = None
    s3_prefix: str | None = None
    pattern: str = "*"
    poll_interval_s: float = Field(default=300.0, gt=0)

    @property
    def path(self) -> str | None:
        return self.local_dir or self.s3_prefix


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

    def commands(self, *, watch_path: str | None = None, once: bool = False) -> list[list[str]]:
        """Return the arguments of each `ng_lm_eval` to run. `watch_path` takes precedence over that of the file.

        Raises OperatorError if there is nothing to evaluate.
        """
        common: dict[str, Any] = {
            "benchmarks": [one.title for one in self.benchmarks],
            "output_dir": self.output_dir,
            "seed": self.seed,
            "confirm_run_unsafe_code": self.confirm_run_unsafe_code,
        }
        common |= {"model_args": self.vllm} if self.vllm else {}
        common |= {"max_gen_toks": self.max_gen_toks} if self.max_gen_toks else {}
        found = [_overrides({"model": one.path, "name": one.name, **common}) for one in self.checkpoints]
        watch = self.watch if self.watch is not None and self.watch.enable else None
        path = watch_path or (watch.path if watch else None)
        if path is not None:
            entry = watch or WatchEntry()
            watched: dict[str, Any] = {"watch_path": path, "watch_pattern": entry.pattern, "once": once}
            found.append(_overrides({**watched, "poll_interval_s": entry.poll_interval_s, **common}))
        if not found:
            raise OperatorError("nothing to evaluate: expected checkpoints, or watch with local_dir or s3_prefix")
        return found


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


def _overrides(options: Mapping[str, Any]) -> list[str]:
    return [f"+{name}={format_value(value)}" for name, value in options.items()]

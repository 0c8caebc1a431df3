"""Runs lm_eval as a separate process, writes its output to a log and reports its errors."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollyard.services.errors import OperatorError, RunError
from rollyard.services.evaluation.benchmarks import Benchmark
from rollyard.services.types import Json

_GRACE_S = 20.0
"""Time for an interrupted lm_eval to stop its engine."""
_PERMANENT = re.compile(r"Tasks not found|No module named|unrecognized arguments|marked as unsafe|pip install")
"""Matches final messages of lm_eval for which a retry cannot help."""
_ERROR = re.compile(r"(?:^|[\s.])\w*(?:Error|Exception|error): ")
"""Matches the line with the error, which may be followed by warnings of child processes."""
_ACCESS_ARGUMENTS = frozenset(
    {"base_url", "num_concurrent", "max_retries", "tensor_parallel_size", "gpu_memory_utilization"}
)
"""Arguments that affect how a model is accessed and run, not what is measured."""


@dataclass(frozen=True)
class Model:
    """The model to evaluate: an endpoint that serves it, or a folder or name that vLLM loads."""

    name: str
    url: str | None = None
    """`http://host:port/v1` of a model server; None if vLLM loads `name` in the lm_eval process."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Additional --model_args of lm_eval."""
    concurrent: int = 64
    """Concurrent requests to an endpoint."""
    origin: str | None = None
    """The original location if `name` is a copy."""

    def command_arguments(self, seed: int) -> list[str]:
        """Return the model's command line arguments. The seed is explicit because lm_eval otherwise uses 1234."""
        model_args = _pairs({**self._arguments(), "seed": self.arguments.get("seed", seed)})
        if self.url is None:
            return ["--model", "vllm", "--model_args", model_args, "--batch_size", "auto"]
        return ["--model", "local-chat-completions", "--model_args", model_args, "--apply_chat_template"]

    def measured(self) -> dict[str, str]:
        """Return the model's settings that affect scores."""
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
    """The settings with which lm_eval runs."""

    command: Sequence[str] = ("lm_eval",)
    """The command; a path for an lm_eval in another virtual environment."""
    seed: int = 42
    gen_kwargs: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})
    max_gen_toks: Mapping[str, int] = field(default_factory=dict)
    """Task -> maximum tokens per answer; `default`: all other tasks. lm_eval's own default of 256 truncates 10 %."""
    limit: int | None = None
    """Evaluate only this many examples of each task."""
    include_path: Path | None = None
    """A folder with custom tasks."""
    unsafe_code: bool = False
    """Let lm_eval run the model's code locally (MBPP, HumanEval)."""

    def check(self, benchmarks: Sequence[Benchmark]) -> None:
        """Raise OperatorError for settings that would fail only after minutes."""
        if wrong := [name for name in ("max_tokens", "max_new_tokens") if name in self.gen_kwargs]:
            raise OperatorError(
                f"gen_kwargs has {wrong[0]}, which the vLLM backend would pass twice; use max_gen_toks instead"
            )
        if self.include_path is not None and not self.include_path.is_dir():
            raise OperatorError(f"include_path {self.include_path} is not a folder")
        unsafe = sorted({one.task for one in benchmarks if one.unsafe})
        if unsafe and not self.unsafe_code:
            raise OperatorError(
                f"{', '.join(unsafe)}: lm_eval runs the model's code locally without a sandbox. Pass "
                "+confirm_run_unsafe_code=true to allow it, or use Rollyard's own mbpp and humaneval environments"
            )
        if not self.command or shutil.which(self.command[0]) is None:
            raise OperatorError(
                f"{' '.join(self.command[:1])} was not found: run pip install 'rollyard[lm-eval]', or pass the program "
                "of another virtual environment with +lm_eval_command=[/path/to/env/bin/lm_eval]"
            )

    def command_line(self, benchmark: Benchmark, model: Model, output: Path) -> list[str]:
        """Return the command line."""
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
        """Return the settings that affect scores. Earlier results are only reused if these are equal."""
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
        """Run lm_eval and pass each output line to `log` and `show`.

        Raises RunError with lm_eval's error, or OperatorError if a retry cannot help.
        """
        command = self.command_line(benchmark, model, output)
        environment = {**environment, "PYTHONUNBUFFERED": "1"}
        if self.unsafe_code:
            environment["HF_ALLOW_CODE_EVAL"] = "1"
        log.parent.mkdir(parents=True, exist_ok=True)
        last, error = "no output", ""
        # A separate process group, because vLLM's engine is a child of lm_eval and would outlive it.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rollyard.services.evaluation.process_group", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
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
    """End the remaining processes of the group: immediately if lm_eval has exited, else after a grace period.

    A second interrupt skips the grace period.
    """
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _pairs(arguments: Mapping[str, Any]) -> str:
    """Format `key=value,key=value`. Raises OperatorError for values that lm_eval would split."""
    for key, value in arguments.items():
        if "," in str(value) or "," in key:
            raise OperatorError(f"{key}={value}: lm_eval does not support commas in argument values")
    return ",".join(f"{key}={value}" for key, value in arguments.items())

"""Harness: lm_eval as a process of its own, its words in a log, its mistakes as errors of ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.errors import OperatorError, RunError
from services.evaluation.benchmarks import UNSAFE, Benchmark
from services.types import Json

_GRACE_S = 20.0
"""For an interrupted lm_eval to end its engine."""
_TAIL = 30
"""Lines of the log that are shown when lm_eval fails."""


@dataclass(frozen=True)
class Model:
    """What is evaluated: an endpoint that serves it, or a folder or name that vLLM loads."""

    name: str
    url: str | None = None
    """`http://host:port/v1` of a model server; None: vLLM loads `name` in lm_eval's own process."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """More of lm_eval's --model_args."""
    concurrent: int = 64
    """Requests at a time to an endpoint."""

    def words(self) -> list[str]:
        """Its part of the command line."""
        if self.url is None:
            given: Json = {"pretrained": self.name, "dtype": "bfloat16", "gpu_memory_utilization": 0.8}
            given |= {"max_model_len": 4096, **self.arguments}
            return ["--model", "vllm", "--model_args", _pairs(given), "--batch_size", "auto"]
        given = {"model": self.name, "base_url": f"{self.url}/chat/completions", "num_concurrent": self.concurrent}
        given |= {"max_retries": 3, "tokenized_requests": False, **self.arguments}
        return ["--model", "local-chat-completions", "--model_args", _pairs(given), "--apply_chat_template"]


@dataclass(frozen=True)
class Harness:
    """How lm_eval is run."""

    command: Sequence[str] = ("lm_eval",)
    """The program; that of another environment by its path."""
    seed: int = 42
    gen_kwargs: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})
    max_gen_toks: Mapping[str, int] = field(default_factory=dict)
    """Task -> tokens that an answer may have; `default` for the others. lm_eval's own 256 cut a tenth of them."""
    limit: int | None = None
    """Only the first examples of each task."""
    include_path: Path | None = None
    """A folder with tasks of one's own."""
    unsafe_code: bool = False
    """Let lm_eval run the model's code on this machine (MBPP, HumanEval)."""

    def check(self, benchmarks: Sequence[Benchmark]) -> None:
        """Raises OperatorError for what would fail after minutes."""
        if wrong := [name for name in ("max_tokens", "max_new_tokens") if name in self.gen_kwargs]:
            raise OperatorError(
                f"gen_kwargs has {wrong[0]}, which the vLLM backend passes on twice; say it as max_gen_toks"
            )
        unsafe = sorted({one.task for one in benchmarks if one.task in UNSAFE})
        if unsafe and not self.unsafe_code:
            raise OperatorError(
                f"{', '.join(unsafe)}: lm_eval runs the model's code on this machine without a sandbox. Say "
                "+confirm_run_unsafe_code=true if that is meant, or play this stack's own mbpp and humaneval worlds"
            )

    def words(self, benchmark: Benchmark, model: Model, output: Path) -> list[str]:
        """The command line."""
        limit = self.max_gen_toks.get(benchmark.task, self.max_gen_toks.get("default"))
        generation = {**self.gen_kwargs, **({} if limit is None else {"max_gen_toks": limit})}
        line = [*self.command, *model.words(), "--tasks", benchmark.task, "--seed", str(self.seed)]
        if generation:
            line += ["--gen_kwargs", _pairs(generation)]
        if benchmark.num_fewshot is not None:
            line += ["--num_fewshot", str(benchmark.num_fewshot)]
        if self.limit is not None:
            line += ["--limit", str(self.limit)]
        if self.include_path is not None:
            line += ["--include_path", str(self.include_path)]
        if benchmark.task in UNSAFE:
            line.append("--confirm_run_unsafe_code")
        return [*line, "--output_path", str(output)]

    def run(
        self,
        benchmark: Benchmark,
        model: Model,
        output: Path,
        log: Path,
        environment: Mapping[str, str],
        show: Callable[[str], None],
    ) -> None:
        """Run it, each line into `log` and to `show` as it comes. Raises RunError with the log's end, OperatorError
        when lm_eval is not there.
        """
        line = self.words(benchmark, model, output)
        if benchmark.task in UNSAFE:
            environment = {**environment, "HF_ALLOW_CODE_EVAL": "1"}
        log.parent.mkdir(parents=True, exist_ok=True)
        tail: list[str] = []
        try:
            # A group of its own: vLLM's engine is a child of lm_eval's, and would outlive it.
            process = subprocess.Popen(
                line,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                errors="replace",
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise OperatorError(
                f"{line[0]} is not there: pip install 'rollyard[lm-eval]', or name the program of another environment "
                "with +lm_eval_command=[/path/to/env/bin/lm_eval]"
            ) from error
        assert process.stdout is not None
        try:
            with log.open("a") as file, process.stdout:
                file.write(f"$ {' '.join(line)}\n")
                for text in process.stdout:
                    file.write(text)
                    file.flush()
                    tail = [*tail[1 - _TAIL :], text.rstrip()]
                    show(text.rstrip())
            status = process.wait()
        finally:
            _end(process)
        if status != 0:
            end = "\n".join(tail)
            raise RunError(f"lm_eval ended with {status} on {benchmark.title}. The end of its log, {log}:\n{end}")


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of its group: at once where it ended by itself, else after some time to clean up."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _pairs(given: Mapping[str, Any]) -> str:
    """`key=value,key=value`. Raises OperatorError for what lm_eval's own reader would take apart."""
    for key, value in given.items():
        if "," in str(value) or "," in key:
            raise OperatorError(f"{key}={value}: lm_eval takes no comma in an argument's value")
    return ",".join(f"{key}={value}" for key, value in given.items())

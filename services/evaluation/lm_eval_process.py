"""Harness: lm_eval as a process of its own, its words in a log, its mistakes as errors of ours."""

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
"""For an interrupted lm_eval to end its engine."""
_MISTAKE = re.compile(r"Tasks not found|No module named|unrecognized arguments|marked as unsafe|pip install")
"""In what lm_eval ended with: trying again cannot help."""
_ERROR = re.compile(r"(?:^|[\s.])\w*(?:Error|Exception|error): ")
"""Says what it ended with, also where warnings of its children come behind."""
_HOW = frozenset({"base_url", "num_concurrent", "max_retries", "tensor_parallel_size", "gpu_memory_utilization"})
"""Arguments that say how a model is reached and run, not what is measured."""


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
    origin: str | None = None
    """Where it is from, if `name` is but a copy."""

    def words(self, seed: int) -> list[str]:
        """Its part of the command line. The model's own seed is lm_eval's 1234, whatever its --seed, unless told."""
        given = _pairs({**self._given(), "seed": self.arguments.get("seed", seed)})
        if self.url is None:
            return ["--model", "vllm", "--model_args", given, "--batch_size", "auto"]
        return ["--model", "local-chat-completions", "--model_args", given, "--apply_chat_template"]

    def measured(self) -> dict[str, str]:
        """What of it a score depends on."""
        given = {key: str(value) for key, value in self._given().items() if key not in _HOW}
        given.pop("pretrained", None)
        return {**given, "model": self.origin or self.name}

    def _given(self) -> Json:
        if self.url is None:
            given: Json = {"pretrained": self.name, "dtype": "bfloat16", "gpu_memory_utilization": 0.8}
            return given | {"max_model_len": 4096, **self.arguments}
        given = {"model": self.name, "base_url": f"{self.url}/chat/completions", "num_concurrent": self.concurrent}
        return given | {"max_retries": 3, "tokenized_requests": False, **self.arguments}


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
        if self.include_path is not None and not self.include_path.is_dir():
            raise OperatorError(f"include_path {self.include_path} is no folder")
        unsafe = sorted({one.task for one in benchmarks if one.unsafe})
        if unsafe and not self.unsafe_code:
            raise OperatorError(
                f"{', '.join(unsafe)}: lm_eval runs the model's code on this machine without a sandbox. Say "
                "+confirm_run_unsafe_code=true if that is meant, or play this stack's own mbpp and humaneval worlds"
            )
        if not self.command or shutil.which(self.command[0]) is None:
            raise OperatorError(
                f"{' '.join(self.command[:1])} is not there: pip install 'rollyard[lm-eval]', or name the program of "
                "another environment with +lm_eval_command=[/path/to/env/bin/lm_eval]"
            )

    def words(self, benchmark: Benchmark, model: Model, output: Path) -> list[str]:
        """The command line."""
        generation = self._generation(benchmark)
        line = [*self.command, *model.words(self.seed), "--tasks", benchmark.task, "--seed", str(self.seed)]
        if generation:
            line += ["--gen_kwargs", _pairs(generation)]
        if benchmark.num_fewshot is not None:
            line += ["--num_fewshot", str(benchmark.num_fewshot)]
        if self.limit is not None:
            line += ["--limit", str(self.limit)]
        if self.include_path is not None:
            line += ["--include_path", str(self.include_path)]
        if self.unsafe_code:
            line.append("--confirm_run_unsafe_code")
        return [*line, "--output_path", str(output)]

    def measured(self, benchmark: Benchmark, model: Model) -> dict[str, str]:
        """What a score depends on, as it is compared when a command goes on with an older one's results."""
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
        """Run it, each line into `log` and to `show` as it comes.

        Raises RunError with what lm_eval ended with; OperatorError where trying again cannot help.
        """
        line = self.words(benchmark, model, output)
        environment = {**environment, "PYTHONUNBUFFERED": "1"}
        if self.unsafe_code:
            environment["HF_ALLOW_CODE_EVAL"] = "1"
        log.parent.mkdir(parents=True, exist_ok=True)
        last, error = "it said nothing", ""
        # A group of its own, with a guard: vLLM's engine is a child of lm_eval's, and would outlive it.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rollyard.services.evaluation.process_group", *line],
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
                file.write(f"$ {shlex.join(line)}\n")
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
            said = f"lm_eval ended with {status} on {benchmark.title}: {why} (its log: {log})"
            raise OperatorError(said) if _MISTAKE.search(why) else RunError(said)


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of its group: at once where it ended by itself, else after some time to clean up.

    A second interrupt takes that time away.
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


def _pairs(given: Mapping[str, Any]) -> str:
    """`key=value,key=value`. Raises OperatorError for what lm_eval's own reader would take apart."""
    for key, value in given.items():
        if "," in str(value) or "," in key:
            raise OperatorError(f"{key}={value}: lm_eval takes no comma in an argument's value")
    return ",".join(f"{key}={value}" for key, value in given.items())

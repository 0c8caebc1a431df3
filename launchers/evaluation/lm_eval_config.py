"""BenchmarkConfig: checkpoints and benchmarks in one YAML file, as `entrypoints/eval_benchmarks.py CONFIG` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rollyard.records.errors import OperatorError
from rollyard.records.script import EXIT_DONE, own_command, run_foreground
from rollyard.records.types import Json
from rollyard.services.config.overrides import format_value


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

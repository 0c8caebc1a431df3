"""The benchmarks that lm_eval runs, and the baseline scores of Qwen3-1.7B-Base."""

from __future__ import annotations

import re

from rollyard.records.errors import OperatorError
from rollyard.records.types import Record

_PATTERN = re.compile(r"(?P<task>[\w./-]+)(:(?P<shots>\d+))?")
_RUNS_CODE = ("mbpp", "humaneval")


class Benchmark(Record):
    """An lm_eval task."""

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
    """A reference score to compare results with."""

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

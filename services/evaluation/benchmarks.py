"""What lm_eval is asked to run, and what the base model of the founding experiments scored there."""

from __future__ import annotations

import re

from services.errors import OperatorError
from services.types import Record

_WRITTEN = re.compile(r"(?P<task>[\w./-]+)(:(?P<shots>\d+))?")
UNSAFE = frozenset({"mbpp", "humaneval", "mbpp_plus", "humaneval_plus", "mbpp_instruct", "humaneval_instruct"})
"""Tasks for which lm_eval runs the model's code on this machine, in no sandbox."""


class Benchmark(Record):
    """A task of lm_eval."""

    task: str
    num_fewshot: int | None = None
    """None: as the task itself says."""

    @property
    def title(self) -> str:
        """`gsm8k_8shot`: names files and rows."""
        return self.task if self.num_fewshot is None else f"{self.task}_{self.num_fewshot}shot"

    @classmethod
    def read(cls, written: str) -> Benchmark:
        """`gsm8k:8` is gsm8k with 8 examples in its prompt. Raises OperatorError."""
        found = _WRITTEN.fullmatch(written.strip())
        if found is None:
            raise OperatorError(f"benchmark {written!r}; expected a task of lm_eval and its examples, as in gsm8k:8")
        shots = found["shots"]
        return cls(task=found["task"], num_fewshot=None if shots is None else int(shots))


USUAL = ("gsm8k:0", "gsm8k:4", "gsm8k:8", "hendrycks_math:4", "ifeval", "mbpp:3", "humaneval:0")
"""The founding experiments' seven."""


class Baseline(Record):
    """A score to compare with."""

    title: str
    metric: str
    value: float


QWEN3_1_7B_BASE = tuple(
    Baseline(title=title, metric=metric, value=value)
    for title, metric, value in (
        ("gsm8k_0shot", "exact_match/flexible-extract", 0.1471),
        ("gsm8k_0shot", "exact_match/strict-match", 0.0),
        ("gsm8k_4shot", "exact_match/flexible-extract", 0.6748),
        ("gsm8k_4shot", "exact_match/strict-match", 0.5914),
        ("gsm8k_8shot", "exact_match/flexible-extract", 0.6960),
        ("gsm8k_8shot", "exact_match/strict-match", 0.6892),
        ("hendrycks_math_4shot", "exact_match", 0.1768),
        ("ifeval", "prompt_level_strict_acc", 0.22),
        ("ifeval", "inst_level_strict_acc", 0.3381),
        ("mbpp_3shot", "pass@1", 0.558),
        ("humaneval_0shot", "pass@1", 0.4878),
    )
)
"""Qwen3-1.7B-Base by the vLLM backend: seed 42, greedy, bfloat16, context of 4,096."""

"""The requirements of a gate, from the command line or a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from rollyard.analysis.metrics.paired.metric import SOLVE_RATE, Metric
from rollyard.records.errors import OperatorError
from rollyard.records.io.yaml_aliases import check_aliases
from rollyard.services.server.settings import parse_settings

DEFAULT_MAX_DROP = 0.01


class GateRule(BaseModel):
    """A requirement on the difference between candidate and baseline in one metric. Set `max_drop` or `min_gain`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    metric: str = SOLVE_RATE
    """solve_rate, reward, pass@k, cons@k, output_tokens, turns, tool_calls, seconds, or a numeric key of the rows."""
    dataset: str | None = None
    """The dataset of a mixture; default: all tasks."""
    max_drop: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """How much worse the candidate may be."""
    min_gain: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """How much better the candidate must be."""
    better: Literal["higher", "lower"] | None = None
    """Which values are better; default: lower for tokens, turns, tool calls and seconds, else higher."""

    @property
    def lower_is_better(self) -> bool:
        return Metric(self.metric).is_cost if self.better is None else self.better == "lower"

    @property
    def least_gain(self) -> float:
        """The gain that the candidate must exceed; negative if a drop is allowed."""
        return self.min_gain if self.min_gain is not None else -(self.max_drop or 0.0)


class GateRules(BaseModel):
    """The contents of a rules file."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rules: list[GateRule] = Field(min_length=1)
    """The candidate must meet every rule."""


def checked(rule: GateRule, source: str) -> GateRule:
    """Return the rule. Raises OperatorError unless it has either a largest drop or a smallest gain."""
    if (rule.max_drop is None) == (rule.min_gain is None):
        raise OperatorError(f"{source}: the rule for {rule.metric} needs either max_drop or min_gain, not both")
    return rule


def read_rules(path: Path) -> list[GateRule]:
    """Read the rules from a YAML file. Raises OperatorError if it is invalid."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        check_aliases(text)
        tree = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).replace("\n", " ")
        raise OperatorError(f"rules {str(path)!r} cannot be read: {reason}") from error
    if not isinstance(tree, dict):
        raise OperatorError(f"{path} contains no mapping; expected rules: [{{metric: solve_rate, max_drop: 0.01}}]")
    return [checked(rule, str(path)) for rule in parse_settings(GateRules, tree, str(path)).rules]

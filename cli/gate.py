"""ng_gate: decides whether a candidate may replace a baseline. The exit status is the verdict."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field

from rollyard.analysis.gate import DEFAULT_MAX_DROP, GateRule, GateVerdict, RuleResult, decide
from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.run_pair import Metric, PairLevel
from rollyard.analysis.report.comparison_report import change, tasks_listed, value
from rollyard.analysis.report.formatting import measured
from rollyard.cli.options import Options, folder_names, read_options, rollout_files, run_command
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import check_output, named_files
from rollyard.records.terminal import plain_line
from rollyard.records.yaml_aliases import check_aliases
from rollyard.services.server.settings import dashed, parse_settings

EXAMPLE = "ng_gate results/base.jsonl results/trained.jsonl --max-drop 0.02 --output-json-fpath results/gate.json"


class GateOptions(Options):
    SUBJECT: ClassVar[str] = "jsonl_fpath"

    jsonl_fpath: list[Path] = Field(default_factory=list)
    """Rollout files or evaluation folders, if they are not given without a key: the baseline, then the candidate."""
    names: list[str] = Field(default_factory=list)
    """Names of the runs; default: the file names."""
    metric: str = "solve_rate"
    """solve_rate, reward, pass@k, cons@k, output_tokens, turns, tool_calls, seconds, or a numeric key of the rows."""
    dataset: str | None = None
    """The dataset of a mixture; default: all tasks."""
    max_drop: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """How much worse the candidate may be; default for metrics in 0..1: 0.01."""
    min_gain: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """How much better the candidate must be, instead of max_drop."""
    rules: Path | None = None
    """YAML file with several rules, all of which must be met, instead of the four options above."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Intervals have the level 1 - alpha; a candidate at the limit gets a GO with a probability of about alpha / 2."""
    min_coverage: float | None = Field(default=None, gt=0, le=1)
    """Smallest share of the expected rollouts that must be measured in each run; default: all."""
    allow_different: list[str] = Field(default_factory=list)
    """Settings that may differ between the runs, as printed by a refusal; `tasks` compares only the common tasks."""
    pass_threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Minimum reward that counts as solved; default: the environment's `success`, or 1 if all rewards are in 0..1."""
    seed: int = Field(default=0, ge=0)
    """Seed of the bootstrap."""
    resamples: int = Field(default=10_000, ge=100)
    """Number of bootstrap resamples."""
    json_output: bool = Field(default=False, alias="json")
    """Print JSON instead of text."""
    output_json_fpath: Path | None = None
    """Also write the verdict as JSON to this file."""
    workers: int = Field(default=1, ge=1)
    """Number of processes that read a file."""


def main() -> None:
    run_command("ng_gate", GateOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Decide whether the run CANDIDATE may replace BASELINE, both rollout files or evaluation folders. Exit status: 0
    GO, 1 NO-GO, 3 INCONCLUSIVE, 2 no verdict (wrong usage, unreadable or incomplete runs, different tasks or settings).
    """
    try:
        status = _gate(arguments)
        sys.stdout.flush()
        return status
    except OperatorError:
        raise
    except (RunError, OSError) as error:
        # Status 1 means NO-GO.
        raise OperatorError(f"no verdict: {error}") from error
    except Exception as error:
        raise OperatorError(
            f"no verdict: internal error: {type(error).__name__}: {error} (--debug shows where)"
        ) from error


def _gate(arguments: Sequence[str]) -> int:
    options, _ = read_options(GateOptions, arguments)
    given = options.jsonl_fpath
    paths = rollout_files(given)
    if len(paths) != 2:
        raise OperatorError(f"{len(paths)} rollout files given; expected two: ng_gate base.jsonl candidate.jsonl")
    rules = _rules(options)
    if options.output_json_fpath is not None:
        check_output(options.output_json_fpath, paths)
    files = named_files(paths, options.names or folder_names(given))
    baseline, candidate = (
        load(path, name, pass_threshold=options.pass_threshold, workers=options.workers) for name, path in files
    )
    found = decide(
        baseline,
        candidate,
        rules,
        PairLevel(options.alpha, seed=options.seed, resamples=options.resamples),
        version=version("rollyard"),
        min_coverage=options.min_coverage,
        allow_different=options.allow_different,
    )
    data = orjson.dumps(found.model_dump(), option=orjson.OPT_INDENT_2) + b"\n"
    if options.output_json_fpath is not None:
        replace(options.output_json_fpath, data)
    if options.json_output:
        print(data.decode(), end="")
    else:
        print_verdict(found)
    return found.decision.exit_status


def _rules(options: GateOptions) -> list[GateRule]:
    if options.rules is not None:
        for name in ("dataset", "max_drop", "min_gain"):
            if getattr(options, name) is not None:
                raise OperatorError(f"{dashed(name)} cannot be combined with --rules; write it into {options.rules}")
        return read_rules(options.rules)
    drop = options.max_drop
    if drop is None and options.min_gain is None:
        if not Metric(options.metric).is_share:
            raise OperatorError(f"{options.metric} has no default limit; pass --max-drop ... or --min-gain ...")
        drop = DEFAULT_MAX_DROP
    rule = GateRule(metric=options.metric, dataset=options.dataset, max_drop=drop, min_gain=options.min_gain)
    return [checked(rule, "command line")]


class GateRules(BaseModel):
    """The contents of a rules file."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rules: list[GateRule] = Field(min_length=1)


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


_TASKS = 10


def print_verdict(found: GateVerdict) -> None:
    print(plain_line(f"{found.decision}: {found.candidate.name} against {found.baseline.name}, {found.tasks:,} tasks"))
    for result in found.rules:
        _print_rule(result)
    for one in (found.baseline, found.candidate):
        print(plain_line(f"  {one.name}: {measured(one.coverage)} ({one.path})"))
    for name, tasks in (("regressed", found.regressed), ("improved", found.improved)):
        if tasks.total:
            listed = tasks_listed(tasks, found.changed_by, _TASKS)
            print(plain_line(f"  {name}: {tasks.total:,} tasks by {found.changed_by}: {listed}"))
    if found.settings:
        print(plain_line(f"  different settings, allowed: {'; '.join(found.settings)}"))
    for note in found.notes:
        print(plain_line(f"  note: {note}"))


def _print_rule(result: RuleResult) -> None:
    one = result.difference
    print(plain_line(f"  {result.decision:<12}  {result.requirement}"))
    print(
        plain_line(
            f"                {value(one.metric, one.baseline)} -> {value(one.metric, one.candidate)}, difference "
            f"{change(one.metric, one.difference)} over {one.tasks:,} tasks. {result.reason}"
        )
    )
    if result.missing_baseline or result.missing_candidate:
        print(
            f"                Missing rollouts: {result.missing_baseline:,} of the baseline, "
            f"{result.missing_candidate:,} of the candidate. The lower bound counts them against the candidate, the "
            "upper bound in its favour."
        )

"""ng_gate: decides whether a candidate may replace a baseline. The exit status is the verdict."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import Field

from rollyard.analysis.gate.decision import decide
from rollyard.analysis.gate.rules import DEFAULT_MAX_DROP, GateRule, checked, read_rules
from rollyard.analysis.metrics.loader.load_run import load
from rollyard.analysis.metrics.paired.bootstrap import RESAMPLES
from rollyard.analysis.metrics.paired.difference import Level
from rollyard.analysis.metrics.paired.metric import SOLVE_RATE, Metric
from rollyard.cli.arguments.positional import folder_names, rollout_files
from rollyard.cli.display.gate_view import print_verdict
from rollyard.cli.options import Options, read_options, run_command
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.jsonl import replace
from rollyard.records.rollouts.rollout_files import check_output, named_files
from rollyard.services.server.settings import dashed

EXAMPLE = "ng_gate results/base.jsonl results/trained.jsonl --max-drop 0.02 --output-json-fpath results/gate.json"


class GateOptions(Options):
    SUBJECT: ClassVar[str] = "jsonl_fpath"

    jsonl_fpath: list[Path] = Field(default_factory=list)
    """Rollout files or evaluation folders, if they are not given without a key: the baseline, then the candidate."""
    names: list[str] = Field(default_factory=list)
    """Names of the runs; default: the file names."""
    metric: str = SOLVE_RATE
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
    resamples: int = Field(default=RESAMPLES, ge=100)
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
        Level(options.alpha, seed=options.seed, resamples=options.resamples),
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

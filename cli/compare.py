"""ng_compare: compares runs on the same tasks: how large a difference is, and whether it is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import Field

from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.paired_tests import RESAMPLES
from rollyard.analysis.metrics.run_pair import (
    SOLVE_RATE,
    Level,
    Metric,
    RunComparisons,
    RunPair,
    compare_runs,
    with_holm,
)
from rollyard.analysis.report import html, markdown
from rollyard.analysis.report.comparison_report import document
from rollyard.cli.comparison_view import print_comparisons
from rollyard.cli.options import Options, folder_names, read_options, rollout_files, run_command
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import named_files
from rollyard.records.script import EXIT_DONE, EXIT_FAILED

EXAMPLE = "ng_compare results/base.jsonl results/trained.jsonl --effect 0.02 --output-dir results/compared"


class CompareOptions(Options):
    SUBJECT: ClassVar[str] = "jsonl_fpath"

    jsonl_fpath: list[Path] = Field(default_factory=list)
    """Rollout files or evaluation folders, in addition to those given without a key. The first is the baseline."""
    names: list[str] = Field(default_factory=list)
    """Names of the runs; default: the file names."""
    metric: list[str] = Field(default_factory=list)
    """solve_rate, reward, pass@k, cons@k, output_tokens, turns, tool_calls, seconds, or a numeric key of the rows;
    default: solve rate and mean reward, as far as they are defined."""
    pass_threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Minimum reward that counts as solved; default: the environment's `success`, or 1 if all rewards are in 0..1."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Level of the tests. Intervals have the level 1 - alpha."""
    effect: float | None = Field(default=None, gt=0)
    """A difference of the solve rate, or of the metrics that --metric names, for which the number of needed tasks is
    printed, such as 0.02."""
    seed: int = Field(default=0, ge=0)
    """Seed of the bootstrap."""
    resamples: int = Field(default=RESAMPLES, ge=100)
    """Number of bootstrap resamples."""
    as_json: bool = Field(default=False, alias="json")
    """Print JSON instead of text."""
    output_dir: Path | None = None
    """Also write comparison.md, comparison.html and comparison.json to this folder."""
    workers: int = Field(default=1, ge=1)
    """Number of processes that read a file."""


def main() -> None:
    run_command("ng_compare", CompareOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Compare the runs BASELINE CANDIDATE [CANDIDATE ...], rollout files or evaluation folders, task by task."""
    options, _ = read_options(CompareOptions, arguments)
    given = options.jsonl_fpath
    paths = rollout_files(given)
    if len(paths) < 2:
        raise OperatorError(
            f"{len(paths)} rollout files given; expected at least two: ng_compare base.jsonl candidate.jsonl"
        )
    level = Level(options.alpha, options.effect, options.seed, options.resamples)
    metrics = [Metric(name) for name in options.metric]
    (name, path), *candidates = named_files(paths, options.names or folder_names(given))
    baseline = load(path, name, pass_threshold=options.pass_threshold, workers=options.workers)
    pairs = [
        # One candidate at a time, so that memory does not grow with their number.
        compare_runs(
            baseline, load(path, name, pass_threshold=options.pass_threshold, workers=options.workers), metrics, level
        )
        for name, path in candidates
    ]
    if level.effect is not None and not options.metric and not any(map(_needs_tasks, pairs)):
        raise OperatorError(
            "--effect is a difference of the solve rate, which these runs do not have; name its metric: --metric reward"
        )
    pairs, tests = with_holm(pairs)
    found = RunComparisons(
        version=version("rollyard"),
        alpha=level.alpha,
        effect=level.effect,
        seed=level.seed,
        resamples=level.resamples,
        tests=tests,
        pairs=pairs,
    )
    written = [] if options.output_dir is None else _write(found, options.output_dir)
    if options.as_json:
        print(orjson.dumps(found.model_dump(), option=orjson.OPT_INDENT_2).decode())
    else:
        print_comparisons(found, written)
    return EXIT_DONE if all(pair.tasks for pair in pairs) else EXIT_FAILED


def _needs_tasks(pair: RunPair) -> bool:
    return not pair.tasks or any(one.metric == SOLVE_RATE for one in pair.differences)


def _write(found: RunComparisons, folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"output_dir {str(folder)!r} cannot be created: {error.strerror}") from error
    title, sections = document(found)
    footer = f"Written by ng_compare, rollyard {found.version}."
    pages = {
        "comparison.md": markdown.page(title, sections, footer).encode(),
        "comparison.html": html.page(title, sections, footer).encode(),
        "comparison.json": orjson.dumps(found.model_dump(), option=orjson.OPT_INDENT_2) + b"\n",
    }
    for name, data in pages.items():
        replace(folder / name, data)
    return [folder / name for name in pages]

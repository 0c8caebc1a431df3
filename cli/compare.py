"""ng_compare: compares runs on the same tasks: how large a difference is, and whether it is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import Field

from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.run_pair import (
    SOLVE_RATE,
    Metric,
    PairLevel,
    RunComparisons,
    RunPair,
    compare_runs,
    with_holm,
)
from rollyard.analysis.metrics.verdicts import VerdictComparison
from rollyard.analysis.report.comparison_report import (
    accepted_table,
    agreement,
    answers_listed,
    chance,
    change,
    disagreements,
    document,
    error_rates,
    label,
    reach,
    tasks_listed,
    value,
    verdict,
)
from rollyard.analysis.report.document import html_page, markdown_page
from rollyard.analysis.report.formatting import ViewerLinks, measured
from rollyard.cli.options import Options, folder_names, read_options, rollout_files, run_command
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import named_files
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.records.terminal import plain_line

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
    resamples: int = Field(default=10_000, ge=100)
    """Number of bootstrap resamples."""
    as_json: bool = Field(default=False, alias="json")
    """Print JSON instead of text."""
    output_dir: Path | None = None
    """Also write comparison.md, comparison.html and comparison.json to this folder."""
    viewer: str | None = Field(default=None, pattern=r"^https?://[^\s<>]+$")
    """Address of an ng_viewer with the same files in the same order, such as http://127.0.0.1:8080, for links to the
    answers on which two verdicts differ."""
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
    level = PairLevel(options.alpha, options.effect, options.seed, options.resamples)
    metrics = [Metric(name) for name in options.metric]
    (name, path), *candidates = named_files(paths, options.names or folder_names(given))
    baseline = load(path, name, pass_threshold=options.pass_threshold, workers=options.workers)
    pairs = [
        # One candidate at a time, so that memory does not grow with their number.
        compare_runs(
            baseline,
            load(path, name, pass_threshold=options.pass_threshold, workers=options.workers),
            metrics,
            level,
            pass_threshold=options.pass_threshold,
        )
        for name, path in candidates
    ]
    has_solve_rate = any(not pair.tasks or any(one.metric == SOLVE_RATE for one in pair.differences) for pair in pairs)
    if level.effect is not None and not options.metric and not has_solve_rate:
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
    viewer = ViewerLinks(options.viewer or "")
    written = [] if options.output_dir is None else _write(found, options.output_dir, viewer)
    if options.as_json:
        print(orjson.dumps(found.model_dump(), option=orjson.OPT_INDENT_2).decode())
    else:
        print_comparisons(found, written, viewer)
    return EXIT_DONE if all(pair.tasks for pair in pairs) else EXIT_FAILED


def _write(found: RunComparisons, folder: Path, viewer: ViewerLinks) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"output_dir {str(folder)!r} cannot be created: {error.strerror}") from error
    title, sections = document(found, viewer)
    footer = f"Written by ng_compare, rollyard {found.version}."
    pages = {
        "comparison.md": markdown_page(title, sections, footer).encode(),
        "comparison.html": html_page(title, sections, footer).encode(),
        "comparison.json": orjson.dumps(found.model_dump(), option=orjson.OPT_INDENT_2) + b"\n",
    }
    for name, data in pages.items():
        replace(folder / name, data)
    return [folder / name for name in pages]


_TASKS = 10


def print_comparisons(found: RunComparisons, written: Sequence[Path], viewer: ViewerLinks) -> None:
    for number, pair in enumerate(found.pairs, 1):
        _print_pair(pair, found, number, viewer)
    if found.tests > 1:
        print(f"p (Holm) is corrected for {found.tests} tests; intervals are not corrected.")
    for index, path in enumerate(written):
        print(f"{'report' if index == 0 else '':<12} {path}")


def _print_pair(pair: RunPair, found: RunComparisons, number: int, viewer: ViewerLinks) -> None:
    print(plain_line(f"{pair.candidate.name} minus {pair.baseline.name}, over {pair.tasks:,} common tasks"))
    for one in (pair.baseline, pair.candidate):
        print(plain_line(f"  {one.name}: {measured(one.coverage)}, {one.tasks:,} tasks"))
    if pair.only_baseline or pair.only_candidate:
        print(plain_line(f"  not compared: {pair.only_baseline:,} and {pair.only_candidate:,} tasks of only one run"))
    for note in pair.notes:
        print(plain_line(f"  note: {note}"))
    if not pair.tasks:
        return
    print_table(_rows(pair, found))
    for difference in pair.differences:
        if difference.dataset is None:
            print(plain_line(f"  {difference.metric}: {verdict(difference, found.alpha)}"))
        if found.effect is not None and difference.tasks_needed is not None:
            effect = change(difference.metric, found.effect).lstrip("+")
            print(
                plain_line(
                    f"  {label(difference)}: detecting a difference of {effect} takes about "
                    f"{difference.tasks_needed:,} tasks ({difference.tasks:,} here)"
                )
            )
    for name, tasks in (("gained", pair.gained), ("lost", pair.lost)):
        if tasks.total:
            listed = tasks_listed(tasks, pair.changed_by, _TASKS)
            print(plain_line(f"  {name}: {tasks.total:,} tasks by {pair.changed_by}: {listed}"))
    if pair.verdicts is not None:
        _print_verdicts(pair, pair.verdicts, number, viewer)
    if pair.settings:
        print(plain_line(f"  different settings: {'; '.join(pair.settings)}"))
    print()


_ANSWERS = 5


def _print_verdicts(pair: RunPair, verdicts: VerdictComparison, number: int, viewer: ViewerLinks) -> None:
    names = pair.baseline.name, pair.candidate.name
    print(plain_line(f"  {agreement(verdicts)}"))
    print_table(accepted_table(verdicts, names))
    for what, answers in disagreements(verdicts, names):
        listed = answers_listed(answers, _ANSWERS)
        print(plain_line(f"  {what}: {answers.total:,} answers (task/repeat): {listed}"))
        for one in answers.answers[:_ANSWERS] if viewer else ():
            print(plain_line(f"    {viewer.side_by_side(0, number, one.task, one.repeat)}"))
    if disagreements(verdicts, names) and not viewer:
        files = plain_line(f"{pair.baseline.path} {pair.candidate.path}")
        print(f"  to read them: ng_viewer {files}, and --viewer with its address prints links")
    if verdicts.errors is not None:
        print("  of the labelled answers:")
        print_table(error_rates(verdicts, names))


def _rows(pair: RunPair, found: RunComparisons) -> list[tuple[str, ...]]:
    corrected = any(one.p_holm is not None for one in pair.differences)
    level = f"{100 * (1 - found.alpha):.6g}% interval"
    head = ("", "baseline", "candidate", "difference", level, "p", *(["p (Holm)"] if corrected else []), "detectable")
    rows: list[tuple[str, ...]] = [head]
    compared = {one.metric for one in pair.differences}
    costs = [one for one in pair.costs if one.metric not in compared]
    for one in [*pair.differences, *costs]:
        is_cost = one in costs
        rows.append(
            (
                label(one),
                *(value(one.metric, one.baseline), value(one.metric, one.candidate)),
                *(change(one.metric, one.difference), reach(one)),
                *(("",) if is_cost else (chance(one.p),)),
                *(("" if is_cost else chance(one.p_holm),) if corrected else ()),
                "" if is_cost else change(one.metric, one.detectable_effect).lstrip("+"),
            )
        )
    return rows


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows as aligned columns. The first column contains names."""
    rows = [tuple(plain_line(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        print(f"  {row[0]:<{widths[0]}}  {'  '.join(cells)}".rstrip())

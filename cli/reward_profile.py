"""ng_reward_profile: writes a report on rollout files in Markdown, JSON and HTML."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import Field
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from rollyard.analysis.findings.detector import Findings
from rollyard.analysis.findings.find import findings_of
from rollyard.analysis.metrics.comparison import difference
from rollyard.analysis.metrics.load import Progress as ReportProgress
from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.training_steps import SeriesProfile, series_profile
from rollyard.analysis.report.document import Report, html, markdown
from rollyard.analysis.report.formatting import ViewerLinks
from rollyard.analysis.report.terminal_summary import summary, task_rows
from rollyard.cli.console import PLAIN_EVERY_S, console, is_terminal
from rollyard.cli.file_steps import file_steps
from rollyard.cli.options import Options, read_options, rollout_files, run_command
from rollyard.records.data_files import DataFile, DataFiles
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import named_files
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.services.config.plugins import search_roots

EXAMPLE = "ng_reward_profile results/base.jsonl results/trained.jsonl --output-dir results/compared"


PARALLEL_MIN_BYTES = 256 << 20
"""Files of at least this many bytes are read by several processes; starting them takes 0.5 s."""


class ProfileOptions(Options):
    SUBJECT: ClassVar[str] = "jsonl_fpath"
    EXPRESSIONS: ClassVar[Collection[str]] = ("where",)
    RETIRED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("clusters", "clusters_where"), "the report's findings say what failed rollouts have in common"
    )

    jsonl_fpath: list[Path] = Field(default_factory=list)
    """Rollout files. The first is compared with each of the others, task by task."""
    output_dir: Path | None = None
    """Folder for profile.md, profile.json and profile.html; default: X_profile/ next to the first file X.jsonl."""
    report_name: str = Field(default="profile", pattern=r"^[^/]+$")
    """Name of the report's files without the extension; with --where, the default ends with the expression."""
    names: list[str] = Field(default_factory=list)
    """Names of the runs; default: the file names."""
    series: bool = False
    """The files are the steps of a training run. The report begins with curves over them, the tasks by steps, and what
    was learned and forgotten, and profiles the first and the last one."""
    steps: list[int] = Field(default_factory=list)
    """The step of each file of a series; default: those in their names, folders or manifests (step_25.jsonl)."""
    pass_threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Minimum reward that counts as solved; default: the environment's `success`, or 1 if all rewards are in 0..1."""
    where: str | None = None
    """Count only the rollouts that meet this expression, such as `reward < 0.5 and tool_calls > 3`. The report is
    another one than that of all rollouts: profile_where_reward_lt_0_5_and_tool_calls_gt_3.md."""
    output_jsonl_fpath: Path | None = None
    """Also write one row per task with NeMo Gym's keys (avg_reward, pass_rate, ...); for a single rollout file only."""
    input_jsonl_fpath: str | None = None
    """The dataset, one row per task. It defines the expected tasks, and its rows are joined with those of
    output_jsonl_fpath."""
    materialized_inputs_jsonl_fpath: Path | None = None
    """NeMo Gym's materialized inputs, one row per rollout. They define the number of expected rollouts."""
    findings: bool = True
    """Also look for what stands out in the rollouts, such as give-ups and exploits. Reads each file a second time."""
    viewer: str | None = Field(default=None, pattern=r"^https?://[^\s<>]+$")
    """Address of an ng_viewer with the same files in the same order, such as http://127.0.0.1:8080. The report links to
    its rollouts."""
    allow_partial_rollouts: bool = True
    """If false, missing rollouts cause exit status 1. They are reported in any case."""
    workers: int | None = Field(default=None, ge=1)
    """Number of processes that read a file; default: one per CPU for files of 256 MB or more, otherwise one."""


def main() -> None:
    run_command("ng_reward_profile", ProfileOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Report success, rewards, pass@k, coverage, failures, tokens and time of one or more runs."""
    options, _ = read_options(ProfileOptions, arguments)
    files = named_files(rollout_files(options.jsonl_fpath), options.names)
    for key in ("output_jsonl_fpath", "materialized_inputs_jsonl_fpath"):
        if len(files) > 1 and getattr(options, key) is not None:
            raise OperatorError(
                f"{key} can only be used with a single rollout file, found {len(files)}: profile each file separately"
            )
    steps = _steps(options, [path for _, path in files])
    places = list(range(len(files)))
    if steps is not None:
        places.sort(key=steps.__getitem__)
        steps, files = [steps[at] for at in places], [files[at] for at in places]
        places = [places[0], places[-1]]
    profiled = files if steps is None else [files[0], files[-1]]
    _, first = files[0]
    folder = options.output_dir or first.with_name(f"{first.stem}_profile")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"output_dir {str(folder)!r} cannot be created: {error.strerror}") from error
    address = options.input_jsonl_fpath
    inputs = None if address is None else DataFiles(search_roots(Path.cwd())).get(address)
    runs = [_load(path, name, options, inputs) for name, path in profiled]
    found = [one.profile for one in runs]
    report = Report(
        version=version("rollyard"),
        runs=found,
        differences=[difference(runs[0], other) for other in runs[1:]],
        findings=_all_findings(runs, options),
        series=None if steps is None else _series(steps, files, runs, options),
    )
    links = ViewerLinks(options.viewer or "", tuple(places), options.where or "")
    written = _write(report, folder, _report_name(options), links)
    if options.output_jsonl_fpath is not None:
        rows = task_rows(runs[0], options.pass_threshold, inputs)
        replace(options.output_jsonl_fpath, b"".join(rows))
        written.append(options.output_jsonl_fpath)
    summary(report, written)
    incomplete = [profile.name for profile in found if profile.coverage.missing]
    if incomplete and not options.allow_partial_rollouts:
        return EXIT_FAILED
    return EXIT_DONE if all(profile.coverage.measured for profile in found) else EXIT_FAILED


_OPERATORS = {"<=": " le ", ">=": " ge ", "==": " eq ", "!=": " ne ", "<": " lt ", ">": " gt ", "=": " eq "}
_MAX_NAME = 80


def _report_name(options: ProfileOptions) -> str:
    """Return the name of the report; a selection of rollouts does not replace the report on all of them."""
    if options.where is None or "report_name" in options.model_fields_set:
        return options.report_name
    text = options.where
    for operator, word in _OPERATORS.items():
        text = text.replace(operator, word)
    name = "_".join(re.findall(r"\w+", text))
    if len(name) > _MAX_NAME:
        name = f"{name[:_MAX_NAME]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return f"{options.report_name}_where_{name}"


def _steps(options: ProfileOptions, paths: Sequence[Path]) -> list[int] | None:
    """Return the step of each file; None if they are not a series. Raises OperatorError if their steps are unknown."""
    if not options.series and not options.steps:
        return None
    if options.where is not None:
        raise OperatorError("series and where cannot be combined: the figures of a step are those of all its rollouts")
    if len(paths) < 2:
        raise OperatorError(f"a series needs at least two rollout files, found {len(paths)}")
    steps = file_steps(paths, options.steps)
    if steps is None:
        raise OperatorError(
            "the steps of the files are unknown: expected different numbers in their names (step_25.jsonl), folders or "
            "manifests; state them with --steps 0,25,50"
        )
    return steps


def _series(
    steps: Sequence[int], files: Sequence[tuple[str, Path]], runs: Sequence[Run], options: ProfileOptions
) -> SeriesProfile:
    from rollyard.analysis.viewer.series import read_series  # takes FastAPI along, which no other report needs

    named = [(step, name, path) for step, (name, path) in zip(steps, files, strict=True)]
    read, errors = read_series(named, threshold=options.pass_threshold)
    return series_profile(read, runs[0], runs[-1], errors)


def _all_findings(runs: Sequence[Run], options: ProfileOptions) -> list[Findings | None]:
    """Return the findings of each run; in a series, only those of the last step."""
    if not options.findings:
        return []
    is_series = options.series or bool(options.steps)
    # Failed attempts meet no condition, so a selection of rollouts has none.
    has_attempts = options.where is None
    return [
        None
        if is_series and run is not runs[-1]
        else findings_of(run, workers=_workers(run.file, options), has_attempts=has_attempts)
        for run in runs
    ]


def _load(path: Path, name: str, options: ProfileOptions, inputs: DataFile | None) -> Run:
    size = path.stat().st_size if path.is_file() else 0
    with _progress(name, size) as report_progress:
        return load(
            path,
            name,
            pass_threshold=options.pass_threshold,
            inputs=inputs,
            materialized=options.materialized_inputs_jsonl_fpath,
            workers=_workers(path, options),
            progress=report_progress,
            where=options.where,
        )


@contextmanager
def _progress(name: str, size: int) -> Iterator[ReportProgress]:
    """Show the reading progress: a bar in a terminal, otherwise a line every ten seconds."""
    if is_terminal(sys.stderr):
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
            task = bar.add_task(name, total=size)
            yield lambda count: bar.advance(task, count)
        return
    done, last = 0, time.monotonic()

    def report_progress(count: int) -> None:
        nonlocal done, last
        done += count
        if time.monotonic() - last >= PLAIN_EVERY_S:
            last = time.monotonic()
            print(f"{name}: {done / 1e6:,.0f} of {size / 1e6:,.0f} MB read", file=sys.stderr, flush=True)

    yield report_progress


def _workers(path: Path | None, options: ProfileOptions) -> int:
    size = path.stat().st_size if path is not None and path.is_file() else 0
    return options.workers or (len(os.sched_getaffinity(0)) if size >= PARALLEL_MIN_BYTES else 1)


def _write(report: Report, folder: Path, name: str, viewer: ViewerLinks) -> list[Path]:
    written = []
    for suffix, data in (
        ("md", markdown(report, viewer).encode()),
        ("json", orjson.dumps(report.model_dump(), option=orjson.OPT_INDENT_2) + b"\n"),
        ("html", html(report, viewer).encode()),
    ):
        path = folder / f"{name}.{suffix}"
        replace(path, data)
        written.append(path)
    return written

"""ng_reward_profile: writes a report on rollout files in Markdown, JSON and HTML."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import Field
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from rollyard.services.cli.display.console import console, is_terminal
from rollyard.services.cli.display.progress_bar import PLAIN_EVERY_S
from rollyard.services.cli.options import Options, read_options, run_command
from rollyard.services.datasets.data_files import DataFile, DataFiles
from rollyard.services.errors import OperatorError
from rollyard.services.io.exit_status import EXIT_DONE, EXIT_FAILED
from rollyard.services.io.jsonl import replace
from rollyard.services.io.search_path import INSTALLED
from rollyard.services.metrics.comparison import difference
from rollyard.services.metrics.loader.load_run import load
from rollyard.services.metrics.loader.parallel_reader import Progress as ReportProgress
from rollyard.services.metrics.profile import Run
from rollyard.services.report.document import Report
from rollyard.services.report.html import html
from rollyard.services.report.markdown import markdown
from rollyard.services.report.task_rows import task_rows
from rollyard.services.report.terminal_summary import summary
from rollyard.services.rollouts.rollout_files import named_files

EXAMPLE = "ng_reward_profile +jsonl_fpath=[results/base.jsonl,results/trained.jsonl] +output_dir=results/compared"


PARALLEL_MIN_BYTES = 256 << 20
"""Files of at least this many bytes are read by several processes; starting them takes 0.5 s."""


class ProfileOptions(Options):
    EXPRESSIONS: ClassVar[Collection[str]] = ("where",)

    jsonl_fpath: list[Path] = Field(default_factory=list)
    """Rollout files. The first is compared with each of the others, task by task."""
    rollouts_jsonl_fpath: list[Path] = Field(default_factory=list)
    """NeMo Gym's name for jsonl_fpath."""
    output_dir: Path | None = None
    """Folder for profile.md, profile.json and profile.html; default: X_profile/ next to the first file X.jsonl."""
    report_name: str = Field(default="profile", pattern=r"^[^/]+$")
    """Name of the report's files without the extension."""
    names: list[str] = Field(default_factory=list)
    """Names of the runs; default: the file names."""
    pass_threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Minimum reward that counts as solved; default: the environment's `success`, or 1 if all rewards are in 0..1."""
    where: str | None = None
    """Count only the rollouts that meet this expression, such as `reward < 0.5 and tool_calls > 3`."""
    output_jsonl_fpath: Path | None = None
    """Also write one row per task with NeMo Gym's keys (avg_reward, pass_rate, ...); for a single rollout file only."""
    input_jsonl_fpath: str | None = None
    """The dataset, one row per task. It defines the expected tasks, and its rows are joined with those of
    output_jsonl_fpath."""
    materialized_inputs_jsonl_fpath: Path | None = None
    """NeMo Gym's materialized inputs, one row per rollout. They define the number of expected rollouts."""
    allow_partial_rollouts: bool = True
    """If false, missing rollouts cause exit status 1. They are reported in any case."""
    workers: int | None = Field(default=None, ge=1)
    """Number of processes that read a file; default: one per CPU for files of 256 MB or more, otherwise one."""


def main() -> None:
    run_command("ng_reward_profile", ProfileOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Report success, rewards, pass@k, coverage, failures, tokens and time of one or more runs."""
    options, _ = read_options(ProfileOptions, arguments)
    files = named_files([*options.jsonl_fpath, *options.rollouts_jsonl_fpath], options.names)
    _check(options, len(files))
    _, first = files[0]
    folder = options.output_dir or first.with_name(f"{first.stem}_profile")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"output_dir {str(folder)!r} cannot be created: {error.strerror}") from error
    address = options.input_jsonl_fpath
    inputs = None if address is None else DataFiles([Path.cwd(), INSTALLED]).get(address)
    runs = [_load(path, name, options, inputs) for name, path in files]
    found = [one.profile for one in runs]
    report = Report(
        version=version("rollyard"), runs=found, differences=[difference(runs[0], other) for other in runs[1:]]
    )
    written = _write(report, folder, options.report_name)
    if options.output_jsonl_fpath is not None:
        rows = task_rows(runs[0], options.pass_threshold, inputs)
        replace(options.output_jsonl_fpath, b"".join(rows))
        written.append(options.output_jsonl_fpath)
    summary(report, written)
    incomplete = [profile.name for profile in found if profile.coverage.missing]
    if incomplete and not options.allow_partial_rollouts:
        return EXIT_FAILED
    return EXIT_DONE if all(profile.coverage.measured for profile in found) else EXIT_FAILED


def _check(options: ProfileOptions, files: int) -> None:
    if files > 1:
        for name in ("output_jsonl_fpath", "materialized_inputs_jsonl_fpath"):
            if getattr(options, name) is not None:
                raise OperatorError(
                    f"{name} can only be used with a single rollout file, found {files}: profile each file separately"
                )


def _load(path: Path, name: str, options: ProfileOptions, inputs: DataFile | None) -> Run:
    size = path.stat().st_size if path.is_file() else 0
    workers = options.workers or (len(os.sched_getaffinity(0)) if size >= PARALLEL_MIN_BYTES else 1)
    with _progress(name, size) as report_progress:
        return load(
            path,
            name,
            pass_threshold=options.pass_threshold,
            inputs=inputs,
            materialized=options.materialized_inputs_jsonl_fpath,
            workers=workers,
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


def _write(report: Report, folder: Path, name: str) -> list[Path]:
    written = []
    for suffix, data in (
        ("md", markdown(report).encode()),
        ("json", orjson.dumps(report.model_dump(), option=orjson.OPT_INDENT_2) + b"\n"),
        ("html", html(report).encode()),
    ):
        path = folder / f"{name}.{suffix}"
        replace(path, data)
        written.append(path)
    return written

"""ng_browse: shows rollout files or a training run in the terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field, ValidationError

from rollyard.analysis.viewer.findings import FindingIndex
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.rollout_list import Query
from rollyard.cli.arguments.rollout_index import open_files, open_training_run, training_run_in
from rollyard.cli.display.console import is_terminal
from rollyard.cli.options import Options, read_options, run_command
from rollyard.cli.viewer import Replays
from rollyard.records.errors import OperatorError
from rollyard.records.expressions.parse import ExpressionError, parse, parse_field
from rollyard.records.io.exit_status import EXIT_DONE
from rollyard.records.io.optional import require
from rollyard.services.config.server_folders import search_roots

_PART = 8 << 20
"""Number of bytes that are read, in less than a second, before the first rollouts are shown."""
EXAMPLE = "ng_browse results/base.jsonl results/trained.jsonl --where 'reward < 0.5'"


class BrowseOptions(Options):
    SUBJECT: ClassVar[str] = "jsonl_fpath"
    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("where", "sort", "columns")

    jsonl_fpath: list[Path] = Field(default_factory=list)
    """Rollout files, which may still be growing."""
    rollouts_jsonl_fpath: list[Path] = Field(default_factory=list)
    """NeMo Gym's name for jsonl_fpath."""
    names: list[str] = Field(default_factory=list)
    """Names of the files; default: the file names."""
    steps: list[int] = Field(default_factory=list)
    """Training steps of the files, which are their order; default: those in their names, folders or manifests."""
    pass_threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Minimum reward that counts as solved; default: the environment's `success`, or 1 if all rewards are in 0..1."""
    where: str = ""
    """List only rollouts that meet an expression, such as `reward < 0.5 and tool_calls > 3`."""
    sort: str = "task"
    """The field to sort by; a leading `-` means descending order."""
    columns: str = ""
    """Columns of the list, separated by commas; `(prompt)` and `(verdict)` stand for the prompt and the fields that
    explain the reward."""
    server_roots: list[Path] = Field(default_factory=list)
    """Additional folders to search for environments whose replay.py draws their boards."""
    workers: int | None = Field(default=None, ge=1)
    """Number of processes that read a large file; default: one per CPU."""
    mouse: bool = True
    """Use the mouse. Without it, the terminal selects text itself."""


def main() -> None:
    run_command("ng_browse", BrowseOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Show rollouts in the terminal: the list, conversations, boards and findings. `?` lists the keys.

    Files and folders of evaluations may be named without an option. The folder of a training run shows the rollouts
    of each step.
    """
    options, _ = read_options(BrowseOptions, arguments)
    query = _query(options)
    index = _index([*options.jsonl_fpath, *options.rollouts_jsonl_fpath], options)
    require("textual", "browse", "ng_browse")
    if not (is_terminal(sys.stdout) and sys.stdin.isatty()):
        raise OperatorError("ng_browse needs a terminal for input and output; ng_viewer shows rollouts in a browser")
    # Only with the extra `browse`.
    from rollyard.analysis.browse.app import BrowseApp

    replays = Replays(search_roots(Path.cwd(), options.server_roots))
    findings = FindingIndex(index.find, workers=options.workers or len(os.sched_getaffinity(0)))
    app = BrowseApp(index, findings, replays, query)
    logging.basicConfig(level=logging.WARNING, handlers=[app.log_handler], force=True)
    try:
        index.start()
        app.run(mouse=options.mouse)
    finally:
        findings.close()
        index.close()
    return EXIT_DONE


def _query(options: BrowseOptions) -> Query:
    """Return the query of the list. Raises OperatorError if it is invalid."""
    try:
        if options.where:
            parse(options.where)
        parse_field(options.sort.removeprefix("-"))
        return Query(where=options.where, sort=options.sort, columns=options.columns)
    except (ExpressionError, ValidationError) as error:
        raise OperatorError(f"--where or --sort cannot be read: {error}") from error


def _index(given: Sequence[Path], options: BrowseOptions) -> FileIndex:
    """Return the index of the files, or of a training run. Raises OperatorError if they cannot be shown together."""
    run = training_run_in(given)
    if run is None:
        return open_files(
            given,
            options.names,
            options.steps,
            threshold=options.pass_threshold,
            workers=options.workers,
            part=_PART,
        )[0]
    index, _ = open_training_run(run, threshold=options.pass_threshold, workers=options.workers)
    status = index.status()
    numbers = [*(2 * step for step in status.rollouts), *(2 * step + 1 for step in status.evaluations)]
    if not numbers:
        raise OperatorError(f"{str(run)!r} is a training run without rollouts; its curves are in ng_viewer {run}")
    for number in sorted(numbers):
        index.find(number)
    return index


if __name__ == "__main__":
    main()

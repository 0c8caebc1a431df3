"""ng_eval_launcher: submits evaluations to SLURM, follows them, and collects their results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rollyard.launchers.slurm.client import SlurmClient
from rollyard.launchers.slurm.launch import (
    SlurmLaunch,
    find_launch,
    launch_parser,
    launch_root,
    make_launch_root,
    read_arguments,
)
from rollyard.launchers.slurm.scheduler import Scheduler
from rollyard.launchers.slurm.sweep import shown_value
from rollyard.records.errors import OperatorError
from rollyard.records.script import EXIT_DONE, EXIT_FAILED, ScriptParser, exit_status, positive
from rollyard.records.terminal import plain_line

if TYPE_CHECKING:
    from rollyard.launchers.slurm.launcher import SlurmLauncher
    from rollyard.launchers.slurm.report import LaunchStatus

COMMAND = "ng_eval_launcher"
WIDTH = 1000
"""Tables are printed completely; a narrow terminal wraps their lines."""
_MAX_VALUE = 40
_MAX_ERROR = 100
"""Characters of a cell."""
CONVERT = ("-m", "rollyard.launchers.conversion")


def main() -> None:
    given = sys.argv[1:]
    sys.exit(exit_status(COMMAND, lambda: run(given, os.environ), debug="--debug" in given))


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    given = [word for word in arguments if word != "--debug"]
    if "--version" in given:
        print(f"{COMMAND} (rollyard {version('rollyard')})")
        return EXIT_DONE
    if given[:1] and given[0] in SUBCOMMANDS:
        return SUBCOMMANDS[given[0]](given[1:], environ)
    if "--help" in given or "-h" in given:
        launch_parser().print_help()
        return EXIT_DONE
    options, overrides = read_arguments(given, environ)
    if not environ.get("LOG") and not options.dry:
        _warn("LOG is not set, so the launch is in /tmp, which nodes usually do not share; set LOG to a shared folder")
    if not options.dry:
        make_launch_root(options.log_root)
    launcher = _launcher(environ, contained=options.container is not None, dry=options.dry)
    return launcher.launch(options, overrides, given)


def status(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    from rollyard.launchers.slurm.report import launch_status

    parser = _parser("status", "Show the jobs of a launch, and how many of the rows are done.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    found = launch_status(_launch(given, environ), Scheduler(SlurmClient(environ)))
    if given.json:
        print(found.model_dump_json(indent=2))
    else:
        _print_status(found)
    return EXIT_DONE


def resume(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    parser = _parser("resume", "Submit missing jobs, and replace ended jobs of combinations that are not complete.")
    parser.add_argument("--jobs", type=positive, metavar="N", help="new number of jobs for each combination")
    given = parser.parse_args(arguments)
    return _launcher(environ).resume(_launch(given, environ), given.jobs)


def cancel(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    given = _parser("cancel", "Cancel all jobs of a launch, with their successors.").parse_args(arguments)
    return _launcher(environ).cancel(_launch(given, environ))


def collect(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    from rollyard.launchers.slurm.report import sweep_table, write_table

    parser = _parser("collect", "Collect the results of a launch: parameters, coverage and metrics in one table.")
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help="folder of results.md, .csv and .json")
    parser.add_argument("--pass-threshold", type=float, metavar="R", help="minimum reward that counts as solved")
    given = parser.parse_args(arguments)
    launch = _launch(given, environ)
    table = sweep_table(launch, given.pass_threshold)
    written = write_table(table, given.output_dir or launch.folder)
    _print_table(["name", *_short_names(table.parameters), "rollouts", *table.metrics], map(table.cells, table.rows))
    print(table.summary)
    for path in written:
        print(path)
    return EXIT_FAILED if table.incomplete else EXIT_DONE


SUBCOMMANDS = {"status": status, "resume": resume, "cancel": cancel, "collect": collect}


def _launcher(environ: Mapping[str, str], *, contained: bool = False, dry: bool = False) -> SlurmLauncher:
    # They read configs with OmegaConf, which --help and the subcommands do not need.
    from rollyard.launchers.conversion.cache import ConversionRequest, conversion_target, is_converted
    from rollyard.launchers.slurm.launch_planner import LaunchPlanner
    from rollyard.launchers.slurm.launcher import SlurmLauncher

    # A container has its own installation.
    here = os.path.abspath(sys.executable)  # noqa: PTH100 - resolving links would leave the virtual environment
    eval_command = "ng_eval" if contained else str(Path(here).with_name("ng_eval"))
    python = "python" if contained else here
    if not contained and not Path(eval_command).is_file():
        raise OperatorError(f"{eval_command} does not exist; install Rollyard again in this environment")

    def find_conversion(dcp: Path, config: Path, hf_path: Path | None, token: str) -> tuple[Path, bool]:
        request = ConversionRequest(dcp, config, environ, hf_path, token=token, remember=not dry)
        return conversion_target(request), is_converted(request)

    planner = LaunchPlanner(find_conversion, Path.cwd(), (eval_command,), (python, *CONVERT))
    return SlurmLauncher(planner, Scheduler(SlurmClient(environ)), _print_line, _warn)


def _parser(name: str, description: str) -> ScriptParser:
    parser = ScriptParser(prog=f"{COMMAND} {name}", description=description, allow_abbrev=False)
    parser.add_argument("folder", nargs="?", type=Path, metavar="LAUNCH_FOLDER", help="default: the newest in $LOG")
    parser.add_argument("--jobname", help="the newest launch with this job name")
    return parser


def _launch(given: argparse.Namespace, environ: Mapping[str, str]) -> SlurmLaunch:
    return find_launch(launch_root(environ), given.folder, given.jobname)


_print_line = partial(print, flush=True)


def _warn(text: str) -> None:
    print(f"{COMMAND}: {text}", file=sys.stderr, flush=True)


def _print_status(status: LaunchStatus) -> None:
    keys = list(dict.fromkeys(key for one in status.combinations for key in one.parameters))
    rows: list[list[str]] = []
    for job in status.conversion:
        rows.append([job.title, *[""] * len(keys), job.state, job.job_id or "", "", str(job.attempts), job.error])
    for one in status.combinations:
        values = [shown_value(one.parameters[key]) if key in one.parameters else "-" for key in keys]
        ids = ", ".join(job.job_id for job in one.jobs if job.job_id)
        rows.append([one.name, *values, one.states, ids, one.rows, str(one.attempts), one.error])
    titles = ["name", *_short_names(keys), "state", "jobs", "rows", "attempts", "last error"]
    print(plain_line(f"Launch {status.launch_id}: {status.folder}"))
    _print_table(titles, rows)
    print(plain_line(status.summary))


def _short_names(keys: Sequence[str]) -> list[str]:
    """Return the last parts of dotted keys, or the whole keys if these parts are not unique."""
    last = [key.rpartition(".")[2] for key in keys]
    return last if len(set(last)) == len(last) else list(keys)


def _print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from rollyard.cli.console import console

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(Text(plain_line(title)), no_wrap=True)
    for row in rows:
        # Text instead of str, because a value may contain brackets, which rich parses as markup.
        table.add_row(*(Text(_shorten(plain_line(cell), title)) for cell, title in zip(row, titles, strict=True)))
    console(sys.stdout, width=WIDTH).print(table)


def _shorten(text: str, title: str) -> str:
    limit = _MAX_ERROR if title == "last error" else max(_MAX_VALUE, 2 * len(title))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


if __name__ == "__main__":
    main()

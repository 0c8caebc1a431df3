"""ng_eval_launcher: submits evaluations to SLURM, follows them, and collects their results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from rollyard.cli.display.console import console
from rollyard.cli.display.launch_view import status_view, table_view
from rollyard.launchers.conversion import ConversionRequest, conversion_target, is_converted
from rollyard.launchers.slurm.client.slurm_client import SlurmClient
from rollyard.launchers.slurm.launch.launch_arguments import (
    launch_parser,
    launch_root,
    make_launch_root,
    read_arguments,
)
from rollyard.launchers.slurm.launch.launch_folder import find_launch
from rollyard.launchers.slurm.launch.launch_planner import LaunchPlanner
from rollyard.launchers.slurm.launch.launch_records import Launch
from rollyard.launchers.slurm.launch.launcher import Launcher
from rollyard.launchers.slurm.launch.model_choice import CachedCheckpoint
from rollyard.launchers.slurm.reports.launch_status import launch_status
from rollyard.launchers.slurm.reports.sweep_table import sweep_table, write_table
from rollyard.launchers.slurm.slurm_scheduler import SlurmScheduler
from rollyard.records.errors import OperatorError
from rollyard.records.io.exit_status import EXIT_DONE, EXIT_FAILED, exit_status
from rollyard.records.io.script import ScriptParser, positive

COMMAND = "ng_eval_launcher"
WIDTH = 1000
"""Tables are printed completely; a narrow terminal wraps their lines."""
CONVERT = ("-m", "rollyard.launchers.conversion")


def main() -> None:
    given = sys.argv[1:]
    sys.exit(exit_status(COMMAND, lambda: run(given, os.environ), debug="--debug" in given))


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
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
    """Show the jobs of a launch."""
    parser = _parser("status", "Show the jobs of a launch, and how many of the rows are done.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    found = launch_status(_launch(given, environ), SlurmScheduler(SlurmClient(environ)))
    if given.json:
        print(found.model_dump_json(indent=2))
    else:
        console(sys.stdout, width=WIDTH).print(status_view(found))
    return EXIT_DONE


def resume(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Submit what is missing of a launch."""
    parser = _parser("resume", "Submit missing jobs, and replace ended jobs of combinations that are not complete.")
    parser.add_argument("--jobs", type=positive, metavar="N", help="new number of jobs for each combination")
    given = parser.parse_args(arguments)
    return _launcher(environ).resume(_launch(given, environ), given.jobs)


def cancel(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Cancel the jobs of a launch with their successors."""
    given = _parser("cancel", "Cancel all jobs of a launch, with their successors.").parse_args(arguments)
    return _launcher(environ).cancel(_launch(given, environ))


def collect(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Collect the results of a launch in one table."""
    parser = _parser("collect", "Collect the results of a launch: parameters, coverage and metrics in one table.")
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help="folder of results.md, .csv and .json")
    parser.add_argument("--pass-threshold", type=float, metavar="R", help="minimum reward that counts as solved")
    given = parser.parse_args(arguments)
    launch = _launch(given, environ)
    table = sweep_table(launch, given.pass_threshold)
    written = write_table(table, given.output_dir or launch.folder)
    console(sys.stdout, width=WIDTH).print(table_view(table))
    print(table.summary)
    for path in written:
        print(path)
    return EXIT_FAILED if table.incomplete else EXIT_DONE


SUBCOMMANDS = {"status": status, "resume": resume, "cancel": cancel, "collect": collect}


def _launcher(environ: Mapping[str, str], *, contained: bool = False, dry: bool = False) -> Launcher:
    # A container has its own installation.
    here = os.path.abspath(sys.executable)  # noqa: PTH100 - resolving links would leave the virtual environment
    eval_command = "ng_eval" if contained else str(Path(here).with_name("ng_eval"))
    python = "python" if contained else here
    if not contained and not Path(eval_command).is_file():
        raise OperatorError(f"{eval_command} does not exist; install Rollyard again in this environment")

    def conversions(dcp: Path, config: Path, hf_path: Path | None, token: str) -> CachedCheckpoint:
        request = ConversionRequest(dcp, config, environ, hf_path, token=token, remember=not dry)
        return CachedCheckpoint(conversion_target(request), is_converted(request))

    planner = LaunchPlanner(conversions, Path.cwd(), (eval_command,), (python, *CONVERT))
    return Launcher(planner, SlurmScheduler(SlurmClient(environ)), _print_line, _warn)


def _parser(name: str, description: str) -> ScriptParser:
    parser = ScriptParser(prog=f"{COMMAND} {name}", description=description, allow_abbrev=False)
    parser.add_argument("folder", nargs="?", type=Path, metavar="LAUNCH_FOLDER", help="default: the newest in $LOG")
    parser.add_argument("--jobname", help="the newest launch with this job name")
    return parser


def _launch(given: argparse.Namespace, environ: Mapping[str, str]) -> Launch:
    return find_launch(launch_root(environ), given.folder, given.jobname)


def _print_line(text: str) -> None:
    print(text, flush=True)


def _warn(text: str) -> None:
    print(f"{COMMAND}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

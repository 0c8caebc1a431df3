"""ng_merge: makes one file of those of several jobs that collected an output with --shard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from rollyard.cli.options import Options, read_options, run_command
from rollyard.records.rollout_file import real_file
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.records.terminal import pluralize
from rollyard.services.rollouts.shards import merge

EXAMPLE = "ng_merge results/rollouts.jsonl"


class MergeOptions(Options):
    SUBJECT: ClassVar[str] = "jsonl_fpath"

    jsonl_fpath: Path
    """The output of the jobs, as they were given it. The file does not have to exist yet."""


def main() -> None:
    run_command("ng_merge", MergeOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Put the rollouts and failed attempts that several jobs have collected with --shard into their output, each once.

    It may be repeated at any time, also while jobs run. Exit status 1: rollouts are still missing.
    """
    options, _ = read_options(MergeOptions, arguments)
    found = merge(real_file(options.jsonl_fpath))
    progress = found.progress
    missing = progress.expected - progress.measured
    print(f"merged: {progress.measured} of {progress.expected} rollouts measured")
    if found.files:
        running = f", of which {found.running} are still written" if found.running else ""
        print(f"  files         {found.files}{running}")
    print(f"  rollouts      {found.paths.output}")
    if not missing:
        return EXIT_DONE
    if found.refused:
        print(f"  refused       {pluralize(found.refused, 'rollout')} rejected by the environment (bad_task)")
    if progress.masked:
        print(f"  masked        {pluralize(progress.masked, 'rollout')} in the file without a score")
    if (lacking := missing - found.refused - progress.masked) > 0:
        print(f"  missing       {lacking}: repeat the collection, with shards of any n or without, then ng_merge")
    return EXIT_FAILED

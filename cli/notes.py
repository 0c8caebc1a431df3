"""ng_notes: counts the labels and verdicts of people and programs, and writes labelled rollouts as a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import Field

from rollyard.analysis.metrics.agreement import Agreement
from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.loader.load_run import load
from rollyard.analysis.metrics.loader.where import parsed_condition, rollouts_where
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.solved import which_solved, with_solved
from rollyard.analysis.notes.agreement_of_verdicts import correct_from, with_verifier
from rollyard.analysis.notes.file_notes import notes_in
from rollyard.analysis.notes.labelled_rows import labelled_rows, scale_of, tasks_by_key, with_labels
from rollyard.cli.arguments.positional import rollout_files
from rollyard.cli.options import Options, read_options, run_command
from rollyard.records.datasets.data_files import DataFiles
from rollyard.records.errors import OperatorError
from rollyard.records.io.exit_status import EXIT_DONE
from rollyard.records.io.jsonl import replace
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.notes.current_state import RolloutNotes
from rollyard.records.rollouts.rollout_files import check_output, named_files
from rollyard.services.config.server_folders import search_roots

EXAMPLE = "ng_notes results/rollouts.jsonl --labels loop --output-jsonl-fpath results/loops.jsonl"


class NotesOptions(Options):
    SUBJECT: ClassVar[str] = "jsonl_fpath"
    EXPRESSIONS: ClassVar[Collection[str]] = ("where",)

    jsonl_fpath: list[Path] = Field(default_factory=list)
    """Rollout files. Their notes are next to them, in X_notes.jsonl."""
    rollouts_jsonl_fpath: list[Path] = Field(default_factory=list)
    """NeMo Gym's name for jsonl_fpath."""
    labels: list[str] = Field(default_factory=list)
    """Only rollouts with at least one of these labels; default: all rollouts with a label, a verdict or a note."""
    where: str | None = None
    """Only rollouts that meet this expression, such as `override == "wrong" and success`."""
    author: str | None = None
    """Only labels, verdicts and notes of this author; default: those of all, and the last verdict of each rollout."""
    output_jsonl_fpath: Path | None = None
    """Write the rollouts as a data set: the fields of the task, the conversation, the corrected reward, the labels."""
    input_jsonl_fpath: str | None = None
    """The dataset from which the rollouts were collected. Its rows are then the tasks of the output; default: the tasks
    as recorded, with the prompts and tools that environments added."""
    correct_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Reward of a rollout that somebody called correct; default: 1 if all rewards are in 0..1."""
    wrong_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Reward of a rollout that somebody called wrong; default: 0 if all rewards are in 0..1."""
    pass_threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Minimum reward that counts as solved; default: the environment's `success`, or 1 if all rewards are in 0..1."""


def main() -> None:
    run_command("ng_notes", NotesOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Count labels and verdicts, compare the verdicts with the verifier, and write labelled rollouts as a data set."""
    options, _ = read_options(NotesOptions, arguments)
    given = [*options.jsonl_fpath, *options.rollouts_jsonl_fpath]
    files = named_files(rollout_files(given), [])
    output = options.output_jsonl_fpath
    if output is not None:
        check_output(output, [path for _, path in files])
    address = options.input_jsonl_fpath
    dataset = None if address is None else tasks_by_key(DataFiles(search_roots(Path.cwd())).get(address))
    rows: list[bytes] = []
    skipped = 0
    for name, path in files:
        loaded = load(path, name, pass_threshold=options.pass_threshold)
        notes = _selected(path, loaded, options)
        print(f"{name}: {_rollouts(len(notes))} with notes" + (_missing_file(path) if not notes else ""))
        _print_labels(notes)
        _print_agreement(loaded, notes, options.pass_threshold)
        if output is not None:
            scale = scale_of(loaded.columns, options.correct_reward, options.wrong_reward)
            before = len(rows)
            rows += (orjson.dumps(row) + b"\n" for row in labelled_rows(path, notes, scale, dataset))
            skipped += len(notes) - (len(rows) - before)
    if output is not None:
        if not rows:
            raise OperatorError(f"no rollout is selected, so that {output} is not written; check --labels and --where")
        replace(output, rows)
        print(f"written   {_rollouts(len(rows))} -> {output}")
        if skipped:
            print(f"note      {_rollouts(skipped)} without a reward and without a verdict are left out")
    return EXIT_DONE


def _selected(path: Path, loaded: Run, options: NotesOptions) -> dict[int, RolloutNotes]:
    """Return the notes of the selected rollouts, by offset."""
    try:
        notes = notes_in(path, loaded.columns)
    except OSError as error:
        raise OperatorError(f"rollout file {str(path)!r} cannot be read: {error.strerror or error}") from error
    if options.author is not None:
        notes = {offset: own for offset, one in notes.items() if (own := one.of_author(options.author))}
    if options.where is not None:
        columns = with_solved(loaded.columns, options.pass_threshold)
        mask = rollouts_where(path, columns, parsed_condition(options.where))
        kept = set(columns.offset[mask].tolist())
        notes = {offset: one for offset, one in notes.items() if offset in kept}
    return with_labels(notes, options.labels)


def _missing_file(path: Path) -> str:
    file = RolloutPaths(path).notes
    return "" if file.exists() else f" ({file} does not exist; ng_viewer writes it)"


def _print_labels(notes: Mapping[int, RolloutNotes]) -> None:
    counts = Counter(label for one in notes.values() for label in one.labels)
    for label, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        authors = dict.fromkeys(author for one in notes.values() for name, author in one.added if name == label)
        print(f"  {label:<24} {count:>7,}  by {', '.join(authors)}")


def _print_agreement(loaded: Run, notes: Mapping[int, RolloutNotes], threshold: float | None) -> None:
    columns = loaded.columns
    _, flags = which_solved(columns, threshold)
    least = correct_from(columns, threshold)
    found = with_verifier(columns, None if flags is None else flags.astype(float), notes, least)
    if found.agreement is not None:
        _print_table(found.agreement)
    if found.uncounted:
        print(
            f"  not counted: {found.uncounted:,} verdicts that are rewards, because it is unknown from which reward a "
            "rollout is correct; pass --pass-threshold ..."
        )


def _print_table(agreement: Agreement) -> None:
    (both, missed), (exploited, neither) = agreement.counts
    print(f"  {'verdict':<24} {'solved':>7} {'not solved':>12}")
    print(f"  {'correct':<24} {both:>7,} {missed:>12,}")
    print(f"  {'wrong':<24} {exploited:>7,} {neither:>12,}")
    kappa = agreement.kappa
    shown = "undefined (only one category occurs)" if kappa is None else f"{kappa.mean:.3f}{_interval(kappa, '.3f')}"
    print(
        f"  agreement {agreement.agreed.mean:.1%}{_interval(agreement.agreed, '.1%')}, Cohen's kappa {shown}, "
        f"n = {agreement.n:,} in {agreement.tasks:,} tasks"
    )


def _interval(estimate: Estimate, form: str) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" (95% interval {estimate.low:{form}} to {estimate.high:{form}})"


def _rollouts(count: int) -> str:
    return f"{count:,} rollout{'s' * (count != 1)}"

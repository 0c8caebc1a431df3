"""ng_notes: counts the labels and verdicts of people and programs, and writes labelled rollouts as a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import Field

from rollyard.analysis.labelled_rows import labelled_rows, scale_of, tasks_by_key, with_labels
from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.row_notes import notes_in
from rollyard.analysis.metrics.selection import parsed_condition, rollouts_where
from rollyard.analysis.metrics.solved import which_solved, with_solved
from rollyard.cli.options import Options, read_options, rollout_files, run_command
from rollyard.records.data_files import DataFiles
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import replace
from rollyard.records.note_records import RolloutNotes
from rollyard.records.rollout_file import RolloutPaths, check_output, named_files
from rollyard.records.script import EXIT_DONE
from rollyard.services.config.plugins import search_roots

EXAMPLE = "ng_notes results/rollouts.jsonl --labels loop --output-jsonl-fpath results/loops.jsonl"


class NotesOptions(Options):
    SUBJECT: ClassVar[str] = "jsonl_fpath"
    EXPRESSIONS: ClassVar[Collection[str]] = ("where",)

    jsonl_fpath: list[Path] = Field(default_factory=list)
    """Rollout files. Their notes are next to them, in X_notes.jsonl."""
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
    """Count labels and verdicts, and write labelled rollouts as a data set."""
    options, _ = read_options(NotesOptions, arguments)
    files = named_files(rollout_files(options.jsonl_fpath), [])
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
        _print_verdicts(loaded, notes, options.pass_threshold)
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


def _print_verdicts(loaded: Run, notes: Mapping[int, RolloutNotes], threshold: float | None) -> None:
    """Print how many rollouts have each verdict, and how many of those the verifier calls solved."""
    columns = loaded.columns
    _, flags = which_solved(columns, threshold)
    solved = None if flags is None else set(columns.offset[flags].tolist())
    judged: dict[str, list[int]] = {}
    for offset, one in notes.items():
        if one.override is not None:
            verdict = one.override.verdict
            judged.setdefault(verdict if isinstance(verdict, str) else "a reward", []).append(offset)
    for name, offsets in sorted(judged.items()):
        shown = "" if solved is None else f"  {len(solved.intersection(offsets)):,} of them solved"
        print(f"  {f'verdict: {name}':<24} {len(offsets):>7,}{shown}")


def _rollouts(count: int) -> str:
    return f"{count:,} rollout{'s' * (count != 1)}"

"""SweepTable: parameters, coverage and metrics of each combination, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.launchers.evaluation.headline import Headline, formatted, headline
from rollyard.launchers.slurm.launch.launch_records import Combination, Launch
from rollyard.launchers.slurm.launch.launch_text import shown_value
from rollyard.launchers.slurm.reports.launch_status import swept
from rollyard.launchers.slurm.reports.progress import read_progress
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.jsonl import replace
from rollyard.records.io.terminal import plain_line
from rollyard.records.types import Json, Record
from rollyard.services.rollouts.shared.partial_merge import merge_shards


class SweepRow(Record):
    name: str
    parameters: Json
    headline: Headline
    unmerged: int = 0
    """Number of rollouts that are still in the jobs' shards."""
    problem: str = ""
    """Why the rollouts cannot be read."""

    @property
    def is_complete(self) -> bool:
        return self.headline.is_complete and not self.unmerged

    @property
    def coverage(self) -> str:
        if self.problem or self.is_complete:
            return self.problem or self.headline.coverage
        return f"{self.headline.coverage} ({'not merged yet' if self.headline.is_complete else 'incomplete'})"


class SweepTable(Record):
    launch_id: str
    rows: list[SweepRow]

    @property
    def parameters(self) -> list[str]:
        return list(dict.fromkeys(key for row in self.rows for key in row.parameters))

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.headline.metrics))

    @property
    def incomplete(self) -> list[SweepRow]:
        return [row for row in self.rows if not row.is_complete]

    @property
    def titles(self) -> list[str]:
        return ["name", *self.parameters, "rollouts", *self.metrics]

    def cells(self, row: SweepRow) -> list[str]:
        """Return a row's cells as text, with 95% intervals."""
        return [
            row.name,
            *(shown_value(row.parameters[key]) if key in row.parameters else "-" for key in self.parameters),
            row.coverage,
            *(formatted(row.headline.metrics.get(name)) for name in self.metrics),
        ]

    @property
    def summary(self) -> str:
        missing = self.incomplete
        if not missing:
            return f"{len(self.rows)} of {len(self.rows)} combinations are complete."
        names = ", ".join(row.name for row in missing[:5]) + (", ..." if len(missing) > 5 else "")
        return f"{len(missing)} of {len(self.rows)} combinations are incomplete: {names}"


def sweep_table(launch: Launch, pass_threshold: float | None = None) -> SweepTable:
    """Read the rollouts of all combinations."""
    return SweepTable(launch_id=launch.launch_id, rows=[_row(one, pass_threshold) for one in launch.combinations])


def write_table(table: SweepTable, folder: Path) -> list[Path]:
    """Write results.md, results.csv and results.json. Raises RunError if a file cannot be written."""
    contents = {"results.md": _markdown(table), "results.csv": _csv(table), "results.json": _json(table)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create {folder}: {error.strerror}") from error
    for name, text in contents.items():
        replace(folder / name, text.encode())
    return [folder / name for name in contents]


def _row(combination: Combination, pass_threshold: float | None) -> SweepRow:
    problem, found = "", Headline(measured=0, expected=None, metrics={})
    unmerged = read_progress(combination).unmerged
    try:
        found = _headline(EvalFolder(combination.run).rollouts.output, pass_threshold, merge=unmerged > 0)
    except (OperatorError, RunError, OSError) as error:
        problem = str(error)
    return SweepRow(
        name=combination.name,
        parameters=swept(combination),
        headline=found,
        unmerged=unmerged,
        problem=problem,
    )


def _headline(output: Path, pass_threshold: float | None, *, merge: bool) -> Headline:
    """Read the rollouts; with `merge`, also those in the shards of single jobs."""
    if not merge:
        return headline(output, pass_threshold=pass_threshold)
    # On the file system of the output, because a copy may be large.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".collect-") as folder:
        merge_shards(output, Path(folder) / output.name)
        return headline(Path(folder) / output.name, pass_threshold=pass_threshold)


def _markdown(table: SweepTable) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(plain_line(cell).replace("|", "\\|") for cell in cells) + " |"

    rows = [line(table.cells(row)) for row in table.rows]
    heading = [f"# Launch {table.launch_id}", "", f"{table.summary} Intervals are 95%, clustered by task.", ""]
    return "\n".join([*heading, line(table.titles), line(["---"] * len(table.titles)), *rows]) + "\n"


def _csv(table: SweepTable) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream)
    parts = ("", "_low", "_high")
    writer.writerow(
        ["name", *table.parameters, "complete", "measured", "expected"]
        + [f"{name}{part}" for name in table.metrics for part in parts]
    )
    for row in table.rows:
        writer.writerow([row.name, *(_csv_cell(row, key) for key in table.parameters), *_numbers(table, row)])
    return stream.getvalue()


def _csv_cell(row: SweepRow, key: str) -> str:
    return shown_value(row.parameters[key]) if key in row.parameters else ""


def _numbers(table: SweepTable, row: SweepRow) -> Iterator[object]:
    yield from (str(row.is_complete).lower(), row.headline.measured)
    yield "" if row.headline.expected is None else row.headline.expected
    for name in table.metrics:
        found = row.headline.metrics.get(name)
        values = (None,) * 3 if found is None else (found.mean, found.low, found.high)
        yield from ("" if value is None else value for value in values)


def _json(table: SweepTable) -> str:
    return table.model_dump_json(indent=2) + "\n"

"""ng_prepare_data: checks datasets, mixes them into one file, and orders them by difficulty for a policy."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import orjson
from pydantic import Field

from rollyard.analysis.metrics.curriculum import hardest_first, ids_of, order_by_id
from rollyard.analysis.metrics.load import load
from rollyard.cli.options import Options, read_options, run_command
from rollyard.records.data_files import DataFile, DataFiles
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import check_output
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.records.terminal import plain_line
from rollyard.services.config.plugins import search_roots
from rollyard.services.datasets.dataset import Dataset, DatasetSettings, MixtureSettings, read_mixture, with_settings
from rollyard.services.datasets.mixture import Mixture
from rollyard.services.datasets.splits import stem_of
from rollyard.services.datasets.validate import FileReport, Repetition, validate

EXAMPLE = (
    "ng_prepare_data --data configs/environment_mixture.yaml --output-jsonl-fpath results/environments.jsonl "
    "--against resources_servers/grl_sokoban/data/qwen3_4b_eval/test_examples_200.jsonl"
)


class PrepareOptions(Options):
    EXPRESSIONS: ClassVar[Collection[str]] = ("prompt",)
    SUBJECT: ClassVar[str] = "input_jsonl_fpath"
    RETIRED: ClassVar[Mapping[str, str]] = {
        "against_words": "--against compares whole questions, in whatever prompt they are written"
    }

    input_jsonl_fpath: list[str] = Field(default_factory=list)
    """Datasets to check: local files or s3:// URLs in JSON Lines, CSV or TSV (also compressed), Parquet or Arrow
    format."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Fields to make from columns with other names, such as {question: problem, expected_answer: solution}."""
    prompt: str | None = None
    """The user message of each row: a text in which {name} stands for the field of that name."""
    data: str | dict[str, Any] | None = None
    """Mixture of datasets to use instead of input_jsonl_fpath: a YAML file, {file: mix.yaml, epoch: 2}, or
    {mode: weighted, seed: 42, datasets: [{name: gsm8k, path: a.jsonl, weight: 2}]}."""
    agent_name: str | None = None
    """Agent for rows without an agent_ref."""
    limit: int | None = Field(default=None, ge=1)
    """Use only this many tasks from the start of the input."""
    output_jsonl_fpath: Path | None = None
    """Output file for the tasks in order, each with its prompt_id, dataset_name and agent_ref."""
    against: list[str] = Field(default_factory=list)
    """Files that must not share tasks with the input, such as a test set; compares rows, ids and questions."""
    rollouts_jsonl_fpath: Path | None = None
    """Rollouts collected on this dataset; the curriculum orders the tasks by their difficulty in these rollouts."""
    order_fpath: Path | None = None
    """Output file for the curriculum: one task id per line, for use as the `order` of a dataset in a mixture."""
    pass_at: int = Field(default=16, ge=1)
    """Order the curriculum by pass@k with this k; tasks with fewer rollouts are excluded."""
    descending: bool = False
    """Put easy tasks first instead of hard ones."""
    pass_threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Minimum reward that counts as solved; default: the environment's `success`, or 1 if all rewards are in 0..1."""
    json_output: bool = Field(default=False, alias="json")
    """Print the result as JSON."""


def main() -> None:
    run_command("ng_prepare_data", PrepareOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Check and describe datasets, mix them into one, and build curricula from rollouts."""
    options, _ = read_options(PrepareOptions, arguments)
    files = DataFiles(search_roots(Path.cwd()))
    settings = _settings(options, files)
    if options.order_fpath is not None or options.rollouts_jsonl_fpath is not None:
        return _curriculum(options, settings, files)
    sources = [Dataset.resolve_file(one, files) for one in settings.datasets]
    given = list(dict.fromkeys(with_settings(*pair) for pair in zip(sources, settings.datasets, strict=True)))
    against = [files.get(address) for address in options.against]
    if options.output_jsonl_fpath is not None:
        check_output(options.output_jsonl_fpath, [file for file in (*sources, *against) if isinstance(file, Path)])
    found = validate(given, against)
    if options.json_output:
        print(orjson.dumps([one.model_dump() for one in found], option=orjson.OPT_INDENT_2).decode())
    else:
        show(found, against=bool(against))
    if any(one.problems or not one.rows for one in found):
        if options.output_jsonl_fpath is not None:
            print("nothing was written: fix or remove the invalid rows, then repeat the command", file=sys.stderr)
        return EXIT_FAILED
    if options.output_jsonl_fpath is not None:
        _write(options.output_jsonl_fpath, options, settings, files)
    return EXIT_DONE


def _settings(options: PrepareOptions, files: DataFiles) -> MixtureSettings:
    """Return the mixture that the options define: that of `data`, or the input files one after the other."""
    if bool(options.input_jsonl_fpath) == (options.data is not None):
        raise OperatorError(f"pass exactly one of --input-jsonl-fpath [...] and --data ... ({EXAMPLE})")
    if options.data is not None:
        if options.columns or options.prompt is not None:
            raise OperatorError(
                "--columns and --prompt apply to --input-jsonl-fpath; in --data, each dataset has its own"
            )
        return read_mixture(options.data, files.roots)
    datasets = [
        DatasetSettings(
            name=Path(stem_of(path)).name, path=path, shuffle=False, columns=options.columns, prompt=options.prompt
        )
        for path in options.input_jsonl_fpath
    ]
    return MixtureSettings(mode="sequential", datasets=datasets)


def _write(path: Path, options: PrepareOptions, settings: MixtureSettings, files: DataFiles) -> None:
    mixture = Mixture(settings, files, agent=options.agent_name, limit=options.limit)
    replace(path, (orjson.dumps(row) + b"\n" for row in mixture.rows()))
    again = [name for name, times in Counter(name for _, name in mixture.row_refs()).items() if times > 1]
    # Standard output contains only the JSON.
    print_line = partial(print, file=sys.stderr if options.json_output else sys.stdout)
    for note in mixture.notes:
        print_line(f"note      {note}")
    if again:
        print_line(
            f"note      {len(again):,} ids occur more than once (the first: {again[0]}): the file can be "
            "collected, but not mixed or ordered again"
        )
    print_line(f"written   {mixture.count:,} tasks of {_format_count(len(mixture.datasets))} -> {path}")


def _format_count(count: int) -> str:
    return f"{count} dataset{'s' * (count != 1)}"


def _curriculum(options: PrepareOptions, settings: MixtureSettings, files: DataFiles) -> int:
    rollouts = options.rollouts_jsonl_fpath
    if options.order_fpath is None or rollouts is None:
        raise OperatorError("a curriculum needs --rollouts-jsonl-fpath rollouts.jsonl and --order-fpath order.txt")
    if options.output_jsonl_fpath is not None:
        raise OperatorError(
            "a curriculum cannot be combined with --output-jsonl-fpath: drop it, then write the ordered tasks from "
            f"a mixture with `order: {options.order_fpath}`"
        )
    mixture = Mixture(settings, files, agent=options.agent_name or "anyone", limit=options.limit)
    check_output(options.order_fpath, [rollouts, *mixture.files])
    ids = _unique_ids(mixture)
    tasks = hardest_first(load(rollouts, pass_threshold=options.pass_threshold), options.pass_at)
    order = order_by_id(tasks[::-1] if options.descending else tasks, ids_of(rollouts), ids, rollouts)
    replace(options.order_fpath, "".join(f"{name}\n" for name in order).encode())
    first = "easiest" if options.descending else "hardest"
    left = len(ids) - len(order)
    without = f"; {left:,} tasks with fewer than {options.pass_at} rollouts are excluded" if left else ""
    print(f"written   {len(order):,} of {len(ids):,} tasks, ordered by pass@{options.pass_at}, {first} first{without}")
    print(f"          {options.order_fpath}")
    return EXIT_DONE


def _unique_ids(mixture: Mixture) -> list[str]:
    """Return the task ids in the mixture's order. Raises OperatorError if an id occurs in two files."""
    files: dict[str, DataFile] = {}
    for dataset, name in mixture.row_refs():
        if files.setdefault(name, dataset.file) != dataset.file:
            raise OperatorError(
                f"the id {name!r} occurs in {files[name]} and in {dataset.file}, and an order file cannot distinguish "
                "between the two; build one curriculum per file"
            )
    return [name for _, name in mixture.row_refs()]


MAX_EXAMPLES = 2
_KINDS = {"row": "same row", "id": "same id", "question": "same question"}
MAX_LISTED = 5


def show(found: Sequence[FileReport], *, against: bool) -> None:
    for one in found:
        print(one.path)
        counts = f"{one.rows:,} valid, {one.problems:,} invalid" if one.rows or one.problems else "none"
        print(f"  rows        {counts}")
        for problem in one.first_problems[:MAX_LISTED]:
            print(f"              line {problem.line}: {plain_line(problem.problem)}")
        if one.problems > MAX_LISTED:
            print(f"              ... and {one.problems - MAX_LISTED:,} more (--json shows up to 20)")
        agents = ", ".join(f"{name or '(no agent_ref)'} {count:,}" for name, count in one.agents.items())
        print(f"  agents      {plain_line(agents) or 'none'}")
        if (prompt := one.prompt_characters) is not None:
            print(f"  prompt      {prompt.min:,.0f} to {prompt.max:,.0f} characters, median {prompt.median:,.0f}")
        keys = ", ".join(_format_share(key, count, one.rows) for key, count in one.keys.items())
        print(f"  keys        {plain_line(keys) or 'none'}")
        if again := one.first_repeated_ids:
            first = plain_line(f"line {again[0].line} {again[0].problem}")
            print(f"  ids         {one.repeated_ids:,} rows repeat an earlier row's id ({first})")
        print(f"  duplicates  {_format_repeats(one.duplicates, one.first_duplicates)}")
        if against:
            counts = ", ".join(f"{_KINDS[kind]} {count:,}" for kind, count in one.overlap.items())
            print(f"  overlap     {counts if any(one.overlap.values()) else 'none'}")
            for kind in one.overlap:
                for match in [match for match in one.first_overlap if match.kind == kind][:MAX_EXAMPLES]:
                    evidence = f" ({plain_line(match.evidence)[:80]})" if match.evidence else ""
                    where = f"line {match.line} is {Path(match.path).name}:{match.first_line}"
                    print(f"              {_KINDS[kind]}: {where}{evidence}")


def _format_share(key: str, count: int, rows: int) -> str:
    return key if count == rows else f"{key} ({count:,} of {rows:,})"


def _format_repeats(count: int, first: Sequence[Repetition]) -> str:
    if not count:
        return "none"
    shown = ", ".join(f"line {one.line} is {Path(one.path).name}:{one.first_line}" for one in first[:MAX_LISTED])
    return f"{count:,} ({shown}{', ...' if count > MAX_LISTED else ''})"

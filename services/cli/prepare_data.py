"""ng_prepare_data: check data sets, mix them into one file, order them by how hard a policy finds them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BeforeValidator, Field

from services.cli.options import EXIT_DONE, EXIT_FAILED, Options, read_options, run_command
from services.cli.rollout_files import listed
from services.data.curriculum import hardest_first
from services.data.dataset import Dataset
from services.data.mixture import Mixture
from services.data.settings import DatasetSettings, MixtureSettings, read_mixture
from services.data.survey import FileSurvey, Repetition, survey
from services.errors import OperatorError
from services.jsonl import replace
from services.metrics.loading import load
from services.roots import INSTALLED, there

EXAMPLE = (
    "ng_prepare_data +data=configs/mixed.yaml +output_jsonl_fpath=results/train.jsonl "
    "+against=[resources_servers/gsm8k/data/test.jsonl]"
)
SHOWN = 5


class PrepareOptions(Options):
    """Options of ng_prepare_data."""

    input_jsonl_fpath: Annotated[list[Path], BeforeValidator(listed)] = Field(default_factory=list)
    """Data sets to look at, one after the other."""
    data: str | dict[str, Any] | None = None
    """Or a mixture: a YAML file, or {mode: weighted, seed: 42, datasets: [{name: gsm8k, path: a.jsonl, weight: 2}]}."""
    agent_name: str | None = None
    """Who plays rows for which nothing else says."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first tasks."""
    output_jsonl_fpath: Path | None = None
    """Write the tasks in their order, each with its prompt_id, dataset_name and agent_ref."""
    against: Annotated[list[Path], BeforeValidator(listed)] = Field(default_factory=list)
    """Files that must hold other tasks, a test set's: what is in both is told."""
    rollouts_jsonl_fpath: Path | None = None
    """Rollouts of these data, as they were collected: orders their tasks for a curriculum."""
    order_fpath: Path | None = None
    """Where the curriculum goes: an id a line, for `order` of a mixture."""
    pass_at: int = Field(default=16, ge=1)
    """Curriculum by pass@k with this k; tasks with fewer rollouts are left out."""
    descending: bool = False
    """Easy tasks first instead of hard ones."""
    pass_threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Reward from which on a rollout is solved; default: the world's `success`, or 1 where rewards lie in 0..1."""
    json_output: bool = Field(default=False, alias="json")
    """Print what was found as JSON."""


def main() -> None:
    """Entry point."""
    run_command("ng_prepare_data", PrepareOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Say what is in data sets and what is wrong with them; mix them into one; make curricula from rollouts."""
    options, _ = read_options(PrepareOptions, arguments)
    settings = read_mixture(options.data, _roots()) if options.data is not None else _plain(options)
    if options.order_fpath is not None or options.rollouts_jsonl_fpath is not None:
        return _curriculum(options, settings)
    paths = list(dict.fromkeys(Dataset.place(one, _roots()) for one in settings.datasets))
    found = survey(paths, [there(path, _roots()) for path in options.against])
    if options.json_output:
        print(orjson.dumps([one.model_dump() for one in found], option=orjson.OPT_INDENT_2).decode())
    else:
        _print(found, options.against)
    if any(one.problems for one in found):
        return EXIT_FAILED
    if options.output_jsonl_fpath is not None:
        _write(options, settings)
    return EXIT_DONE


def _roots() -> list[Path]:
    return [Path.cwd(), INSTALLED]


def _plain(options: PrepareOptions) -> MixtureSettings:
    """The input files one after the other, in their own order."""
    if not options.input_jsonl_fpath:
        raise OperatorError(f"nothing to prepare: give +input_jsonl_fpath=[...] or +data=... ({EXAMPLE})")
    datasets = [DatasetSettings(name=path.stem, path=path, shuffle=False) for path in options.input_jsonl_fpath]
    return MixtureSettings(mode="sequential", datasets=datasets)


def _write(options: PrepareOptions, settings: MixtureSettings) -> None:
    path = options.output_jsonl_fpath
    assert path is not None
    mixture = Mixture(settings, _roots(), agent=options.agent_name, limit=options.limit)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, (orjson.dumps(row) + b"\n" for row in mixture.rows()))
    for note in mixture.notes:
        print(f"note      {note}")
    print(f"written   {mixture.count:,} tasks of {len(mixture.datasets)} data sets -> {path}")


def _curriculum(options: PrepareOptions, settings: MixtureSettings) -> int:
    rollouts = options.rollouts_jsonl_fpath
    if options.order_fpath is None or rollouts is None:
        raise OperatorError("a curriculum needs +rollouts_jsonl_fpath=rollouts.jsonl and +order_fpath=order.txt")
    mixture = Mixture(settings, _roots(), agent=options.agent_name or "anyone", limit=options.limit)
    ids = [name for _, name in mixture.places()]
    order = hardest_first(load(rollouts, pass_threshold=options.pass_threshold), options.pass_at)
    if max(order) >= len(ids):
        raise OperatorError(f"{rollouts} has rollouts of task {max(order)}, but these data hold {len(ids)}: other data")
    if options.descending:
        order.reverse()
    options.order_fpath.parent.mkdir(parents=True, exist_ok=True)
    replace(options.order_fpath, "".join(f"{ids[task]}\n" for task in order).encode())
    first = "easy" if options.descending else "hard"
    left = len(ids) - len(order)
    without = f", {left:,} without {options.pass_at} rollouts are left out" if left else ""
    print(f"written   {len(order):,} of {len(ids):,} tasks, {first} first by pass@{options.pass_at}{without}")
    print(f"          {options.order_fpath}")
    return EXIT_DONE


def _print(found: list[FileSurvey], against: Sequence[Path]) -> None:
    for one in found:
        print(one.path)
        print(f"  rows        {one.rows:,} can be played, {one.problems:,} cannot")
        for problem in one.first_problems[:SHOWN]:
            print(f"              line {problem.line}: {problem.problem}")
        if one.problems > SHOWN:
            print(f"              ... and {one.problems - SHOWN:,} more (+json=true shows 20)")
        agents = ", ".join(f"{name or '(the row does not say)'} {count:,}" for name, count in one.agents.items())
        print(f"  players     {agents or 'none'}")
        if (prompt := one.prompt_characters) is not None:
            print(f"  prompt      {prompt.min:,.0f} to {prompt.max:,.0f} characters, median {prompt.median:,.0f}")
        print(f"  keys        {', '.join(_share(key, count, one.rows) for key, count in one.keys.items()) or 'none'}")
        print(f"  duplicates  {_repeated(one.duplicates, one.first_duplicates)}")
        if against:
            print(f"  overlap     {_repeated(one.overlap, one.first_overlap)}; same prompt: {one.prompt_overlap:,}")


def _share(key: str, count: int, rows: int) -> str:
    return key if count == rows else f"{key} ({count:,} of {rows:,})"


def _repeated(count: int, first: Sequence[Repetition]) -> str:
    if not count:
        return "none"
    shown = ", ".join(f"line {one.line} is {Path(one.path).name}:{one.first_line}" for one in first[:SHOWN])
    return f"{count:,} ({shown}{', ...' if count > SHOWN else ''})"

"""Plans a launch: turns flags, sweep and config into combinations and jobs. Reads files and writes none."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollyard.launchers.evaluation.nemo_rl.config import is_nemo_rl
from rollyard.launchers.slurm.launch.dotted_keys import (
    Setting,
    find_value,
    set_value,
)
from rollyard.launchers.slurm.launch.eval_tree import (
    OUTPUT_DIR,
    as_yaml,
    merge,
    model_key,
    read_config,
    validate,
)
from rollyard.launchers.slurm.launch.job_planner import JobPlanner
from rollyard.launchers.slurm.launch.launch_arguments import DEFAULT_CONFIG
from rollyard.launchers.slurm.launch.launch_options import LaunchOptions
from rollyard.launchers.slurm.launch.launch_records import Combination, Launch
from rollyard.launchers.slurm.launch.model_choice import Conversions, ModelChoice, choose_model
from rollyard.launchers.slurm.launch.resources import Resources, read_resources
from rollyard.launchers.slurm.launch.sweep import NO_SWEEP, Sweep, read_sweep
from rollyard.records.errors import OperatorError
from rollyard.records.io.json_values import text_of
from rollyard.records.io.search_path import INSTALLED
from rollyard.records.types import Json
from rollyard.services.config.overrides import shown
from rollyard.services.server.settings import redacted_at

SHIPPED_CONFIG = INSTALLED / "configs" / "nemo_rl_eval.yaml"
SAVE_PATH = "eval.save_path"


@dataclass(frozen=True)
class Planned:
    """A launch and the files that it consists of."""

    launch: Launch
    files: dict[Path, str]
    cached: bool
    """An earlier conversion is used."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchPlanner:
    """Plans launches for the user's current folder."""

    conversions: Conversions
    here: Path
    """The folder to which relative paths refer."""
    eval_command: tuple[str, ...]
    """The command that runs an evaluation: `ng_eval`."""
    convert_command: tuple[str, ...]

    def plan(
        self,
        options: LaunchOptions,
        overrides: Sequence[Setting],
        command_line: Sequence[str],
        launch_id: str,
        created: float,
    ) -> Planned:
        """Plan a launch. Raises OperatorError if anything is missing or invalid."""
        sweep = NO_SWEEP if options.sweep is None else read_sweep(self.here / Path(options.sweep).expanduser())
        config = self._config(options, sweep)
        tree = read_config(config)
        choice = choose_model(options, self.conversions, force_token=launch_id)
        folder = options.log_root / options.jobname / launch_id
        trees, combinations, resources = [], [], []
        warnings: list[str] = []
        several = len(sweep.combinations) > 1
        warnings += _overridden(sweep, overrides)
        for number, swept in enumerate(sweep.combinations, 1):
            name = f"{options.jobname}_sweep_{number}" if several else options.jobname
            merged, settings, needed = _combine(tree, swept, overrides, choice, options, name, warnings)
            validate(merged, name)
            combination = Combination(
                name=name,
                folder=folder / name,
                parameters={one.key: redacted_at(one.key, one.value) for one in settings},
                swept=tuple(one.key for one in swept),
            )
            trees.append(merged)
            combinations.append(combination)
            resources.append(needed)
        _separate_save_paths(trees, combinations)
        files = {
            combination.config: _HEADER.format(name=combination.name)
            + as_yaml({**one, OUTPUT_DIR: str(combination.run)})
            for combination, one in zip(combinations, trees, strict=True)
        }
        jobs = JobPlanner(options, launch_id, folder, self.here)
        conversions = jobs.conversion(choice.conversion, self.convert_command)
        evaluations = [
            job
            for combination, one in zip(combinations, resources, strict=True)
            for job in jobs.evaluations(combination, one, self.eval_command, conversions)
        ]
        launch = Launch(
            launch_id=launch_id,
            jobname=options.jobname,
            folder=folder,
            created=created,
            content=_content(options, trees, choice),
            command_line=tuple(shown(word) for word in command_line),
            config=config,
            nodes=resources[0].nodes,
            gpus=resources[0].gpus,
            model=str(find_value(trees[0], model_key(trees[0]))),
            conversion=choice.conversion,
            combinations=tuple(combinations),
            jobs_per_combination=options.jobs,
            jobs=(*conversions, *evaluations),
        )
        return Planned(launch, files, choice.cached, warnings)

    def _config(self, options: LaunchOptions, sweep: Sweep) -> Path:
        """Return the config's path. Raises OperatorError if it does not exist, or two different ones are given."""
        given, swept = options.config, sweep.config_path
        if given is not None and swept is not None and self._path(given) != self._path(swept):
            # The wording of the original program, which ends with a Python AssertionError.
            raise OperatorError(
                f"AssertionError: Command line config '{given}' does not match sweep config config_path '{swept}'. "
                "Please ensure consistency."
            )
        chosen = given if given is not None else swept
        if chosen is None:
            default = self._path(DEFAULT_CONFIG)
            return default if default.is_file() else SHIPPED_CONFIG
        path = self._path(chosen)
        if not path.is_file():
            origin = "--config" if given is not None else f"config_path of {options.sweep}"
            raise OperatorError(f"{origin} is {chosen!r}, but there is no such file in {self.here}")
        return path

    def _path(self, text: str) -> Path:
        return (self.here / Path(text).expanduser()).resolve()


_HEADER = """\
# {name}: written by ng_eval_launcher. Config, sweep values and overrides are merged and references resolved.
"""
_MODEL_WARNING = "the sweep or the command line also sets the model; the checkpoint of the flags is evaluated instead"


def _overridden(sweep: Sweep, overrides: Sequence[Setting]) -> list[str]:
    """Return a warning for each key that is swept in vain."""
    fixed = {one.key for one in overrides}
    keys = dict.fromkeys(one.key for swept in sweep.combinations for one in swept if one.key in fixed)
    return [f"the command line sets {key}, which the sweep sets, too: all combinations use the former" for key in keys]


def _combine(
    tree: Json,
    swept: Sequence[Setting],
    overrides: Sequence[Setting],
    choice: ModelChoice,
    options: LaunchOptions,
    name: str,
    warnings: list[str],
) -> tuple[Json, list[Setting], Resources]:
    """Return the merged config of one combination, what was set in it, and its resources."""
    key = model_key(tree)
    settings = [*swept, *overrides]
    if choice.model is not None:
        model = str(choice.model)
        if any(one.key == key for one in settings) and _MODEL_WARNING not in warnings:
            warnings.append(_MODEL_WARNING)
        settings.append(Setting(key, model if is_nemo_rl(tree) else f"vllm/{model}", adds=True))
    merged = merge(tree, settings, name)
    needed = read_resources(merged, options, warnings)
    if is_nemo_rl(tree):
        settings.append(Setting("cluster.num_nodes", needed.nodes, adds=True))
        settings.append(Setting("cluster.gpus_per_node", needed.gpus, adds=True))
        if any(find_value(merged, one.key) != one.value for one in settings[-2:]):
            merged = merge(tree, settings, name)
    model_name = find_value(merged, key)
    if not isinstance(model_name, str) or not model_name:
        raise OperatorError(
            f"{name}: no model is chosen ({key} is {model_name!r}); set {key}=..., or convert one with --dcp-ckpt-path"
        )
    last = {one.key: one for one in settings}
    return merged, list(last.values()), needed


def _separate_save_paths(trees: Sequence[Json], combinations: Sequence[Combination]) -> None:
    """Give each combination its own `eval.save_path`, if they would all write to the same folder."""
    paths = [text_of(find_value(tree, SAVE_PATH)) for tree in trees]
    counts = Counter(paths)
    for tree, path, combination in zip(trees, paths, combinations, strict=True):
        if path and counts[path] > 1:
            set_value(tree, SAVE_PATH, str(Path(path) / combination.name), SAVE_PATH)


def _content(options: LaunchOptions, trees: Sequence[Json], choice: ModelChoice) -> str:
    """Return the hash of what is evaluated. How it runs (jobs, partition, time) may change when it is resumed."""
    model = ""
    trees = [copy.deepcopy(tree) for tree in trees]
    if choice.model is not None:
        # The name of a conversion ends with the hash of the checkpoint's content, and perhaps the number of a version.
        model = re.sub(r"-[0-9]+$", "", str(choice.model))
        for tree in trees:
            set_value(tree, model_key(tree), model, "")
    for tree in trees:
        tree.pop("cluster", None)
    data: list[Any] = [options.jobname, trees, model, options.force_conversion]
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:16]

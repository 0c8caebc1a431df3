"""Plans a launch: turns flags, sweep and config into combinations and jobs. Reads files and writes none."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.nemo_rl import NemoRlConfig, NemoRlSection, find_source, is_nemo_rl, load_tree, parse
from rollyard.launchers.slurm.job import JobOptions, JobSpec
from rollyard.launchers.slurm.launch import (
    DEFAULT_CONFIG,
    Combination,
    Conversion,
    LaunchOptions,
    PlannedJob,
    SlurmLaunch,
)
from rollyard.launchers.slurm.sweep import (
    NO_SWEEP,
    Setting,
    Sweep,
    dump_yaml,
    find_value,
    has_key,
    read_sweep,
    set_value,
)
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.types import Json, Record, text_of
from rollyard.services.config.load import describe_error
from rollyard.services.config.overrides import shown
from rollyard.services.server.settings import parse_settings, redacted_at

SHIPPED_CONFIG = INSTALLED / "configs" / "nemo_rl_eval.yaml"
SAVE_PATH = "eval.save_path"


FindConversion = Callable[[Path, Path, Path | None, str], tuple[Path, bool]]
"""Checkpoint, config, folder of the result (None: the cache) and token (only a conversion that carries it counts; empty
for any) -> folder of the conversion, and whether it exists already. Raises OperatorError if it cannot be used."""


@dataclass(frozen=True)
class Planned:
    launch: SlurmLaunch
    files: dict[Path, str]
    cached: bool
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchPlanner:
    find_conversion: FindConversion
    here: Path
    """The folder to which relative paths refer."""
    eval_command: tuple[str, ...]
    convert_command: tuple[str, ...]

    def plan(
        self,
        options: LaunchOptions,
        overrides: Sequence[Setting],
        command_line: Sequence[str],
        launch_id: str,
        created: float,
    ) -> Planned:
        sweep = NO_SWEEP if options.sweep is None else read_sweep(self.here / Path(options.sweep).expanduser())
        config = self._config(options, sweep)
        tree = read_config(config)
        choice = choose_model(options, self.find_conversion, force_token=launch_id)
        folder = options.log_root / options.jobname / launch_id
        trees, combinations, resources = [], [], []
        fixed = {one.key for one in overrides}
        vain = dict.fromkeys(one.key for swept in sweep.combinations for one in swept if one.key in fixed)
        both = "the command line sets {key}, which the sweep sets, too: all combinations use the former"
        warnings = [both.format(key=key) for key in vain]
        several = len(sweep.combinations) > 1
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
        launch = SlurmLaunch(
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


def shares(jobs: int) -> list[tuple[str, ...]]:
    """Return the arguments with which each of the jobs of a combination collects its share of the rollouts."""
    return [()] if jobs == 1 else [(f"shard={number}/{jobs}",) for number in range(1, jobs + 1)]


@dataclass(frozen=True)
class JobPlanner:
    options: LaunchOptions
    launch_id: str
    """Part of every job's name, so that no job waits for one of another launch."""
    folder: Path
    here: Path
    """Working directory of the jobs: relative paths in a config refer to the folder of the launch's call."""

    def conversion(self, conversion: Conversion | None, command: Sequence[str]) -> list[PlannedJob]:
        """Return the job that converts the checkpoint, which needs no GPU; none if there is nothing to convert."""
        if conversion is None:
            return []
        paths = {"--dcp-ckpt-path": conversion.dcp_ckpt_path, "--dcp-config": conversion.dcp_config}
        flags = {**paths, "--hf-ckpt-path": conversion.requested_path, "--force-token": conversion.force_token}
        arguments = [word for flag, value in flags.items() if value for word in (flag, str(value))]
        name = f"{self.options.jobname}_convert-{self.launch_id}"
        spec = self._spec(Resources(nodes=1, gpus=0), name, self.folder / "conversion", [*command, *arguments])
        # The evaluations wait for the end of this very job, so that no successor may replace it.
        return [PlannedJob(spec=spec.model_copy(update={"chain": False}), combination=None)]

    def evaluations(
        self, combination: Combination, resources: Resources, command: Sequence[str], after: Sequence[PlannedJob]
    ) -> list[PlannedJob]:
        names = tuple(job.spec.name for job in after)
        jobs = []
        for number, share in enumerate(shares(self.options.jobs), 1):
            name, folder = f"{combination.name}-{self.launch_id}-job-{number}", combination.folder / f"job-{number}"
            spec = self._spec(resources, name, folder, [*command, str(combination.config), *share])
            jobs.append(PlannedJob(spec=spec, combination=combination.name, after=names))
        return jobs

    def _spec(self, resources: Resources, name: str, folder: Path, command: Sequence[str]) -> JobSpec:
        options = self.options
        variables = {"GPUS_PER_NODE": str(resources.gpus), "NUM_ACTOR_NODES": str(resources.nodes)}
        return JobSpec(
            name=name,
            folder=folder,
            command=tuple(command),
            environment={**variables, "LOG": str(options.log_root.parent)},  # the conversion's cache is in LOG
            working_directory=self.here,
            nodes=resources.nodes,
            gpus_per_node=resources.gpus,
            **{name: getattr(options, name) for name in JobOptions.model_fields},
            ray_address_argument="ray_head_node_address=" if resources.nodes > 1 else None,
        )


@dataclass(frozen=True)
class ModelChoice:
    model: Path | None = None
    """Folder of the checkpoint; None: the config, sweep or overrides choose the model."""
    conversion: Conversion | None = None
    """The necessary conversion; None if the checkpoint is converted already, or none was given."""
    cached: bool = False


def choose_model(options: LaunchOptions, find_conversion: FindConversion, force_token: str) -> ModelChoice:
    """Apply the flags of the checkpoint conversion. Raises OperatorError if they contradict each other."""
    converts = options.dcp_ckpt_path is not None
    for given, name in ((options.dcp_config, "--dcp-config"), (options.force_conversion, "--force-conversion")):
        if given and not converts:
            raise OperatorError(f"{name} has no effect without --dcp-ckpt-path")
    if options.hf_ckpt_path is not None and not converts and not options.skip_conversion:
        raise OperatorError("--hf-ckpt-path requires --dcp-ckpt-path, or --skip-conversion to evaluate it as it is")
    if options.skip_conversion and not converts and options.hf_ckpt_path is None:
        raise OperatorError("--skip-conversion requires --hf-ckpt-path, the converted checkpoint")
    if options.skip_conversion and options.force_conversion:
        raise OperatorError("--skip-conversion and --force-conversion contradict each other; use one of them")
    target = None if options.hf_ckpt_path is None else _path(options.hf_ckpt_path)
    if options.dcp_ckpt_path is None or (options.skip_conversion and target is not None):
        if target is not None and not (target / "config.json").is_file():
            raise OperatorError(f"--hf-ckpt-path {str(target)!r} has no config.json; expected a converted checkpoint")
        return ModelChoice(target)
    if options.dcp_config is None:
        raise OperatorError("--dcp-ckpt-path requires --dcp-config, the path of the checkpoint's config.yaml")
    dcp, config = _path(options.dcp_ckpt_path), _path(options.dcp_config)
    token = force_token if options.force_conversion else ""
    folder, exists = find_conversion(dcp, config, target, token)
    if exists:
        return ModelChoice(folder, cached=True)
    if options.skip_conversion:
        raise OperatorError(f"--skip-conversion: there is no conversion of {dcp} (looked for {folder})")
    conversion = Conversion(
        dcp_ckpt_path=dcp, dcp_config=config, hf_ckpt_path=folder, requested_path=target, force_token=token or None
    )
    return ModelChoice(folder, conversion)


def _path(text: str) -> Path:
    """Return the absolute path without links, so that one checkpoint has one name."""
    if not text:
        raise OperatorError("a path is empty (is a shell variable unset?)")
    return Path(text).expanduser().resolve()


OUTPUT_DIR = "output_dir"
_REFERENCE = re.compile(r"(\\*)\$\{")


def read_config(path: Path) -> Json:
    """Read a config file and the files that its key `defaults` names. References stay unresolved."""
    tree = OmegaConf.to_container(load_tree(path), resolve=False)
    return {str(key): value for key, value in tree.items()} if isinstance(tree, dict) else {}


def model_key(tree: Json) -> str:
    """Return the key of the model: that of NeMo-RL's configs, or of `ng_eval`'s own."""
    return "generation.model_name" if is_nemo_rl(tree) else "model"


def merge(tree: Json, settings: Iterable[Setting], origin: str) -> Json:
    """Return a copy of the tree with the settings applied and all references resolved. Later settings win."""
    merged: Json = copy.deepcopy(tree)
    literals: dict[str, str] = {}

    def hide(text: str) -> str:
        """Replace text that OmegaConf would take for a reference by a name."""
        if "${" not in text:
            return text
        literals[name := f"literal-{len(literals)}-of-rollyard"] = text
        return name

    def reveal(text: str) -> str:
        for name, literal in literals.items():
            text = text.replace(name, literal)
        return text

    for one in settings:
        if not one.adds:
            _check_key(tree, one.key)
        set_value(merged, one.key, _map_strings(one.value, hide), origin)
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(merged), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise OperatorError(f"{origin}: {describe_error(error)}") from error
    shown: Json = _map_strings(resolved, reveal)
    return shown


def validate(tree: Json, origin: str) -> None:
    """Check the config as the job will, so that a mistake is found before the submission. Raises OperatorError."""
    if is_nemo_rl(tree):
        find_source(parse(DictConfig(_escaped(tree)), origin).data)
    else:
        parse_settings(EvalConfig, {OUTPUT_DIR: "run", **tree}, origin)


def as_yaml(tree: Json) -> str:
    return dump_yaml(_escaped(tree))


def _escaped(tree: Json) -> Json:
    """Return the tree with `${` escaped, so that OmegaConf takes it for text."""
    # OmegaConf halves the backslashes in front of a reference; an odd number escapes it.
    found: Json = _map_strings(tree, lambda text: _REFERENCE.sub(lambda one: f"{one[1] * 2}\\${{", text))
    return found


def _check_key(tree: Json, key: str) -> None:
    ours = not is_nemo_rl(tree)
    # Mappings with arbitrary names.
    open_mappings = ("vllm", "responses_create_params", "data") if ours else ("tokenizer.chat_template_kwargs",)
    if has_key(tree, key) or any(key.startswith(f"{name}.") for name in open_mappings):
        return
    known = {*(EvalConfig.model_fields if ours else _section_keys(NemoRlConfig)), *_leaves(tree)}
    if key not in known:
        raise OperatorError(
            f"unknown key {key!r}{did_you_mean(key, known)} (no such key in the config; to add it anyway, write +{key})"
        )


def _section_keys(model: type[NemoRlSection], prefix: str = "") -> Iterable[str]:
    for name, found in model.model_fields.items():
        kind = found.annotation
        if isinstance(kind, type) and issubclass(kind, NemoRlSection):
            yield from _section_keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def _leaves(tree: Json, prefix: str = "") -> Iterable[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _map_strings(item, change) for key, item in value.items()}
    return value


DEFAULT_NODES, DEFAULT_GPUS = 1, 8


class Resources(Record):
    """Used alike for `--gres`, `cluster.gpus_per_node` and GPUS_PER_NODE."""

    nodes: int
    gpus: int


def read_resources(tree: Json, options: LaunchOptions, warnings: list[str]) -> Resources:
    """Return the resources of a merged config. Raises OperatorError if they are invalid or too small for vLLM."""
    nodes = options.nodes or _integer(tree, "cluster.num_nodes", 1)
    gpus = options.gpus if options.gpus is not None else _integer(tree, "cluster.gpus_per_node", 0)
    missing = []
    if nodes is None:
        nodes = DEFAULT_NODES
        missing.append("the config has no cluster.num_nodes; using 1 node (--nodes sets it)")
    if gpus is None:
        gpus = DEFAULT_GPUS
        missing.append("the config has no cluster.gpus_per_node; using 8 GPUs per node (--gpus sets it)")
    warnings += [text for text in missing if text not in warnings]
    section, needed = "generation.vllm_cfg" if is_nemo_rl(tree) else "vllm", 1
    for name in ("tensor", "pipeline"):
        size = find_value(tree, f"{section}.{name}_parallel_size")
        needed *= int(size) if isinstance(size, str) and size.isdecimal() else size if type(size) is int else 1
    if gpus and needed > nodes * gpus:
        raise OperatorError(
            f"tensor_parallel_size x pipeline_parallel_size requires {needed} GPUs, but the job has {nodes} x {gpus}; "
            "raise --nodes or --gpus"
        )
    return Resources(nodes=nodes, gpus=gpus)


def _integer(tree: Json, key: str, least: int) -> int | None:
    found = find_value(tree, key)
    if found is None:
        return None
    if type(found) is not int or found < least:
        raise OperatorError(f"{key} is {found!r}; expected an integer of {least} or more")
    return found

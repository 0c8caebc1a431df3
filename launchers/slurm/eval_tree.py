"""The config of one evaluation as a nested mapping: merged at submission, and read by `ng_eval` inside the job.

References such as `${generation.model_name}` in config files are resolved here. Values of sweeps and of the command
line are literal: `${HOME}` in them stays text.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.nemo_rl_config import NemoRlConfig, Section, is_nemo_rl, load_tree, parse
from rollyard.launchers.evaluation.nemo_rl_run import find_source
from rollyard.launchers.slurm.launch_arguments import LaunchOptions
from rollyard.launchers.slurm.sweep import Setting, dump_yaml, find_value, has_key, set_value
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.types import Json, Record
from rollyard.services.config.load import describe_error
from rollyard.services.server.settings import parse_settings

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
    """Return a copy of the tree with the settings applied and all references resolved. Later settings win.

    Raises OperatorError if a setting has an unknown key, or a reference cannot be resolved.
    """
    merged: Json = copy.deepcopy(tree)
    literals: dict[str, str] = {}
    for one in settings:
        if not one.adds:
            _check_key(tree, one.key)
        set_value(merged, one.key, _map_strings(one.value, lambda text: _hide(text, literals)), origin)
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(merged), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise OperatorError(f"{origin}: {describe_error(error)}") from error
    shown: Json = _map_strings(resolved, lambda text: _reveal(text, literals))
    return shown


def validate(tree: Json, origin: str) -> None:
    """Check the config as the job will, so that a mistake is found before the submission. Raises OperatorError."""
    if is_nemo_rl(tree):
        find_source(parse(DictConfig(_escaped(tree)), origin).data)
    else:
        parse_settings(EvalConfig, {OUTPUT_DIR: "run", **tree}, origin)


def as_yaml(tree: Json) -> str:
    """Return the tree as YAML from which OmegaConf reads the same values."""
    return dump_yaml(_escaped(tree))


def _escaped(tree: Json) -> Json:
    """Return the tree with `${` escaped, so that OmegaConf takes it for text."""
    # OmegaConf halves the backslashes in front of a reference; an odd number escapes it.
    found: Json = _map_strings(tree, lambda text: _REFERENCE.sub(lambda one: f"{one[1] * 2}\\${{", text))
    return found


def _check_key(tree: Json, key: str) -> None:
    if has_key(tree, key) or any(key.startswith(f"{name}.") for name in _open_mappings(tree)):
        return
    known = set(_known_keys(tree))
    if key in known:
        return
    raise OperatorError(
        f"unknown key {key!r}{did_you_mean(key, known)} (no such key in the config; to add it anyway, write +{key})"
    )


def _known_keys(tree: Json) -> Iterable[str]:
    yield from _section_keys(NemoRlConfig) if is_nemo_rl(tree) else EvalConfig.model_fields
    yield from _leaves(tree)


def _section_keys(model: type[Section], prefix: str = "") -> Iterable[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _section_keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def _open_mappings(tree: Json) -> tuple[str, ...]:
    """Return the keys whose mappings have arbitrary names."""
    own = ("vllm", "responses_create_params", "data")
    return ("tokenizer.chat_template_kwargs",) if is_nemo_rl(tree) else own


def _leaves(tree: Json, prefix: str = "") -> Iterable[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")


def _hide(text: str, literals: dict[str, str]) -> str:
    """Replace text that OmegaConf would take for a reference by a name."""
    if "${" not in text:
        return text
    name = f"literal-{len(literals)}-of-rollyard"
    literals[name] = text
    return name


def _reveal(text: str, literals: dict[str, str]) -> str:
    for name, literal in literals.items():
        text = text.replace(name, literal)
    return text


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
    """GPUs per node."""


def read_resources(tree: Json, options: LaunchOptions, warnings: list[str]) -> Resources:
    """Return the resources of a merged config. Raises OperatorError if they are invalid or too small for vLLM."""
    nodes = options.nodes or _integer(tree, "cluster.num_nodes", 1)
    gpus = options.gpus if options.gpus is not None else _integer(tree, "cluster.gpus_per_node", 0)
    if nodes is None:
        nodes = DEFAULT_NODES
        _warn(warnings, "the config has no cluster.num_nodes; using 1 node (--nodes sets it)")
    if gpus is None:
        gpus = DEFAULT_GPUS
        _warn(warnings, "the config has no cluster.gpus_per_node; using 8 GPUs per node (--gpus sets it)")
    needed = _gpus_of_engine(tree)
    if gpus and needed > nodes * gpus:
        raise OperatorError(
            f"tensor_parallel_size x pipeline_parallel_size requires {needed} GPUs, but the job has {nodes} x {gpus}; "
            "raise --nodes or --gpus"
        )
    return Resources(nodes=nodes, gpus=gpus)


def _gpus_of_engine(tree: Json) -> int:
    section = "generation.vllm_cfg" if is_nemo_rl(tree) else "vllm"
    sizes = [find_value(tree, f"{section}.{name}_parallel_size") for name in ("tensor", "pipeline")]
    product = 1
    for size in sizes:
        product *= int(size) if isinstance(size, str) and size.isdecimal() else size if type(size) is int else 1
    return product


def _integer(tree: Json, key: str, least: int) -> int | None:
    found = find_value(tree, key)
    if found is None:
        return None
    if type(found) is not int or found < least:
        raise OperatorError(f"{key} is {found!r}; expected an integer of {least} or more")
    return found


def _warn(warnings: list[str], text: str) -> None:
    if text not in warnings:
        warnings.append(text)

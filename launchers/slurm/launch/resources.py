"""Nodes and GPUs of an evaluation's jobs: flags, else the config's `cluster` section."""

from __future__ import annotations

from rollyard.launchers.evaluation.nemo_rl.config import is_nemo_rl
from rollyard.launchers.slurm.launch.dotted_keys import find_value
from rollyard.launchers.slurm.launch.launch_options import LaunchOptions
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json, Record

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

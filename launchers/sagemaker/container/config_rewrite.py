"""Replaces the model's path, addresses of data and the output folder in a config; everything else stays as it is.

The YAML is parsed to find the values. Only their text is replaced, so that comments, quotes and number formats remain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from rollyard.launchers.sagemaker.container.model_source import source_order
from rollyard.records.errors import OperatorError
from rollyard.records.io import s3

MODEL_KEYS = (
    *("path", "model", "model_path", "name_or_path", "model_name_or_path", "pretrained_model_name_or_path"),
    *("tokenizer", "tokenizer_path", "hf_assets_path"),
)
"""Keys whose value is replaced if it equals the model's path."""
DATA_KEYS = ("data", "sft_data", "input_jsonl_fpath")
"""Top-level keys below which values of the form s3://... are data."""
SERVED = "vllm/"
"""`model: vllm/Qwen/Qwen3-4B` in the config of an evaluation: the model that it serves."""

_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)+")


@dataclass(frozen=True)
class Resolvers:
    """What replaces the values of a config."""

    model: Callable[[str, str | Sequence[str]], str]
    """Path and source of a model -> where it is."""
    data: Callable[[str], str]
    output_dir: Path
    """Replaces `output_dir`, because a folder inside the project would be lost with the job."""
    model_source: str | None = None
    """Overrides `model.source`."""


def rewrite(text: str, name: str, resolvers: Resolvers) -> str:
    """Return the config with its paths replaced. Raises OperatorError if it is not a YAML mapping."""
    tree = _parsed(text, name)
    edits = {node.start_mark.index: (node, value) for node, value in _replacements(tree, resolvers)}
    for start in sorted(edits, reverse=True):
        node, value = edits[start]
        text = _replaced(text, node, value)
    return text


def check_config(file: Path, name: str) -> None:
    """Raise OperatorError if a job could not use the config, before an instance is started for it."""
    try:
        tree = _parsed(file.read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{name} cannot be read: {error}") from error
    source_order(_source(_items(tree).get("model")))


def run_name(file: Path) -> str | None:
    """Return `run.name` of a config; None if it has none, or cannot be read, which `rewrite` reports."""
    try:
        run = _items(_parsed(file.read_text(encoding="utf-8"), file.name)).get("run")
    except (OSError, UnicodeDecodeError, OperatorError):
        return None
    name = _items(run).get("name") if isinstance(run, MappingNode) else None
    return name.value or None if isinstance(name, ScalarNode) and name.tag.endswith(":str") else None


def with_output_dir(text: str, output_dir: Path) -> str:
    """Return the config with `output_dir` as its first key, unless it has one."""
    tree = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(tree, MappingNode) or "output_dir" in _items(tree):
        return text
    setting = f"output_dir: {json.dumps(str(output_dir))}"
    if not tree.value:
        return f"{setting}\n"
    first = tree.value[0][0].start_mark
    separator = ", " if tree.flow_style else "\n" + " " * first.column
    return f"{text[: first.index]}{setting}{separator}{text[first.index :]}"


def _parsed(text: str, name: str) -> MappingNode:
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise OperatorError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, MappingNode):
        raise OperatorError(f"{name} is not a YAML mapping")
    return tree


def _replacements(tree: MappingNode, resolvers: Resolvers) -> Iterator[tuple[ScalarNode, str]]:
    top = _items(tree)
    source = resolvers.model_source or _source(top.get("model"))
    for key in DATA_KEYS:
        for _, node in _scalars(top.get(key), key):
            if node.value.startswith(s3.SCHEME):
                yield node, resolvers.data(node.value)
    output = top.get("output_dir")
    if isinstance(output, ScalarNode) and not output.value.startswith(s3.SCHEME):
        yield output, str(resolvers.output_dir)
    for path in _models(top):
        found = resolvers.model(path, source)
        for key, node in _scalars(tree, ""):
            if key in MODEL_KEYS and node.value == path:
                yield node, found
            elif key == "model" and node.value == SERVED + path:
                yield node, SERVED + found


def _models(top: dict[str, Node]) -> list[str]:
    """Return the model paths of a config, in the formats of training and of evaluations."""
    paths = []
    model = top.get("model")
    if isinstance(model, MappingNode) and isinstance(path := _items(model).get("path"), ScalarNode):
        paths.append(path.value)
    elif isinstance(model, ScalarNode) and model.value.startswith(SERVED):
        paths.append(model.value.removeprefix(SERVED))
    if isinstance(checkpoints := top.get("checkpoints"), SequenceNode):
        found = (_items(item).get("path") for item in checkpoints.value if isinstance(item, MappingNode))
        paths += [node.value for node in found if isinstance(node, ScalarNode)]
    return list(dict.fromkeys(paths))


def _source(model: Node | None) -> str | list[str]:
    source = _items(model).get("source") if isinstance(model, MappingNode) else None
    if isinstance(source, SequenceNode):
        return [str(item.value) for item in source.value]
    return source.value if isinstance(source, ScalarNode) else "auto"


def _items(node: MappingNode) -> dict[str, Node]:
    return {key.value: value for key, value in node.value if isinstance(key, ScalarNode)}


def _scalars(node: Node | None, key: str) -> Iterator[tuple[str, ScalarNode]]:
    """Yield all scalars with the key that they belong to; the items of a list belong to the list's key."""
    if isinstance(node, ScalarNode):
        yield key, node
    elif isinstance(node, SequenceNode):
        for item in node.value:
            yield from _scalars(item, key)
    elif isinstance(node, MappingNode):
        for name, value in node.value:
            yield from _scalars(value, str(name.value))


def _replaced(text: str, node: ScalarNode, value: str) -> str:
    """Replace the text of one value. A JSON string is a YAML string, whatever it contains."""
    old = text[node.start_mark.index : node.end_mark.index]
    kept = found[0] if (found := _PROPERTIES.match(old)) else ""  # an anchor, which aliases refer to
    end = "\n" if node.style in ("|", ">") else ""
    return f"{text[: node.start_mark.index]}{kept}{json.dumps(value)}{end}{text[node.end_mark.index :]}"

"""Bounds YAML whose aliases expand to far more than the file contains."""

from __future__ import annotations

import yaml

MAX_NODES = 1_000_000


def check_aliases(text: str) -> None:
    """Raise ValueError if the aliases of `text` expand to more than MAX_NODES values, YAMLError for invalid YAML."""
    if "*" not in text or "&" not in text:
        return
    for document in yaml.compose_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if document is not None and _expanded(document, {}) > MAX_NODES:
            raise ValueError(f"its aliases (*name) expand to more than {MAX_NODES:,} values. Write it without them")


def _expanded(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values below `node`. An alias is the same node object, which is counted once."""
    if (found := known.get(id(node))) is not None:
        return found
    known[id(node)] = 1  # for a node that contains itself
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [part for pair in node.value for part in pair]
    known[id(node)] = 1 + sum(_expanded(child, known) for child in children)
    return known[id(node)]

"""Reads subsets and splits from a dataset card (README.md) whose front matter has `configs`.

Format: https://huggingface.co/docs/hub/datasets-manual-configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rollyard.records.errors import OperatorError
from rollyard.records.io.yaml_aliases import check_aliases
from rollyard.services.datasets.split_names import DEFAULT, Layout, by_names

CARD = "README.md"


def declared(location: str, names: Sequence[str], card: str) -> tuple[Layout, str | None]:
    """Return the existing files by subset and split, as listed in `configs`, and the default subset.

    Raises OperatorError if the front matter is invalid or none of the listed files exists.
    """
    configs = _configs(location, card)
    listed = [str(config.get("config_name") or DEFAULT) for config in configs]
    if duplicate := next((name for name in listed if listed.count(name) > 1), None):
        raise OperatorError(f"{location}: {CARD} lists the config {duplicate!r} more than once; expected unique names")
    layout: dict[str, dict[str, list[str]]] = {}
    default_subset: str | None = None
    for config in configs:
        name = str(config.get("config_name") or DEFAULT)
        folder = str(config.get("data_dir") or "").strip("./")
        in_folder = [item for item in names if not folder or item.startswith(f"{folder}/")]
        patterns = config.get("data_files")
        splits: dict[str, list[str]] = {}
        if patterns is None:
            for subset in by_names(item.removeprefix(f"{folder}/") for item in in_folder).values():
                for split, files in subset.items():
                    splits.setdefault(split, []).extend(f"{folder}/{item}" if folder else item for item in files)
        else:
            for split, globs in _patterns(location, patterns).items():
                splits[split] = [item for item in in_folder if any(_matches(item, folder, glob) for glob in globs)]
        splits = {split: files for split, files in splits.items() if files}
        if splits:
            layout[name] = splits
            if config.get("default") is True or (name == DEFAULT and default_subset is None):
                default_subset = name
    if configs and not layout:
        raise OperatorError(
            f"{location}: none of the files that its {CARD} lists for {', '.join(listed[:5])} exists. Download "
            "them, or pass the path of a single file"
        )
    return layout, default_subset


def _configs(location: str, card: str) -> list[Mapping[str, Any]]:
    front_matter = re.match(r"\ufeff?---\r?\n(.*?)\n---\s*(?:\n|$)", card, re.DOTALL)
    if front_matter is None:
        return []
    try:
        check_aliases(front_matter[1])
        tree = yaml.safe_load(front_matter[1])
    except (yaml.YAMLError, ValueError) as error:
        raise OperatorError(
            f"{location}: the front matter of its {CARD} cannot be parsed: {' '.join(str(error).split())}"
        ) from error
    configs = tree.get("configs") if isinstance(tree, dict) else None
    return [item for item in configs if isinstance(item, dict)] if isinstance(configs, list) else []


def _patterns(location: str, spec: Any) -> dict[str, list[str]]:
    """Map each split to its globs. A bare string or list of strings means the `train` split."""
    if isinstance(spec, str):
        spec = [spec]
    if isinstance(spec, dict):
        spec = [{"split": split, "path": path} for split, path in spec.items()]
    patterns: dict[str, list[str]] = {}
    for item in spec if isinstance(spec, list) else [None]:
        split, path = (item.get("split"), item.get("path")) if isinstance(item, dict) else ("train", item)
        paths = [text for text in (path if isinstance(path, list) else [path]) if isinstance(text, str)]
        if split is None or not paths:
            raise OperatorError(
                f"{location}: data_files in its {CARD} is {spec!r:.80}; expected a split and a path in each entry"
            )
        patterns.setdefault(str(split), []).extend(text.removeprefix("./") for text in paths)
    return patterns


def _matches(name: str, folder: str, pattern: str) -> bool:
    """Return whether a hub-style glob matches the file: `*` matches within a folder, `**` across folders."""
    if folder:
        name = name.removeprefix(f"{folder}/")
    return re.fullmatch(_regex(pattern), name) is not None


def _regex(pattern: str) -> str:
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\]|\{[^}]+\})", pattern)
    regex = ""
    for part in parts:
        if part.startswith("[") and len(part) > 2:
            regex += part.replace("[!", "[^")
        elif part.startswith("{") and len(part) > 2:
            regex += "(?:" + "|".join(map(re.escape, part[1:-1].split(","))) + ")"
        else:
            regex += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part))
    return regex

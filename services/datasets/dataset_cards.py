"""The card of a data set (README.md): which files are which subset and split, where its settings list `configs`.

Their form: https://huggingface.co/docs/hub/datasets-manual-configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rollyard.services.datasets.split_names import DEFAULT, Layout, by_names
from rollyard.services.errors import OperatorError

CARD = "README.md"


def declared(place: str, names: Sequence[str], card: str) -> tuple[Layout, str | None]:
    """What the card's `configs` say of the files that are there, and the usual subset. Raises OperatorError."""
    configs = _configs(place, card)
    listed = [str(config.get("config_name") or DEFAULT) for config in configs]
    if twice := next((name for name in listed if listed.count(name) > 1), None):
        raise OperatorError(f"{place}: the config {twice!r} is in its {CARD} more than once; expected each name once")
    layout: dict[str, dict[str, list[str]]] = {}
    usual: str | None = None
    for config in configs:
        name = str(config.get("config_name") or DEFAULT)
        folder = str(config.get("data_dir") or "").strip("./")
        below = [one for one in names if not folder or one.startswith(f"{folder}/")]
        patterns = config.get("data_files")
        splits: dict[str, list[str]] = {}
        if patterns is None:
            for subset in by_names(one.removeprefix(f"{folder}/") for one in below).values():
                for split, files in subset.items():
                    splits.setdefault(split, []).extend(f"{folder}/{one}" if folder else one for one in files)
        else:
            for split, globs in _patterns(place, patterns).items():
                splits[split] = [one for one in below if any(_matches(one, folder, glob) for glob in globs)]
        splits = {split: files for split, files in splits.items() if files}
        if splits:
            layout[name] = splits
            if config.get("default") is True or (name == DEFAULT and usual is None):
                usual = name
    if configs and not layout:
        raise OperatorError(
            f"{place}: none of the files that its {CARD} lists for {', '.join(listed[:5])} is there. Fetch them, or "
            "give the path of one file"
        )
    return layout, usual


def _configs(place: str, card: str) -> list[Mapping[str, Any]]:
    head = re.match(r"\ufeff?---\r?\n(.*?)\n---\s*(?:\n|$)", card, re.DOTALL)
    if head is None:
        return []
    try:
        tree = yaml.safe_load(head[1])
    except yaml.YAMLError as error:
        raise OperatorError(
            f"{place}: the settings in its {CARD} cannot be read: {' '.join(str(error).split())}"
        ) from error
    configs = tree.get("configs") if isinstance(tree, dict) else None
    return [one for one in configs if isinstance(one, dict)] if isinstance(configs, list) else []


def _patterns(place: str, given: Any) -> dict[str, list[str]]:
    """Split -> globs. A text or a list of texts is the split train."""
    if isinstance(given, str):
        given = [given]
    if isinstance(given, dict):
        given = [{"split": split, "path": path} for split, path in given.items()]
    patterns: dict[str, list[str]] = {}
    for one in given if isinstance(given, list) else [None]:
        split, path = (one.get("split"), one.get("path")) if isinstance(one, dict) else ("train", one)
        paths = [text for text in (path if isinstance(path, list) else [path]) if isinstance(text, str)]
        if split is None or not paths:
            raise OperatorError(f"{place}: data_files in its {CARD} are {given!r:.80}; expected split and path of each")
        patterns.setdefault(str(split), []).extend(text.removeprefix("./") for text in paths)
    return patterns


def _matches(name: str, folder: str, pattern: str) -> bool:
    """Whether the hub's glob is of the file: `*` stays in a folder, `**` goes into folders."""
    if folder:
        name = name.removeprefix(f"{folder}/")
    return re.fullmatch(_regex(pattern), name) is not None


def _regex(pattern: str) -> str:
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\]|\{[^}]+\})", pattern)
    made = ""
    for part in parts:
        if part.startswith("[") and len(part) > 2:
            made += part.replace("[!", "[^")
        elif part.startswith("{") and len(part) > 2:
            made += "(?:" + "|".join(map(re.escape, part[1:-1].split(","))) + ")"
        else:
            made += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part))
    return made

"""Selects the files of a split and subset: by the dataset card's `configs`, or by file names. Ambiguity is an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from rollyard.records.data_files import COMPRESSED, DELIMITED
from rollyard.records.errors import OperatorError
from rollyard.records.yaml_aliases import check_aliases

DEFAULT = "default"
"""The hub's name for an unnamed subset."""
TEXTS = (".jsonl", ".json")
TABLES = (".parquet", ".arrow")
READABLE = (*TEXTS, *(kind + ending for kind in TEXTS for ending in COMPRESSED), *TABLES)
"""Extensions of the files that may contain rows."""
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_OF = {keyword: split for split, keywords in _KEYWORDS.items() for keyword in keywords}
_SHARD = re.compile(r"(?P<name>\w+(?:\.\w+)*)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?")
_NO_NAME = frozenset({"data", "dataset", "part", "parts", "shard", "chunk", "file", "rows", "batch", "of", ""})
"""Words in a path that name neither a split nor a subset."""

Layout = Mapping[str, Mapping[str, Sequence[str]]]
"""Subset -> split -> files. The split is an empty string for files whose paths do not contain one."""


def by_names(names: Iterable[str]) -> Layout:
    """Group files by the subset and the split that their paths contain."""
    layout: dict[str, dict[str, list[str]]] = {}
    for name in names:
        subset, splits = _read(name)
        # A name with two splits belongs to neither: `train_test.jsonl` may contain both.
        layout.setdefault(subset, {}).setdefault(" and ".join(splits), []).append(name)
    if any(split for splits in layout.values() for split in splits):
        # If some files have a split, the hub ignores files without one.
        layout = {
            subset: {split: files for split, files in splits.items() if split} for subset, splits in layout.items()
        }
    return {subset: splits for subset, splits in layout.items() if splits}


def canonical_split(split: str) -> str:
    """Return the split that a keyword stands for, such as `validation` for `dev`. Other names are not changed."""
    return _SPLIT_OF.get(split, split)


def stem_of(name: str) -> str:
    """Return a path without its file extensions: `main/train` for `main/train.jsonl.gz`."""
    for endings in (COMPRESSED, (*TEXTS, *TABLES, *DELIMITED)):
        name = next((name.removesuffix(ending) for ending in endings if name.endswith(ending)), name)
    return name


def _read(name: str) -> tuple[str, Sequence[str]]:
    *folders, last = PurePosixPath(stem_of(name)).parts
    splits: dict[str, None] = {}
    words: list[str] = []
    for folder in folders:
        remaining, found = _words(folder)
        splits.update(dict.fromkeys(found))
        if remaining:
            words.append("_".join(remaining) if found else folder)
    shard = _SHARD.fullmatch(last)
    words_of_name, found = _words(shard["name"] if shard else last)
    if shard and words_of_name and not splits:
        splits[shard["name"]] = None  # test_sft-00000-of-00001: the complete name is the split
    else:
        splits.update(dict.fromkeys(found))
        words += ["_".join(words_of_name)] if words_of_name else []
    return "/".join(words) or DEFAULT, tuple(splits)


def _words(part: str) -> tuple[list[str], list[str]]:
    """Return the words in part of a path, without numbers and keywords, and the splits that its keywords stand for."""
    remaining: list[str] = []
    found: list[str] = []
    for piece in re.split(r"[-._ ]+", part):
        core = piece.strip("0123456789").lower()
        if (split := _SPLIT_OF.get(core)) is not None:
            found.append(split)
        elif core not in _NO_NAME:
            remaining.append(piece)
    return remaining, found


CARD = "README.md"


def declared(location: str, names: Sequence[str], card: str) -> tuple[Layout, str | None]:
    """Return the existing files by subset and split as `configs` lists them, and the default subset; may raise."""
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


ALL = "all"
"""The name that selects every subset or every split."""


class AmbiguousFiles(OperatorError):
    """The selection does not match any file, or is ambiguous."""


@dataclass(frozen=True)
class SplitSelection:
    split: str | None = None
    """The split that the user requested."""
    subset: str | None = None
    """The subset that the user requested."""
    default_split: str | None = None
    """The split to use if the user did not request one."""
    default_subset: str | None = None
    """The subset to use if there are several and the user did not request one."""


def select_files(location: str, names: Iterable[str], card: str, selection: SplitSelection) -> list[str]:
    """Return the selected files of `names` (paths under `location`). Raises AmbiguousFiles without one choice."""
    names = sorted(names)
    layout, card_default = declared(location, names, card)
    layout = layout or by_names(names)
    subsets = _subsets(location, layout, selection, card_default)
    selected = [name for subset in subsets for name in _files(location, subset, layout[subset], selection)]
    if not selected:
        raise AmbiguousFiles(
            f"{location} has no file for the split {selection.split or selection.default_split!r}; "
            f"available: {_describe(layout)}"
        )
    _check_formats(location, selected)
    return sorted(dict.fromkeys(selected))


def check_file(name: str, selection: SplitSelection) -> None:
    """Raise AmbiguousFiles if the name of the requested file contradicts the requested split."""
    splits = _read(name.rpartition("/")[2])[1]
    if splits and selection.split not in (None, ALL) and canonical_split(selection.split) not in splits:
        raise AmbiguousFiles(f"{name} belongs to the split {' and '.join(splits)}, but --split is {selection.split}")


def _subsets(location: str, layout: Layout, selection: SplitSelection, card_default: str | None) -> list[str]:
    if selection.subset is not None and selection.subset not in (ALL, *layout):
        raise AmbiguousFiles(
            f"{location} has no subset {selection.subset!r}; available: {_describe(layout)}; select one with --subset"
        )
    for subset in (selection.subset, selection.default_subset):
        if subset == ALL:
            return list(layout)
        if subset in layout:
            return [str(subset)]
    if len(layout) == 1:
        return list(layout)
    if card_default in layout:
        return [str(card_default)]
    raise AmbiguousFiles(
        f"{location} has several subsets: {_describe(layout)}; select one with --subset, or all with --subset all"
    )


def _files(location: str, subset: str, splits: Mapping[str, Sequence[str]], selection: SplitSelection) -> Sequence[str]:
    for split in (selection.split, selection.default_split):
        if split == ALL:
            return [name for names in splits.values() for name in names]
        if split is not None and (name := split if split in splits else canonical_split(split)) in splits:
            return splits[name]
        # The hub assigns files without a split in their names to train.
        if list(splits) == [""] and (selection.split is None or split == "train"):
            return splits[""]
        if split is not None:
            return []
    named = {split: names for split, names in splits.items() if split}
    if len(named or splits) > 1:
        raise AmbiguousFiles(
            f"{location} has several splits: {_describe({subset: splits})}; select one with --split, or all with "
            "--split all"
        )
    return next(iter((named or splits).values()))


def _check_formats(location: str, names: Iterable[str]) -> None:
    """Raise AmbiguousFiles if the same rows exist in two formats, such as `train.jsonl` and `train.parquet`."""
    stems: dict[str, str] = {}
    for name in names:
        if (other := stems.setdefault(stem_of(name), name)) != name:
            raise AmbiguousFiles(
                f"{location} has {other} and {name}, the same rows in two formats: pass one of the files"
            )


def _describe(layout: Layout) -> str:
    subsets = [
        f"{subset} ({', '.join(split or 'no split name' for split in splits)})" for subset, splits in layout.items()
    ]
    shown = ", ".join(subsets[:12]) + (f" and {len(subsets) - 12} more" if len(subsets) > 12 else "")
    return shown or "no data files"

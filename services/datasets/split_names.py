"""Derives the split and subset of a file from its path, following the conventions of the Hugging Face hub.

`data/test-00000-of-00001.parquet`, `test.jsonl` and `test/0.parquet` belong to the split `test`. The remaining words of
a path (`socratic/test.jsonl`, `test_socratic.jsonl`) form its subset. This keeps unrelated files apart, whereas the hub
would combine them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from rollyard.records.datasets.columns import DELIMITED
from rollyard.records.datasets.compression import COMPRESSED

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


def splits_of(name: str) -> Sequence[str]:
    """Return the split that a path contains, if any, or several splits if the parts of the path disagree."""
    return _read(name)[1]


def canonical_split(split: str) -> str:
    """Return the split that a keyword stands for, such as `validation` for `dev`. Other names are not changed."""
    return _SPLIT_OF.get(split, split)


def stem_of(name: str) -> str:
    """Return a path without its file extensions: `main/train` for `main/train.jsonl.gz`."""
    for endings in (COMPRESSED, (*TEXTS, *TABLES, *DELIMITED)):
        name = next((name.removesuffix(ending) for ending in endings if name.endswith(ending)), name)
    return name


def _read(name: str) -> tuple[str, Sequence[str]]:
    """Return the subset and the splits of a path."""
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

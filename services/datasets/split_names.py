"""What the name of a data set's file tells: its split and its subset, by the conventions of the Hugging Face hub.

`data/test-00000-of-00001.parquet`, `test.jsonl` and `test/0.parquet` are of the split test; what else a path says in
words (`socratic/test.jsonl`, `test_socratic.jsonl`) is its subset, so that files which do not belong together are told
apart where the hub would read them as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

DEFAULT = "default"
"""What the hub calls a subset without a name."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
TEXTS = (".jsonl", ".json")
TABLES = (".parquet", ".arrow")
READABLE = (*TEXTS, *(kind + ending for kind in TEXTS for ending in COMPRESSED), *TABLES)
"""How the names of files end that may hold rows."""
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_OF = {keyword: split for split, keywords in _KEYWORDS.items() for keyword in keywords}
_SHARD = re.compile(r"(?P<name>\w+(?:\.\w+)*)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?")
_NO_NAME = frozenset({"data", "dataset", "part", "parts", "shard", "chunk", "file", "rows", "batch", "of", ""})
"""Words of a path that name neither a split nor a subset."""

Layout = Mapping[str, Mapping[str, Sequence[str]]]
"""Subset -> split -> files; the split is empty where no name says one."""


def by_names(names: Iterable[str]) -> Layout:
    """Files by what their paths tell."""
    layout: dict[str, dict[str, list[str]]] = {}
    for name in names:
        subset, splits = _read(name)
        # A name that says two splits is of neither: `train_test.jsonl` may hold both.
        layout.setdefault(subset, {}).setdefault(" and ".join(splits), []).append(name)
    if any(split for splits in layout.values() for split in splits):
        # Beside files of a split, the hub reads none without one.
        layout = {
            subset: {split: files for split, files in splits.items() if split} for subset, splits in layout.items()
        }
    return {subset: splits for subset, splits in layout.items() if splits}


def splits_of(name: str) -> Sequence[str]:
    """The splits that a path names; several where its parts disagree."""
    return _read(name)[1]


def usual_name(split: str) -> str:
    """The split that a keyword means: `validation` for `dev`; other names are kept."""
    return _SPLIT_OF.get(split, split)


def stem_of(name: str) -> str:
    """A path without what tells the form of its content: `main/train` of `main/train.jsonl.gz`."""
    for endings in (COMPRESSED, (*TEXTS, *TABLES)):
        name = next((name.removesuffix(ending) for ending in endings if name.endswith(ending)), name)
    return name


def _read(name: str) -> tuple[str, Sequence[str]]:
    """Subset and splits that a path tells."""
    *folders, last = PurePosixPath(stem_of(name)).parts
    splits: dict[str, None] = {}
    words: list[str] = []
    for folder in folders:
        left, found = _words(folder)
        splits.update(dict.fromkeys(found))
        if left:
            words.append("_".join(left) if found else folder)
    shard = _SHARD.fullmatch(last)
    own, found = _words(shard["name"] if shard else last)
    if shard and own and not splits:
        splits[shard["name"]] = None  # test_sft-00000-of-00001: the split's whole name
    else:
        splits.update(dict.fromkeys(found))
        words += ["_".join(own)] if own else []
    return "/".join(words) or DEFAULT, tuple(splits)


def _words(part: str) -> tuple[list[str], list[str]]:
    """The words of a part of a path, without numbers and keywords, and the splits of its keywords."""
    kept: list[str] = []
    found: list[str] = []
    for piece in re.split(r"[-._ ]+", part):
        core = piece.strip("0123456789").lower()
        if (split := _SPLIT_OF.get(core)) is not None:
            found.append(split)
        elif core not in _NO_NAME:
            kept.append(piece)
    return kept, found

"""Splits and subsets: which files of a data set's folder are read. One rule for a folder, a prefix in S3 and the hub.

The card decides where it lists `configs` (`services/datasets/dataset_cards.py`), else the files' names do
(`services/datasets/split_names.py`). What is ambiguous is refused, never mixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rollyard.services.datasets.dataset_cards import declared
from rollyard.services.datasets.split_names import Layout, by_names, splits_of, stem_of, usual_name
from rollyard.services.errors import OperatorError

ALL = "all"
"""Asks for every subset, or every split."""


class AmbiguousFiles(OperatorError):
    """The place has rows, but what was asked for does not say which of them."""


@dataclass(frozen=True)
class Wanted:
    """What to take of a folder."""

    split: str | None = None
    """Asked for by the user."""
    subset: str | None = None
    """Asked for by the user."""
    usual_split: str | None = None
    """Taken where the user asks for none."""
    usual_subset: str | None = None
    """Taken where the user asks for none and there are several."""


def chosen(place: str, names: Iterable[str], card: str, wanted: Wanted) -> list[str]:
    """The files of `names`, paths below `place`, that are wanted. Raises Ambiguous: none, or several."""
    names = sorted(names)
    layout, usual = declared(place, names, card)
    layout = layout or by_names(names)
    subsets = _subsets(place, layout, wanted, usual)
    found = [name for subset in subsets for name in _files(place, subset, layout[subset], wanted)]
    if not found:
        raise AmbiguousFiles(
            f"{place} has no file of the split {wanted.split or wanted.usual_split!r}: {_told(layout)}"
        )
    _check_forms(place, found)
    return sorted(dict.fromkeys(found))


def check_file(name: str, wanted: Wanted) -> None:
    """Raises Ambiguous where a file was named, and a split was asked for that its name denies."""
    splits = splits_of(name.rpartition("/")[2])
    if splits and wanted.split not in (None, ALL) and usual_name(wanted.split) not in splits:
        raise AmbiguousFiles(f"{name} is of the split {' and '.join(splits)}, and --split is {wanted.split}")


def _subsets(place: str, layout: Layout, wanted: Wanted, usual: str | None) -> list[str]:
    if wanted.subset is not None and wanted.subset not in (ALL, *layout):
        raise AmbiguousFiles(
            f"{place} has no subset {wanted.subset!r}: {_told(layout)}; name one of them with --subset"
        )
    for subset in (wanted.subset, wanted.usual_subset):
        if subset == ALL:
            return list(layout)
        if subset in layout:
            return [str(subset)]
    if len(layout) == 1:
        return list(layout)
    if usual in layout:
        return [str(usual)]
    raise AmbiguousFiles(f"{place} holds several subsets: {_told(layout)}; choose with --subset (all: every one)")


def _files(place: str, subset: str, splits: Mapping[str, Sequence[str]], wanted: Wanted) -> Sequence[str]:
    for split in (wanted.split, wanted.usual_split):
        if split == ALL:
            return [name for names in splits.values() for name in names]
        if split is not None and (name := split if split in splits else usual_name(split)) in splits:
            return splits[name]
        # Files of which no name says a split are train, says the hub.
        if list(splits) == [""] and (wanted.split is None or split == "train"):
            return splits[""]
        if split is not None:
            return []
    named = {split: names for split, names in splits.items() if split}
    if len(named or splits) > 1:
        raise AmbiguousFiles(
            f"{place} holds several splits: {_told({subset: splits})}; choose with --split (all: every one)"
        )
    return next(iter((named or splits).values()))


def _check_forms(place: str, names: Iterable[str]) -> None:
    """Raises Ambiguous where rows are there twice: `train.jsonl` and `train.parquet`."""
    stems: dict[str, str] = {}
    for name in names:
        if (other := stems.setdefault(stem_of(name), name)) != name:
            raise AmbiguousFiles(f"{place} holds {other} and {name}, the same rows in two forms: name one of the files")


def _told(layout: Layout) -> str:
    """What there is, in one line."""
    several = [
        f"{subset} ({', '.join(split or 'no split named' for split in splits)})" for subset, splits in layout.items()
    ]
    shown = ", ".join(several[:12]) + (f" and {len(several) - 12} more" if len(several) > 12 else "")
    return f"there is {shown}" if several else "there are no files of rows"

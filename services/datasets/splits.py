"""Selects the files of a split and subset in a local folder, an S3 prefix or a hub dataset.

If the dataset card lists `configs`, they define the splits (`services/datasets/dataset_cards.py`); otherwise the file
names do (`services/datasets/split_names.py`). Ambiguous selections are rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rollyard.records.errors import OperatorError
from rollyard.services.datasets.dataset_cards import declared
from rollyard.services.datasets.split_names import Layout, by_names, canonical_split, splits_of, stem_of

ALL = "all"
"""The name that selects every subset or every split."""


class AmbiguousFiles(OperatorError):
    """The selection does not match any file, or is ambiguous."""


@dataclass(frozen=True)
class SplitSelection:
    """The split and subset to read."""

    split: str | None = None
    """The split that the user requested."""
    subset: str | None = None
    """The subset that the user requested."""
    default_split: str | None = None
    """The split to use if the user did not request one."""
    default_subset: str | None = None
    """The subset to use if there are several and the user did not request one."""


def select_files(location: str, names: Iterable[str], card: str, selection: SplitSelection) -> list[str]:
    """Return the files in `names` (paths under `location`) that are selected.

    Raises AmbiguousFiles if no file is selected or the selection is ambiguous.
    """
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
    splits = splits_of(name.rpartition("/")[2])
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
    """List the available subsets and splits on one line."""
    subsets = [
        f"{subset} ({', '.join(split or 'no split name' for split in splits)})" for subset, splits in layout.items()
    ]
    shown = ", ".join(subsets[:12]) + (f" and {len(subsets) - 12} more" if len(subsets) > 12 else "")
    return shown or "no data files"

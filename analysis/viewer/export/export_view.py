"""The view of an export: which rollouts, in which order, with which columns. It is written as in the list's address."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from pydantic import ValidationError

from rollyard.analysis.viewer.api.rollout_list import SORTS, Indexes, Query
from rollyard.analysis.viewer.fields.cells import DEFAULT
from rollyard.analysis.viewer.index.run_file import RunFile
from rollyard.records.errors import OperatorError
from rollyard.records.expressions.parse import ExpressionError

_EXPECTED = (
    "Expected the part of the list's address after ?, such as "
    "--view 'sort=-reward&where=reward < 0.5&columns=reward,tag'"
)
_OF_A_PAGE = ("at", "start", "limit", "facet", "match")
_SHOWN = ("sort", "columns")
_MAX_WAITS = 200
"""Number of times to wait for a file of which nothing more is read. One of them takes up to 0.25 s."""


@dataclass(frozen=True)
class ExportView:
    """The rollouts and the columns that an export contains."""

    query: Query

    @classmethod
    def of(cls, text: str) -> ExportView:
        """Parse an address of the list, or the part of it after `?`. Raises OperatorError."""
        query = text[text.find("?") + 1 :]
        if " " in query:  # typed by hand: in an address, a plus would mean a space
            query = query.replace("+", "%2B")
        pairs = dict(parse_qsl(query, keep_blank_values=True))
        if text and not pairs:
            raise OperatorError(f"view is {text!r}. {_EXPECTED}")
        for name in _OF_A_PAGE:
            pairs.pop(name, None)
        try:
            return cls(Query.model_validate(pairs))
        except ValidationError as error:
            found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise OperatorError(f"view: {found}. {_EXPECTED}") from error

    @property
    def is_filtered(self) -> bool:
        """Whether the view selects some of the rollouts."""
        return bool(self.query.model_dump(exclude_defaults=True, exclude=set(_SHOWN)))

    @property
    def columns(self) -> str:
        """The columns to export. The exported page can sort only by values that it contains."""
        key = self.query.sort.removeprefix("-")
        return self.query.columns if key in SORTS else f"{self.query.columns or DEFAULT},{key}"

    @property
    def address(self) -> str:
        """The query with which the exported list opens: its order and columns."""
        return urlencode(self.query.model_dump(exclude_defaults=True, include=set(_SHOWN)))

    @property
    def condition(self) -> str:
        """The filters in words, for the note on the page."""
        return ", ".join(
            f"{name}: {value}"
            for name, value in self.query.model_dump(exclude_defaults=True, exclude=set(_SHOWN)).items()
        )

    def indexes(self, run: RunFile) -> Indexes:
        """Return the indexes of the rollouts in the order of the view. Raises OperatorError if it is invalid."""
        read, waits = -1.0, 0
        while True:
            try:
                _, indexes, searched = run.select(self.query)
            except ExpressionError as error:
                raise OperatorError(f"view: {error}") from error
            if searched >= 1:
                return indexes
            waits = waits + 1 if searched == read else 0
            read = searched
            if waits > _MAX_WAITS:
                raise OperatorError(f"{run.path} cannot be read to its end; was it changed?")

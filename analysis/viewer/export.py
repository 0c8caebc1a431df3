"""Writes the viewer's pages to a single file, with up to a number of rollouts of each run.

`ExportView` says which rollouts, in which order and with which columns. It is written as in the list's address.
`single_page` puts modules, styles and data into one file, whose Content-Security-Policy blocks all other scripts.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
import secrets
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import orjson
from pydantic import ValidationError

from rollyard.analysis.charts.svg import STYLE
from rollyard.analysis.viewer.attempts import attempt_view
from rollyard.analysis.viewer.comparison import RunDifferences
from rollyard.analysis.viewer.fields import DEFAULT
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.note_routes import READ_ONLY_FILE, notes_summary, notes_view
from rollyard.analysis.viewer.rollout_list import SORTS, Indexes, Query, RolloutTable
from rollyard.analysis.viewer.run_file import Replays, RunFile, numbers_of, rollout_view
from rollyard.analysis.viewer.token_texts import TokenDecoder, decoded_rollout
from rollyard.records.errors import OperatorError
from rollyard.records.expression_parser import ExpressionError
from rollyard.records.types import Json

_MAX_TASKS = 5000
_EXPECTED = (
    "Expected the part of the list's address after ?, such as "
    "--view 'sort=-reward&where=reward < 0.5&columns=reward,tag'"
)
_OF_A_PAGE = ("at", "start", "limit", "facet", "match")
_SHOWN = ("sort", "columns")
_MAX_WAITS = 200
"""Number of times to wait for a file of which nothing more is read. One of them takes up to 0.25 s."""


def export(
    file_index: FileIndex,
    replays: Replays,
    limit: int = 200,
    view: ExportView | None = None,
    decoder: TokenDecoder | None = None,
) -> bytes:
    """Return the page with up to `limit` rollouts of each file. The index must be complete.

    `view`: the columns and the order of the list, and which rollouts to export; the first ones in its order.

    Raises OSError if a file cannot be read, RowChanged if a file has changed, and OperatorError if the view is invalid.
    """
    view = view or ExportView()
    overview = file_index.overview()
    runs = [one.model_copy(update={"absolute_path": ""}) for one in overview.runs]  # nothing of this host
    data: Json = {"overview": overview.model_copy(update={"runs": runs}), "comparison": None, "view": view.address}
    kinds = ("profiles", "findings", "notes", "pages", "stories", "attempts")
    profiles, findings, notes, pages, stories, attempts = (data.setdefault(kind, {}) for kind in kinds)
    omitted = []
    for run in file_index.runs:
        number, listing, table = str(run.number), run.listing, run.listing.table
        profiles[number] = numbers_of(run)
        notes[number] = notes_view(run.notes, "", "", READ_ONLY_FILE)
        notes[f"{number}/summary"] = notes_summary(run)
        findings[number] = found = run.findings.now().view()
        selected = view.indexes(run)
        if view.is_filtered or view.address:
            indexes = selected[:limit]
        else:
            examples = (table.find(one.task, one.repeat) for each in found.findings for one in each.examples)
            indexes = chosen(table, limit, [index for index in examples if index is not None])
        try:
            columns, cells = run.cells(listing, indexes, view.exported_columns)
        except ExpressionError as error:
            raise OperatorError(f"view: {error}") from error
        page = listing.page_of(indexes, len(indexes))
        pages[number] = page.model_copy(update={"columns": columns, "cells": cells})
        for index in indexes.tolist():
            shown = decoded_rollout(rollout_view(run, table, index, replays), decoder)
            task, repeat = shown.line.task, shown.line.repeat
            stories[f"{number}/{task}/{repeat}"] = shown
            for at in range(len(shown.attempts)):
                attempts[f"{number}/{task}/{repeat}/{at}"] = attempt_view(run, task, repeat, at, replays)
        omitted.append(_omission_note(run.name, len(indexes), len(table), len(selected), view))
    if len(file_index.runs) > 1:
        compared = RunDifferences(file_index.find).of(0, 1)
        data["comparison"] = compared.page((0, 1), "task", 0, _MAX_TASKS)
        if (tasks := len(compared.first.task)) > _MAX_TASKS:
            omitted.append(f"The comparison contains the first {_MAX_TASKS:,} of {tasks:,} tasks.")
    return single_page(orjson.dumps(data, default=lambda one: one.model_dump()), " ".join(filter(None, omitted)))


def chosen(table: RolloutTable, limit: int, examples: Sequence[int] = ()) -> Indexes:
    """Select representative rollouts and return their indexes in ascending order.

    A quarter of them are the best, a quarter are the worst, up to a quarter have failed, and up to a quarter are
    `examples`. The rest are evenly spaced. The best and the worst are spread across tasks.
    """
    if len(table) <= limit:
        return np.arange(len(table))
    measured = np.flatnonzero(table.measured)
    failed = np.flatnonzero(~table.measured)
    quarter = limit // 4
    best = _by_task(table, measured[np.argsort(-table.reward[measured], kind="stable")])
    worst = _by_task(table, measured[np.argsort(table.reward[measured], kind="stable")])
    wanted = np.array(examples[:quarter], np.intp)
    found = np.unique(np.concatenate([best[:quarter], worst[:quarter], failed[:quarter], wanted]))
    rest = np.setdiff1d(np.arange(len(table)), found)
    between = rest[np.linspace(0, len(rest) - 1, limit - len(found)).astype(np.intp)]
    return np.union1d(found, between)


def _by_task(table: RolloutTable, indexes: Indexes) -> Indexes:
    """Reorder the indexes round-robin: the first one of every task, then the second of every task, and so on."""
    tasks = table.task[indexes]
    order = np.argsort(tasks, kind="stable")
    starts = np.flatnonzero(np.diff(tasks[order], prepend=-1))
    ranks = np.empty(len(indexes), np.intp)
    ranks[order] = np.arange(len(indexes)) - np.repeat(starts, np.diff(starts, append=len(indexes)))
    return indexes[np.argsort(ranks, kind="stable")]


def _omission_note(name: str, kept: int, total: int, selected: int, view: ExportView) -> str:
    if kept == total:
        return ""
    if view.is_filtered or view.address:
        first = "" if kept == selected else f"the first {kept:,} of "
        which = f"{first}{selected:,} rollouts of {name}" + (f" with {view.condition}" if view.is_filtered else "")
        return f"This page contains {which}; the metrics cover all {total:,}."
    return (
        f"This page contains {kept:,} of {total:,} rollouts of {name} (best, worst, failed, and some in between); "
        "the metrics cover all of them."
    )


class ExportView(Query):
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
        if "finding" in pairs:
            raise OperatorError(f"view: finding: its rollouts cannot be exported as a list. {_EXPECTED}")
        try:
            return cls.model_validate(pairs)
        except ValidationError as error:
            found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise OperatorError(f"view: {found}. {_EXPECTED}") from error

    @property
    def is_filtered(self) -> bool:
        return bool(self._filters)

    @property
    def _filters(self) -> dict[str, Any]:
        return self.model_dump(exclude_defaults=True, exclude=set(_SHOWN))

    @property
    def exported_columns(self) -> str:
        """The columns to export. The exported page can sort only by values that it contains."""
        key = self.sort.removeprefix("-")
        return self.columns if key in SORTS else f"{self.columns or DEFAULT},{key}"

    @property
    def address(self) -> str:
        """The query with which the exported list opens: its order and columns."""
        return urlencode(self.model_dump(exclude_defaults=True, include=set(_SHOWN)))

    @property
    def condition(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in self._filters.items())

    def indexes(self, run: RunFile) -> Indexes:
        """Return the indexes of the rollouts in the order of the view. Raises OperatorError if it is invalid."""
        read, waits = -1.0, 0
        while True:
            try:
                _, indexes, searched = run.select(self)
            except ExpressionError as error:
                raise OperatorError(f"view: {error}") from error
            if searched >= 1:
                return indexes
            waits = waits + 1 if searched == read else 0
            read = searched
            if waits > _MAX_WAITS:
                raise OperatorError(f"{run.path} cannot be read to its end; was it changed?")


STATIC = Path(__file__).parent / "static"
_STYLE = re.compile(r'<link rel="stylesheet" href="static/([^"]+)">\n?')
_MODULE = re.compile(r'<script type="module" src="static/([^"]+)"></script>\n?')
_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*\(?\s*)(['"])(\.{1,2}/[^'"]+)\2""")
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def single_page(data: bytes, note: str) -> bytes:
    """Build the page with `data` (JSON) in the element `embedded`, and with `note` at the top.

    Modules are unchanged except for the paths in their imports, which an import map resolves to `data:` URLs. The
    policy only allows scripts with a nonce generated for this file, and the modules they import: unlike a hash, a nonce
    also covers imports. Rollouts cannot contain the nonce, because they are older than it.
    """
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    style = "\n".join(
        (STYLE if name == "css/charts.css" else STATIC / name).read_text(encoding="utf-8")
        for name in _STYLE.findall(page)
    )
    imports = orjson.dumps({"imports": _modules()}).decode()
    start_imports = "".join(f'import("page/{name}");' for name in _MODULE.findall(page))
    nonce = secrets.token_urlsafe(24)
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'sha256-{style_hash}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    for found in (_STYLE, _MODULE):
        page = found.sub("", page)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<meta charset="utf-8">'
    page = page.replace('<meta charset="utf-8">', head, 1)
    page = page.replace(
        "</head>", f'<style>{style}</style>\n<script type="importmap" nonce="{nonce}">{imports}</script>\n</head>', 1
    )
    # Escaped, so that it cannot end the script element or start a comment.
    safe = re.sub("[<>&\u2028\u2029]", lambda found: _UNSAFE[found[0]], data.decode())
    body = f'<script type="application/json" id="embedded">{safe}</script>\n'
    body += f'<script nonce="{nonce}">{start_imports}</script>\n'
    above = f'<p class="message exported">{escape(note)}</p>\n' if note else ""
    page = page.replace('<div id="app">', f'{above}<div id="app">', 1)
    return page.replace("</body>", f"{body}</body>", 1).encode()


def _modules() -> dict[str, str]:
    """Return the page's modules as `data:` URLs, by the names under which other modules import them."""
    found = {}
    for path in sorted(STATIC.rglob("*.js")):
        name = path.relative_to(STATIC).as_posix()
        code = base64.b64encode(_renamed(path.read_text(encoding="utf-8"), name).encode()).decode()
        found[f"page/{name}"] = f"data:text/javascript;base64,{code}"
    return found


def _renamed(code: str, name: str) -> str:
    """Replace relative imports with names under the page's root, because `data:` URLs have no relative paths."""

    def renamed(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), found[3]))
        return f"{found[1]}{found[2]}page/{path}{found[2]}"

    return _IMPORT.sub(renamed, code)

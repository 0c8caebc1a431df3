"""Finds the environments' `replay.py` plug-ins and calls them to draw boards."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollyard.records.errors import OperatorError
from rollyard.records.rollouts.replay import Replay
from rollyard.records.types import Json
from rollyard.services.config import plugins
from rollyard.services.config.server_folders import FAMILIES

log = logging.getLogger(__name__)
FILE = "replay.py"
_ReplayFunction = Callable[[Json], Replay | None]


class Replays:
    """Draws the boards of a row. If a replay.py fails, this is logged once and the page shows no boards."""

    def __init__(self, roots: Sequence[Path]) -> None:
        """`roots` lists the folders to search for plug-ins, by precedence. Plug-ins are imported on first use."""
        self._roots = roots
        self._functions: dict[str, _ReplayFunction] | None = None
        self._reported: set[str] = set()
        self._loading = threading.Lock()

    def __call__(self, row: Json) -> Replay | None:
        """Return the boards from the first plug-in that supports the row, if any."""
        with self._loading:
            if self._functions is None:
                self._functions = dict(self._load())
        for name, make in self._functions.items():
            try:
                if (found := make(row)) is not None:
                    return Replay.model_validate(found)
            # Plug-ins may raise any exception, and the conversation is useful without its boards.
            except (Exception, SystemExit) as error:
                self._report(name, f"{type(error).__name__}: {error}")
        return None

    def _load(self) -> list[tuple[str, _ReplayFunction]]:
        functions: dict[str, _ReplayFunction] = {}
        for root in self._roots:
            for family in FAMILIES:
                for path in sorted((root / family).glob(f"*/{FILE}")):
                    name = f"{family}/{path.parent.name}"
                    if name not in functions and (make := self._replay_function(family, name, path)) is not None:
                        functions[name] = make
        return list(functions.items())

    def _replay_function(self, family: str, name: str, path: Path) -> _ReplayFunction | None:
        try:
            module: Any = plugins.import_file(family, path.parent, path)
            make: _ReplayFunction = module.replay
        except (OperatorError, AttributeError, SystemExit) as error:
            self._report(name, str(error))
            return None
        return make

    def _report(self, name: str, what: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            log.warning("%s in %s failed, so its boards are not shown: %s", FILE, name, what)

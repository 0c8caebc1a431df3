"""Opened files, and a browser's way of asking about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from services.replay import Replay
from services.types import Json
from services.viewer.app import viewer_app
from services.viewer.guard import LOOPBACK, Guard
from services.viewer.library import Library


def opened(*paths: Path, **options: Any) -> Library:
    """A library of these files, read through."""
    library = Library([(path.stem, path) for path in paths], **options)
    library.read_through()
    return library


def browser(library: Library, **guarding: Any) -> httpx.AsyncClient:
    """Asks the app, in this process."""
    guard = Guard(viewer_app(library, no_boards), **{"hosts": LOOPBACK, **guarding})
    return httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1:8080")


def no_boards(row: Json) -> Replay | None:
    """No world here can draw."""
    return None

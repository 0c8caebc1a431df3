"""Opened files, and a browser's way of asking about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from rollyard.services.http.access.hosts import KnownHosts
from rollyard.services.http.access.request_checks import Access
from rollyard.services.rollouts.replay import Replay
from rollyard.services.types import Json
from rollyard.services.viewer.access_middleware import Guard
from rollyard.services.viewer.app import viewer_app
from rollyard.services.viewer.index.library import Library


def opened(*paths: Path, **options: Any) -> Library:
    """A library of these files, read through."""
    library = Library([(path.stem, path) for path in paths], **options)
    library.read_through()
    return library


def browser(library: Library, *, token: str | None = None, **hosts: Any) -> httpx.AsyncClient:
    """Asks the app, in this process; `hosts`: how its `KnownHosts` is made."""
    access = Access(KnownHosts(**{"names": (), **hosts}), command="ng_viewer", links=True)
    guard = Guard(viewer_app(library, no_boards), access, token=token)
    return httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1:8080")


def no_boards(row: Json) -> Replay | None:
    """No world here can draw."""
    return None

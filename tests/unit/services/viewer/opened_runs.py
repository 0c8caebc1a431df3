"""Opened files, and a browser's way of asking about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from rollyard.services.http.access.hosts import KnownHosts
from rollyard.services.http.access.request_checks import Access
from rollyard.services.rollouts.replay import Replay
from rollyard.services.types import Json
from rollyard.services.viewer.access_middleware import AccessMiddleware
from rollyard.services.viewer.app import viewer_app
from rollyard.services.viewer.index.library import FileIndex


def opened(*paths: Path, **options: Any) -> FileIndex:
    """A library of these files, read through."""
    file_index = FileIndex([(path.stem, path) for path in paths], **options)
    file_index.read_through()
    return file_index


def browser(file_index: FileIndex, *, token: str | None = None, **hosts: Any) -> httpx.AsyncClient:
    """Asks the app, in this process; `hosts`: how its `KnownHosts` is made."""
    access = Access(KnownHosts(**{"names": (), **hosts}), command="ng_viewer", links=True)
    guard = AccessMiddleware(viewer_app(file_index, no_boards), access, token=token)
    return httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1:8080")


def no_boards(row: Json) -> Replay | None:
    """No world here can draw."""
    return None

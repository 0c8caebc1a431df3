"""Indexed rollout files, and an HTTP client for the viewer over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import orjson
from fastapi import APIRouter

from rollyard.analysis.viewer.app import viewer_app
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.responses import ViewerAccessMiddleware
from rollyard.records.replay import Replay
from rollyard.records.types import Json
from rollyard.services.http.access import Access, KnownHosts


def open_index(*paths: Path, **options: Any) -> FileIndex:
    """An index of these files, read to their ends."""
    file_index = FileIndex([(path.stem, path) for path in paths], **options)
    file_index.read_through()
    return file_index


def viewer_client(
    file_index: FileIndex, *routers: APIRouter, token: str | None = None, any_address: bool = False
) -> httpx.AsyncClient:
    """A client of the viewer app in this process, with these additional routes, behind the checks of its access."""
    access = Access(KnownHosts(names=(), any_address=any_address), command="ng_viewer", links=True)
    app = ViewerAccessMiddleware(viewer_app(file_index, no_replay, routers), access, token=token)
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080")


async def get_json(client: httpx.AsyncClient, path: str, status: int = 200) -> Any:
    """The JSON body of a response, whose status must be `status`."""
    response = await client.get(path)
    assert response.status_code == status, response.text
    return orjson.loads(response.content)


def no_replay(row: Json) -> Replay | None:
    """No environment of these tests has a replay."""
    return None

"""`GET /examples`: a world's example rows, ready to be played."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI

from rollyard.resources_servers.dataset_sources import read_rows
from rollyard.services.types import Json


def serve_examples(app: FastAPI, folder: Path) -> None:
    """Serve the rows of `data/example.jsonl` in the world's folder."""

    @app.get("/examples")
    async def examples() -> list[Json]:
        """The world's example rows."""
        return list(read_rows(folder / "data" / "example.jsonl"))

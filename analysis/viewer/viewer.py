"""Viewer: the page, its API, and everything that they read in the background."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from fastapi import APIRouter

from rollyard.analysis.viewer.api.live_route import live_router
from rollyard.analysis.viewer.api.replays import Replays
from rollyard.analysis.viewer.app import viewer_app
from rollyard.analysis.viewer.attempts.attempt_routes import attempt_router
from rollyard.analysis.viewer.clusters.cluster_index import ClusterIndex
from rollyard.analysis.viewer.clusters.cluster_routes import cluster_router
from rollyard.analysis.viewer.counterparts.counterpart_routes import counterpart_router
from rollyard.analysis.viewer.fields.field_routes import field_router
from rollyard.analysis.viewer.findings.finding_index import FindingIndex
from rollyard.analysis.viewer.findings.finding_routes import finding_router
from rollyard.analysis.viewer.index.library import FileIndex
from rollyard.analysis.viewer.live.episode_tails import EpisodeTails
from rollyard.analysis.viewer.live.tail_route import tail_router
from rollyard.analysis.viewer.notes.note_routes import note_router
from rollyard.analysis.viewer.series.series_routes import series_router
from rollyard.analysis.viewer.series.step_files import SeriesSource
from rollyard.analysis.viewer.series.step_reader import StepReader
from rollyard.analysis.viewer.tokens.change_routes import change_router
from rollyard.analysis.viewer.tokens.decoder import TokenDecoder
from rollyard.analysis.viewer.tokens.token_index import TokenIndex
from rollyard.analysis.viewer.tokens.token_routes import token_router
from rollyard.analysis.viewer.training.pair_routes import pair_router
from rollyard.analysis.viewer.training.training_index import TrainingIndex
from rollyard.analysis.viewer.training.training_routes import training_router
from rollyard.records.notes.author import user_name
from rollyard.records.run_types import HeadFile
from rollyard.services.http.transport import Transport


@dataclass(frozen=True)
class ViewerSettings:
    author: str | None = None
    """Author of the notes that are written in the page; None: the user's name."""
    read_only: bool = False
    """Write no notes."""
    threshold: float | None = None
    """Minimum reward that counts as solved; None: as the files define it."""
    workers: int | None = None
    """Number of processes that read a large file; None: one per CPU."""


class Viewer:
    """Reads the files in the background while its block runs."""

    def __init__(
        self,
        file_index: FileIndex,
        series: SeriesSource,
        replays: Replays,
        decoder: TokenDecoder | None,
        transport: Transport,
        find_head: Callable[[], Awaitable[HeadFile]],
        settings: ViewerSettings,
    ) -> None:
        """`decoder` gives tokens their texts if these are not recorded. `find_head` returns the head of the run that
        the live page shows, and raises RunError if there is none.
        """
        workers = settings.workers or len(os.sched_getaffinity(0))
        self._file_index = file_index
        self._reader = StepReader(threshold=settings.threshold, workers=settings.workers)
        self._findings = FindingIndex(file_index.find, workers=workers)
        self._clusters = ClusterIndex(file_index.find, workers=workers)
        self._tokens = TokenIndex(file_index.find)
        file_index.clusters = self._clusters.select
        routers: list[APIRouter] = [
            live_router(transport, find_head),
            tail_router(EpisodeTails(transport, find_head, replays)),
            field_router(file_index.find),
            finding_router(file_index, self._findings),
            note_router(file_index.find, author=settings.author or user_name(), read_only=settings.read_only),
            cluster_router(self._clusters),
            counterpart_router(file_index),
            attempt_router(file_index, self._findings, replays),
            series_router(file_index, series, self._reader),
            token_router(file_index, self._tokens, decoder),
            change_router(file_index, self._tokens, decoder),
        ]
        if isinstance(file_index, TrainingIndex):
            routers += [training_router(file_index), pair_router(file_index, decoder)]
        self.app = viewer_app(file_index, replays, tuple(routers), decoder)

    async def __aenter__(self) -> Self:
        self._file_index.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for index in (self._findings, self._clusters, self._tokens):
            index.close()
        await asyncio.to_thread(self._file_index.close)
        await asyncio.to_thread(self._reader.close)

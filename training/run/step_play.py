"""Plays a step while the engines are kept at the published weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollyard.training.batch import Batch, BatchSource
from rollyard.training.weights.weight_publisher import Publisher

REPAIR_S = 5.0
"""How often the publisher is asked whether an engine has lost the weights."""


async def play_step(
    source: BatchSource,
    publisher: Publisher,
    step: int,
    print_line: Callable[[str], None],
    *,
    repair_s: float = REPAIR_S,
) -> Batch | None:
    """Return the batch of a step; None if the data is exhausted.

    An engine that restarts while the step is played gets no model calls until it has the weights again: it loads their
    files by itself, and weights that were transferred without files are sent again here. Its episodes fail meanwhile
    and are retried. Raises what source and publisher raise.
    """
    playing = asyncio.ensure_future(source.next_batch(step))
    try:
        while True:
            # Repairs and the batch end in turn, so that no transfer is interrupted.
            done, _ = await asyncio.wait({playing}, timeout=repair_s)
            if done:
                return playing.result()
            repaired = await publisher.repair()
            if repaired is not None:
                print_line(f"an engine lost the weights: they were sent again as {repaired.version}")
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)

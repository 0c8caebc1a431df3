"""An engine, and a model server with trainer endpoints in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.weight_engine import TrainerClient, WeightEngine, trainer_server


@pytest.fixture
def engine() -> WeightEngine:
    return WeightEngine()


@pytest.fixture
async def policy(engine: WeightEngine) -> AsyncIterator[TrainerClient]:
    async with trainer_server(engine) as client:
        yield client

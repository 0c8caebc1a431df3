"""An engine, and a model server with trainer endpoints in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rollyard.responses_api_models.chat_engine import weight_update
from tests.support.weight_engine import TrainerClient, WeightEngine, trainer_server


@pytest.fixture(autouse=True)
def check_engines_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_update, "CHECK_INTERVAL_S", 0.02)


@pytest.fixture
def engine() -> WeightEngine:
    return WeightEngine()


@pytest.fixture
async def policy(engine: WeightEngine) -> AsyncIterator[TrainerClient]:
    async with trainer_server(engine) as client:
        yield client

"""Checks the rollout types against rows that a collection writes and against the shipped datasets."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import orjson
import pytest
from pydantic import TypeAdapter, ValidationError

from rollyard.agents.game_agent.app import GameAgent
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_types import DatasetRow, RolloutKeys, RolloutRow
from rollyard.resources_servers.grl_sokoban.app import GrlSokoban
from rollyard.responses_api_models.builtin_model.app import BuiltinModel, BuiltinModelSettings
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.rollouts.collector import CollectionLimits, Collector
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import RolloutStore
from rollyard.services.server.app import Context, Server
from tests.support.in_process import episode_servers
from tests.support.stacks import read_rows
from tests.support.typed_keys import untyped_keys

SERVERS = Path(__file__).parents[3] / "resources_servers"
PUZZLES = SERVERS / "grl_sokoban/data/example.jsonl"
VERDICT = {"boxes_on_target", "done", "moves", "deadlocked", "room_seed"}
"""Keys that Sokoban adds to a verdict."""


def model(context: Context) -> Server:
    return BuiltinModel(BuiltinModelSettings(), context)


async def test_sokoban_rollouts_match_their_type_and_contain_no_undeclared_key(tmp_path: Path) -> None:
    tasks = TaskFile(PUZZLES, agent="agent", limit=3)
    store = RolloutStore(RolloutPaths(tmp_path / "rollouts.jsonl"), {}, {}, resume=True, overwrite=False)
    async with episode_servers(GrlSokoban, model, GameAgent) as stack:
        collector = Collector(
            tasks.rollouts(2), {}, stack.client, store, CollectionProgress(6), CollectionLimits(parallel=2), seeded=True
        )
        assert await collector.run() == "complete"
    store.close()
    rows = read_rows(store.paths.output)
    environment_keys = {key for line in PUZZLES.read_bytes().splitlines() for key in orjson.loads(line)} | VERDICT
    assert any(item["type"] == "function_call_output" for row in rows for item in row["response"]["output"])
    for row in rows:
        TypeAdapter(RolloutRow).validate_python(row, strict=True)
        assert {key for key in untyped_keys(row, RolloutRow) if "." in key or key not in environment_keys} == set()
        assert RolloutKeys.__optional_keys__ - row.keys() == {
            "_ng_code",
            "_ng_trace_id",
        }  # the same code, and no telemetry


@pytest.mark.parametrize("path", sorted(SERVERS.glob("*/data/**/*example*.jsonl")), ids=lambda path: path.parts[-3])
def test_rows_of_shipped_datasets_match_the_row_type(path: Path) -> None:
    with path.open() as file:
        for line in islice(file, 10):
            TypeAdapter(DatasetRow).validate_json(line, strict=True)


@pytest.mark.parametrize("row", [{}, {"reward": "1"}, {"reward": 1.0, "response": {}}, {"reward": 1.0, "success": 1}])
def test_invalid_rows_do_not_match_the_rollout_type(row: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(RolloutRow).validate_python(row, strict=True)

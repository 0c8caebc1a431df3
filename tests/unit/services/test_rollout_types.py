"""The types of rollouts against rows that were really written and data sets that are really there."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import orjson
import pytest
from pydantic import TypeAdapter, ValidationError

from rollyard.agents.game_agent.app import GameAgent
from rollyard.resources_servers.grl_sokoban.app import GrlSokoban
from rollyard.responses_api_models.builtin_model.app import BuiltinModel, BuiltinModelSettings
from rollyard.services.datasets.tasks import TaskFile
from rollyard.services.rollout_types import DatasetRow, RolloutKeys, RolloutRow, RunRequest
from rollyard.services.rollouts.collector import Collector, Limits
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import RolloutStore, StorePaths
from rollyard.services.server.app import Context, Server
from tests.support.in_process import agent, environment, wired
from tests.support.stacks import read_rows
from tests.support.typed_keys import untyped_keys

SERVERS = Path(__file__).parents[3] / "resources_servers"
PUZZLES = SERVERS / "grl_sokoban/data/example.jsonl"
VERDICT = {"boxes_on_target", "done", "moves", "deadlocked", "room_seed"}
"""What Sokoban adds to a verdict."""


def model(context: Context) -> Server:
    return BuiltinModel(BuiltinModelSettings(), context)


async def test_a_rollout_of_sokoban_has_the_type_and_no_key_of_ours_that_is_not_in_it(tmp_path: Path) -> None:
    tasks = TaskFile(PUZZLES, agent="agent", limit=3)
    store = RolloutStore(StorePaths(tmp_path / "rollouts.jsonl"), {}, {}, resume=True, overwrite=False)
    servers = {"world": environment(GrlSokoban), "model": model, "agent": agent(GameAgent)}
    async with wired(servers) as stack:
        collector = Collector(
            tasks.rollouts(2), {}, stack.client, store, CollectionProgress(6), Limits(parallel=2), seeded=True
        )
        assert await collector.run() == "complete"
    store.close()
    rows = read_rows(store.paths.output)
    environments = {key for line in PUZZLES.read_bytes().splitlines() for key in orjson.loads(line)} | VERDICT
    assert any(item["type"] == "function_call_output" for row in rows for item in row["response"]["output"])
    for row in rows:
        TypeAdapter(RolloutRow).validate_python(row, strict=True)
        assert {key for key in untyped_keys(row, RolloutRow) if "." in key or key not in environments} == set()
        assert RolloutKeys.__optional_keys__ - row.keys() == {"_ng_code"}  # there is one version of the code


@pytest.mark.parametrize("path", sorted(SERVERS.glob("*/data/**/*example*.jsonl")), ids=lambda path: path.parts[-3])
def test_the_data_sets_that_we_ship_are_of_rows_that_have_the_type(path: Path) -> None:
    with path.open() as file:
        for line in islice(file, 50):
            TypeAdapter(DatasetRow).validate_json(line, strict=True)


def test_what_a_trainer_sends_needs_no_key_of_the_collector() -> None:
    TypeAdapter(RunRequest).validate_python({"responses_create_params": {"input": "play"}, "seed": 7}, strict=True)


@pytest.mark.parametrize("row", [{}, {"reward": "1"}, {"reward": 1.0, "response": {}}, {"reward": 1.0, "success": 1}])
def test_what_is_no_rollout_does_not_have_the_type(row: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(RolloutRow).validate_python(row, strict=True)

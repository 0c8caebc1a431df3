"""Harbor's own validator accepts the trajectories that ng_export writes."""

from __future__ import annotations

import json
from pathlib import Path

import harbor
import pytest
from harbor.models.trajectories import Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator

import rollyard
from rollyard.cli import export
from rollyard.records.data_files import INSTALLED
from rollyard.records.foreign_files import rollout_file
from rollyard.records.rollout_file import Rollouts
from tests.support.coming_from import pair
from tests.support.rollout_files import write
from tests.support.rollout_kinds import FAILURE, KINDS, NO_UNICODE, PARTIAL


def problems(folder: Path) -> dict[str, list[str]]:
    """What Harbor's validator finds wrong in the trajectories of a folder, with their images."""
    found = {}
    for file in sorted(folder.rglob("*.json")):
        validator = TrajectoryValidator()
        if not validator.validate(file):
            found[file.name] = validator.get_errors()
    return found


@pytest.mark.smoke
def test_a_rollout_of_every_kind_is_a_valid_trajectory(tmp_path: Path) -> None:
    rows = [{**row, "_ng_task_index": task, "_ng_rollout_index": 0} for task, row in enumerate(KINDS.values())]
    surrogate = json.dumps({**NO_UNICODE, "_ng_task_index": len(rows)}).encode() + b"\n"
    path = write(tmp_path / "run.jsonl", rows, tail=surrogate)
    write(tmp_path / "run_failures.jsonl", [FAILURE, {**FAILURE, "_ng_attempt_index": 3, "partial": PARTIAL}])
    export.run([str(path)])
    assert len(list((tmp_path / "run_atif").rglob("*.json"))) == len(rows) + 3
    assert problems(tmp_path / "run_atif") == {}


async def test_what_the_built_in_policy_plays_with_each_agent_is_valid(tmp_path: Path) -> None:
    folders = INSTALLED / "resources_servers"
    configs = [folders / name / "configs" / f"{name}.yaml" for name in ("grl_sokoban", "gsm8k", "ifeval", "mbpp")]
    policy = INSTALLED / "responses_api_models/builtin_model/configs/builtin_model.yaml"
    path = tmp_path / "run.jsonl"
    async with rollyard.stack([policy, *configs], colocate=True, folder=tmp_path) as stack:
        rows = [
            {**dict(row), "agent_ref": {"name": f"{name}_agent"}}
            for name in ("gsm8k", "ifeval", "mbpp")
            for row in Rollouts(folders / name / "data/example.jsonl")
        ]
        rooms = Rollouts(folders / "grl_sokoban/data/example.jsonl")
        rows += ({**dict(row), "agent_ref": {"name": "grl_sokoban_game_agent"}} for row in rooms)
        await rollyard.collect(stack, rows, path)
    export.run([str(path)])
    assert problems(tmp_path / "run_atif") == {}
    assert len(list(Rollouts(rollout_file(tmp_path / "run_atif")))) == len(rows)


def test_a_trajectory_that_harbors_models_wrote_is_opened(tmp_path: Path) -> None:
    agent = {"name": "terminus-2", "version": "2.0.0", "model_name": "m"}
    calls = [{"tool_call_id": "a", "function_name": "bash", "arguments": {"command": "ls"}}]
    steps = [
        {"step_id": 1, "source": "user", "message": "List the files."},
        {
            "step_id": 2,
            "source": "agent",
            "message": "",
            "reasoning_content": "ls does it",
            "tool_calls": calls,
            "observation": {"results": [{"source_call_id": "a", "content": "a.txt"}]},
        },
        {
            "step_id": 3,
            "source": "agent",
            "message": "a.txt",
            "metrics": {"completion_token_ids": [5], "logprobs": [-0.5]},
        },
    ]
    document = Trajectory.model_validate({"session_id": "s", "agent": agent, "steps": steps})
    path = tmp_path / "trajectory.json"
    path.write_text(document.model_dump_json(indent=2))  # with its null fields
    (row,) = Rollouts(rollout_file(path))
    kinds = [item["type"] for item in row["response"]["output"]]
    assert kinds == ["reasoning", "function_call", "function_call_output", "message"]
    assert row["response"]["output"][-1]["generation_log_probs"] == [-0.5]


def test_harbors_command_has_the_options_of_the_page() -> None:
    """It cannot run here: the package requires Python 3.12, and Docker Compose or a cloud."""
    [words] = pair("Harbor").theirs
    source = (Path(harbor.__file__).parent / "cli" / "jobs.py").read_text()
    assert words[:2] == ["harbor", "run"]
    assert [word for word in words if word.startswith("--") and f'"{word}"' not in source] == []

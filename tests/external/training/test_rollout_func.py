"""A user's own program with TRL's GRPOTrainer plays on a stack and gives its engine new weights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import orjson
from safetensors.torch import load_file

import rollyard
from tests.external.training.engine_stacks import TOKEN, ServedStack
from tests.external.training.train_command import training_s
from tests.external.vllm.engine import Engine
from tests.external.vllm.tiny_model import VOCABULARY
from tests.support.doc_pages import page, programs
from tests.support.stacks import EXAMPLES, read_rows

SOURCE = Path(rollyard.__file__).parent.parent


def test_the_documented_program_trains_two_steps_on_a_real_engine(
    start_stack: Callable[..., ServedStack], engine: Engine, tiny_model: Path, tmp_path: Path
) -> None:
    # Random weights end a turn with every eighth token on average.
    stack = start_stack(strict_tools=False, extra_body={"stop_token_ids": list(range(0, VOCABULARY, 8))})
    tasks = tmp_path / "tasks.jsonl"
    rows = [
        {**row, "responses_create_params": {**row["responses_create_params"], "max_output_tokens": 64}}
        for row in read_rows(EXAMPLES)
    ]
    tasks.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    (program,) = programs(page("trainers.md"))
    assert len([line for line in program.splitlines() if line]) <= 40
    file, results = tmp_path / "program.py", tmp_path / "results"
    file.write_text(program)
    environ = {**os.environ, "ROLLYARD_TOKEN": TOKEN, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    arguments = [stack.head, str(tiny_model), str(tasks), str(results)]
    done = subprocess.run(
        [sys.executable, str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=training_s(),
        env=environ,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for step in (1, 2):
        rows = read_rows(results / "rollouts" / f"step_{step:06d}.jsonl")
        assert sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows) == [
            (task, repeat) for task in (0, 1) for repeat in range(4)
        ]
        turns = [item for row in rows for item in row["response"]["output"] if item.get("generation_token_ids")]
        versions = {item["token_trace"]["sampling"]["policy_version"] for item in turns}
        assert versions == {f"step_{step - 1:06d}"}
    status = httpx.get(f"{stack.policy_url}/weights", headers={"authorization": f"Bearer {TOKEN}"}).json()
    assert status["version"] == "step_000002"
    loaded = load_file(results / "weights" / "step_000002" / "model.safetensors")
    assert loaded.keys() == load_file(tiny_model / "model.safetensors").keys()

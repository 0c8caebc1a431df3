"""NeMo Gym's clients find, run, verify and aggregate on Rollyard's servers."""

from __future__ import annotations

from pathlib import Path

import orjson

from rollyard.records.data_files import INSTALLED
from tests.support.commands import command, ng_run
from tests.support.processes import free_port

PYTHON = INSTALLED / ".venv-nemo-gym" / "bin" / "python"
PROGRAM = Path(__file__).with_name("client_program.py")
EXAMPLES = INSTALLED / "resources_servers" / "gsm8k" / "data" / "example.jsonl"
CONFIG = """
policy_model: {responses_api_models: {builtin_model: {}}}
gsm8k_resources_server: {resources_servers: {gsm8k: {equality: numbers}}}
gsm8k_agent:
  agents:
    simple_agent:
      failures_as_rows: true
      resources_server: {name: gsm8k_resources_server}
      model_server: {name: policy_model}
"""


async def test_nemo_gyms_own_classes_use_a_run_of_rollyard(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    rows = [orjson.loads(line) for line in EXAMPLES.read_bytes().splitlines()[:2]]
    rows.append({**rows[0], "expected_answer": "not a number"})
    for index, row in enumerate(rows):
        row.update(agent_ref={"name": "gsm8k_agent"}, _ng_task_index=index, _ng_rollout_index=0)
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
    port = free_port()
    async with ng_run("+config_paths=[run.yaml]", f"+head_port={port}", cwd=tmp_path):
        done = await command(str(PYTHON), str(PROGRAM), str(port), str(tmp_path / "rows.jsonl"), cwd=tmp_path)
    lines = [line for line in done.out.splitlines() if line.startswith("found: ")]
    assert lines, done.err
    found = orjson.loads(lines[0].removeprefix("found: "))
    assert found["agents"] == ["gsm8k_agent"]
    assert sorted(found["healthy"]) == ["builtin_model", "gsm8k", "simple_agent"]
    assert found["failures"] == [None, None, "bad_task"]
    assert (found["verified"], found["mode"]) == (found["rewards"][0], "stateless")
    assert found["metrics"]["mean/reward"] == sum(found["rewards"]) / 2
    assert found["metrics"]["mean/input_tokens"] > 0 and "mean/_ng_task_index" not in found["metrics"]
    assert found["groups"] == [0, 1]

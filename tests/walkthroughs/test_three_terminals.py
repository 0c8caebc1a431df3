"""The three terminals of the project's specification: a policy endpoint, ng_run and ng_collect_rollouts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jq
import orjson
import pytest

from tests.support.commands import command, config, in_this_process, ng_run
from tests.support.stacks import AGENT, PUZZLES, keys_of, read_rows

MODEL = "responses_api_models/vllm_model/configs/vllm_model.yaml"
ENVIRONMENT = "resources_servers/grl_sokoban/configs/grl_sokoban.yaml"
ENDPOINT = "responses_api_models/builtin_model/configs/builtin_model.yaml"

EXPORTED = {"policy_base_url": "http://127.0.0.1:1/v1", "policy_api_key": "k", "policy_model_name": "Qwen/Qwen3-4B"}
REPEATS = 2  # 16 in the specification
COUNT = 200 * REPEATS
STATISTICS = """map(.reward) | {
    min: min, max: max, avg: (add / length),
    median: (sort | if length % 2 == 0 then (.[length/2 - 1] + .[length/2]) / 2 else .[length/2] end),
    count: length
}"""
TOOL_CALLS = """map([.response.output[] | select(.type == "function_call")] | length) | {
    avg: (add / length), min: min, max: max
}"""


async def test_every_repeat_of_200_puzzles_gives_one_row_and_the_jq_programs_work(tmp_path: Path) -> None:
    endpoint_folder, stack_folder = tmp_path / "endpoint", tmp_path / "stack"
    endpoint_folder.mkdir()
    stack_folder.mkdir()
    async with ng_run(config(ENDPOINT), cwd=endpoint_folder) as endpoint:
        url = re.search(r"policy_model +ready +(http\S+)", endpoint.printed)
        assert url is not None
        exported = {**EXPORTED, "policy_base_url": f"{url[1]}/v1"}
        async with ng_run(config(MODEL, ENVIRONMENT), cwd=stack_folder, env=exported) as stack:
            # On a busy machine a note about the endpoint, which serves another model name, may follow the line.
            assert "All 3 / 3 servers ready!" in stack.printed.splitlines()
            collected = await command(
                "ng_collect_rollouts",
                f"+agent_name={AGENT}",
                f"+input_jsonl_fpath={PUZZLES}",
                "+output_jsonl_fpath=rollouts.jsonl",
                "+limit=null",
                f"+num_repeats={REPEATS}",
                "+num_samples_in_parallel=32",
                "+responses_create_params.temperature=0.8",
                "+responses_create_params.max_output_tokens=4096",
                cwd=stack_folder,
            )
    assert collected.status == 0, collected.err
    assert f"{COUNT} of {COUNT}" in collected.out
    rows = read_rows(stack_folder / "rollouts.jsonl")
    assert keys_of(rows) == [(task, repeat) for task in range(200) for repeat in range(REPEATS)]
    _check_jq_lines(rows, collected.out)


def _check_jq_lines(rows: list[dict[str, Any]], printed: str) -> None:
    def run(program: str) -> Any:
        return jq.compile(program).input_text(orjson.dumps(rows).decode()).first()

    statistics = run(STATISTICS)
    assert statistics["count"] == COUNT
    mean = re.search(r"mean reward +(\S+)", printed)
    # The mean of many multiples of 0.1 may be halfway between two numbers with four decimals.
    assert mean is not None and float(mean[1]) == pytest.approx(statistics["avg"], abs=1e-4)
    successes = run("map(select(.success == true)) | length")
    assert f"({successes} / {COUNT})" in printed
    assert 0 < successes < COUNT
    tool_calls = run(TOOL_CALLS)
    assert 0 <= tool_calls["min"] <= tool_calls["avg"] <= tool_calls["max"] <= 11
    distribution = jq.compile(".[].reward").input_text(orjson.dumps(rows).decode()).all()
    assert len(set(distribution)) > 20


@pytest.mark.parametrize("missing", EXPORTED)
def test_a_missing_variable_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in EXPORTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    refused = in_this_process("ng_run", config(MODEL, ENVIRONMENT), capsys=capsys)
    assert refused.status == 2
    assert f"${{{missing}}}" in refused.err and f"export {missing}=" in refused.err
    assert not (tmp_path / ".rollyard").exists()

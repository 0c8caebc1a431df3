"""The original lm_eval against our model server, with a task that needs no download."""

from __future__ import annotations

import asyncio
import csv
import sys
from pathlib import Path

import orjson
import pytest

from rollyard.services.types import Json
from tests.support.commands import command, ng_run
from tests.support.scripted_engine import completion

TASK = """
task: tiny_sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
output_type: generate_until
test_split: test
fewshot_split: test
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n"]}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
filter_list:
  - name: strict-match
    filter: [{{function: regex, regex_pattern: "The answer is (-?[0-9]+)"}}, {{function: take_first}}]
  - name: flexible-extract
    filter: [{{function: regex, group_select: -1, regex_pattern: "(-?[0-9]+)"}}, {{function: take_first}}]
"""
ROWS = [("2+2", "4"), ("2+3", "5"), ("3+4", "7"), ("1+1", "2")]
ANSWERS = {"2+2": "The answer is 4", "2+3": "It is 5", "3+4": "The answer is 8", "1+1": "The answer is 2"}
LM_EVAL = Path(sys.executable).with_name("lm_eval")


class Adder:
    """An engine that returns ANSWERS and records its requests."""

    def __init__(self) -> None:
        self.requests: list[Json] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
                body = orjson.loads(await reader.readexactly(length))
                self.requests.append(body)
                question = body["messages"][-1]["content"].rpartition("Q: ")[2].partition("\n")[0]
                answer = orjson.dumps(completion({"content": ANSWERS[question]}))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@pytest.mark.parametrize("shots", [0, 2])
async def test_the_real_harness_scores_a_running_model_server(tmp_path: Path, shots: int) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b"".join(orjson.dumps({"question": q, "answer": a}) + b"\n" for q, a in ROWS))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/tiny_sums.yaml").write_text(TASK.format(rows=rows))
    adder = Adder()
    engine = await asyncio.start_server(adder.serve, "127.0.0.1", 0)
    port = engine.sockets[0].getsockname()[1]
    policy = (f"+policy_base_url=http://127.0.0.1:{port}/v1", "+policy_api_key=none", "+policy_model_name=tiny")
    vllm = "+config_paths=[responses_api_models/vllm_model/configs/vllm_model.yaml]"
    line = ("ng_lm_eval", "+model_server=policy_model", "+model=tiny", f"+benchmarks=['tiny_sums:{shots}']")
    options = (
        f"+include_path={tmp_path / 'tasks'}",
        f"+lm_eval_command=[{LM_EVAL}]",
        "+max_gen_toks={default: 77}",
        "+seed=7",
    )
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    async with engine, ng_run(vllm, *policy, cwd=tmp_path):
        mistyped = await command(
            *line[:3], "+benchmarks=[tiny_sums,tiny_sum,gsmk8]", *options, cwd=tmp_path, env=offline
        )
        assert adder.requests == [], "no task may run before all names are checked"
        done = await command(*line, *options, cwd=tmp_path, env=offline)
        repeated = await command(*line, *options, cwd=tmp_path, env=offline)
    assert mistyped.status == 2
    assert "no task 'tiny_sum', did you mean 'tiny_sums'?; 'gsmk8', did you mean 'gsm8k'?" in mistyped.err
    assert done.status == 0, done.err
    with (tmp_path / "results/lm_eval/results.csv").open() as file:
        scores = {row["metric"]: (row["num_fewshot"], float(row["value"])) for row in csv.DictReader(file)}
    assert scores == {
        "exact_match/strict-match": (str(shots), 0.5),
        "exact_match/flexible-extract": (str(shots), 0.75),
    }
    assert len(adder.requests) == len(ROWS), "the second command must reuse the stored results"
    assert repeated.status == 0
    assert {body["max_tokens"] for body in adder.requests} == {77}
    assert {body["temperature"] for body in adder.requests} == {0}
    assert {body["seed"] for body in adder.requests} == {7}
    assert "lm_eval" in next((tmp_path / "results/lm_eval/logs").iterdir()).read_text()

"""The original lm_eval against our model server, with a task that needs no download."""

from __future__ import annotations

import asyncio
import csv
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from rollyard.records.types import Json
from tests.support.commands import Finished, command, ng_run
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
LM_EVAL = str(Path(sys.executable).with_name("lm_eval"))
FAST = f"{sys.executable},{Path(__file__).with_name('only_given_tasks.py')}"


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


class Harness:
    """A running model server of `Adder`, and the command that evaluates it on TASK."""

    def __init__(self, folder: Path, adder: Adder) -> None:
        self.folder = folder
        self.adder = adder

    async def run(self, *benchmarks: str, lm_eval: str = FAST) -> Finished:
        return await command(
            *("ng_lm_eval", "+model_server=policy_model", "+model=tiny", f"+benchmarks=[{','.join(benchmarks)}]"),
            *(f"+include_path={self.folder / 'tasks'}", f"+lm_eval_command=[{lm_eval}]"),
            *("+max_gen_toks={default: 77}", "+seed=7"),
            cwd=self.folder,
            env={"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(self.folder / "hf")},
        )

    def scores(self) -> dict[str, tuple[str, float]]:
        """Number of examples in the prompt and value of each metric."""
        with (self.folder / "results/lm_eval/results.csv").open() as file:
            return {row["metric"]: (row["num_fewshot"], float(row["value"])) for row in csv.DictReader(file)}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b"".join(orjson.dumps({"question": q, "answer": a}) + b"\n" for q, a in ROWS))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/tiny_sums.yaml").write_text(TASK.format(rows=rows))
    adder = Adder()
    engine = await asyncio.start_server(adder.serve, "127.0.0.1", 0)
    port = engine.sockets[0].getsockname()[1]
    policy = (f"+policy_base_url=http://127.0.0.1:{port}/v1", "+policy_api_key=none", "+policy_model_name=tiny")
    vllm = "+config_paths=[responses_api_models/vllm_model/configs/vllm_model.yaml]"
    async with engine, ng_run(vllm, *policy, cwd=tmp_path):
        yield Harness(tmp_path, adder)


@pytest.mark.smoke
async def test_the_real_harness_scores_a_running_model_server(harness: Harness) -> None:
    done = await harness.run("tiny_sums:2")
    assert done.status == 0, done.err
    assert harness.scores() == {"exact_match/strict-match": ("2", 0.5), "exact_match/flexible-extract": ("2", 0.75)}
    assert len(harness.adder.requests) == len(ROWS)
    for name, value in (("max_tokens", 77), ("temperature", 0), ("seed", 7)):
        assert {body[name] for body in harness.adder.requests} == {value}
    assert "lm_eval" in next((harness.folder / "results/lm_eval/logs").iterdir()).read_text()


async def test_all_names_are_checked_before_a_task_runs_and_stored_results_are_reused(harness: Harness) -> None:
    mistyped = await harness.run("tiny_sums", "tiny_sum", "gsmk8", lm_eval=LM_EVAL)
    assert mistyped.status == 2
    for wrong, right in (("tiny_sum", "tiny_sums"), ("gsmk8", "gsm8k")):
        assert f"'{wrong}', did you mean '{right}'" in mistyped.err
    assert harness.adder.requests == []
    for _ in range(2):
        done = await harness.run("tiny_sums:0")
        assert done.status == 0, done.err
        assert harness.scores()["exact_match/strict-match"] == ("0", 0.5)
        assert len(harness.adder.requests) == len(ROWS)

"""Logs that the real inspect_ai wrote, opened as rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import inspect_ai
import pytest
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    Logprob,
    Logprobs,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, includes, mean, scorer
from inspect_ai.solver import Solver, TaskState, generate, system_message, use_tools
from inspect_ai.tool import Tool, tool

from rollyard.analysis.metrics.load import load
from rollyard.cli import export
from rollyard.records.errors import RunError
from rollyard.records.foreign_files import rollout_file
from rollyard.records.rollout_file import Rollouts
from rollyard.records.types import Json

pytestmark = pytest.mark.filterwarnings("default")  # inspect_ai's dependencies are not ours to mend
PNG = "data:image/png;base64,iVBORw0KGgo="


@tool  # type: ignore[untyped-decorator, unused-ignore]
def add() -> Tool:
    async def execute(x: int, y: int) -> str:
        """Add two numbers.

        Args:
            x: The first number.
            y: The second number.
        """
        if x == 13:
            raise RuntimeError("unlucky")
        return str(x + y)

    return execute


@scorer(metrics=[mean()])  # type: ignore[untyped-decorator, unused-ignore]
def parts() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value={"form": 1.0, "content": 0.5}, answer="3", explanation="half")

    return score


@scorer(metrics=[mean()])  # type: ignore[untyped-decorator, unused-ignore]
def comment() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value="nearly right")

    return score


def call(x: int) -> ModelOutput:
    return ModelOutput.for_tool_call("mockllm/model", "add", {"x": x, "y": 2})


def said(*content: Any) -> ModelOutput:
    return ModelOutput.from_content("mockllm/model", list(content))


async def log(
    folder: Path,
    samples: list[Sample],
    outputs: list[ModelOutput],
    scoring: Any = None,
    epochs: int = 1,
    log_format: Literal["eval", "json"] = "eval",
) -> Path:
    solver: list[Solver] = [system_message("Be brief."), use_tools(add()), generate()]
    task = inspect_ai.Task(dataset=samples, solver=solver, scorer=scoring or includes(), name="sums")
    for output in outputs:
        output.usage = ModelUsage(input_tokens=5, output_tokens=2, total_tokens=7)
    (found,) = await inspect_ai.eval_async(
        task,
        model=get_model("mockllm/model", custom_outputs=outputs),
        log_dir=str(folder),
        log_format=log_format,
        epochs=epochs,
        max_samples=1,
        fail_on_error=False,
    )
    return Path(found.location)


def rows(path: Path) -> list[Json]:
    return [dict(row) for row in Rollouts(path)]


@pytest.mark.smoke
async def test_a_sample_is_a_rollout_with_its_conversation_and_score(tmp_path: Path) -> None:
    outputs = [call(1), said(ContentReasoning(reasoning="1 + 2"), ContentText(text="3"))]
    path = await log(tmp_path, [Sample(input="1 + 2?", target="3", id="a", metadata={"level": 1})], outputs)
    (row,) = rows(rollout_file(path))
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 2?"}]
    assert row["responses_create_params"]["input"] == prompt
    assert [tool["name"] for tool in row["responses_create_params"]["tools"]] == ["add"]
    kinds = ["message", "function_call", "function_call_output", "reasoning", "message"]
    output = row["response"]["output"]
    assert [item["type"] for item in output] == kinds
    assert (output[1]["arguments"], output[2]["output"]) == ('{"x":1,"y":2}', "3")
    assert output[3]["summary"][0]["text"] == "1 + 2"
    assert (row["reward"], row["success"], row["extracted_answer"], row["expected_answer"]) == (1.0, True, "3", "3")
    assert (row["dataset_name"], row["sample_id"], row["metadata"]) == ("sums", "a", {"level": 1})
    assert row["response"]["usage"]["total_tokens"] == 14
    assert row["scores"]["includes"]["value"] == "C"


async def test_epochs_are_repeats_and_samples_tasks(tmp_path: Path) -> None:
    samples = [Sample(input=f"{name}?", target="3", id=name) for name in ("a", "b")]
    opened = rollout_file(await log(tmp_path, samples, [said(ContentText(text="3")) for _ in range(4)], epochs=2))
    found = {(row["_ng_task_index"], row["_ng_rollout_index"]): row["sample_id"] for row in rows(opened)}
    assert {key[0]: name for key, name in found.items()} in ({0: "a", 1: "b"}, {0: "b", 1: "a"})
    assert len(found) == 4
    assert len(load(opened).columns) == 4


async def test_a_sample_with_an_error_is_a_failed_attempt_and_no_reward(tmp_path: Path) -> None:
    opened = rollout_file(await log(tmp_path, [Sample(input="13 + 2?", target="15", id="a")], [call(13)]))
    assert rows(opened) == []
    (failure,) = rows(opened.with_name(f"{opened.stem}_failures.jsonl"))
    assert (failure["failure_kind"], "unlucky" in failure["detail"]) == ("sample_error", True)
    assert failure["partial"]["row"]["response"]["output"][-1]["name"] == "add"


async def test_a_score_of_several_numbers_is_their_mean(tmp_path: Path) -> None:
    path = await log(tmp_path, [Sample(input="?", target="3")], [said(ContentText(text="3"))], parts())
    (row,) = rows(rollout_file(path))
    assert (row["reward"], "success" in row) == (0.75, False)
    assert row["scores"]["parts"] == {"value": {"form": 1.0, "content": 0.5}, "answer": "3", "explanation": "half"}


async def test_a_score_that_is_a_text_is_no_reward(tmp_path: Path) -> None:
    path = await log(tmp_path, [Sample(input="?", target="3")], [said(ContentText(text="3"))], comment())
    (row,) = rows(rollout_file(path))
    assert "reward" not in row
    assert row["scores"]["comment"] == {"value": "nearly right"}


async def test_a_log_in_json_is_the_same_rollouts(tmp_path: Path) -> None:
    samples, outputs = [Sample(input="?", target="3", id="a")], [said(ContentText(text="3"))]
    (row,) = rows(rollout_file(await log(tmp_path, samples, outputs)))
    (same,) = rows(rollout_file(await log(tmp_path, samples, outputs, log_format="json")))
    for each in (row, same):
        each.pop("timings"), each.pop("_ng_source")
    assert same == row


async def test_images_and_log_probabilities_are_kept(tmp_path: Path) -> None:
    answer = said(ContentText(text="red"))
    answer.choices[0].logprobs = Logprobs(content=[Logprob(token="red", logprob=-0.5)])
    image = ChatMessageUser(content=[ContentText(text="Which colour?"), ContentImage(image=PNG)])
    (row,) = rows(rollout_file(await log(tmp_path, [Sample(input=[image], target="red")], [answer])))
    assert row["responses_create_params"]["input"][-1]["content"][1]["image_url"] == PNG
    (entry,) = row["response"]["output"][-1]["content"][0]["logprobs"]
    assert (entry["token"], entry["logprob"]) == ("red", -0.5)


async def test_a_log_can_be_exported_as_trajectories(tmp_path: Path) -> None:
    path = await log(tmp_path, [Sample(input="1 + 2?", target="3", id="a")], [call(1), said(ContentText(text="3"))])
    export.run([str(path), "--output-dir", str(tmp_path / "atif")])
    (row,) = rows(rollout_file(tmp_path / "atif"))
    (expected,) = rows(rollout_file(path))
    row.pop("_ng_source"), expected.pop("_ng_source")
    assert row == expected


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"{}"])
def test_a_broken_log_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.eval"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"log\.eval cannot be read as a log of inspect_ai"):
        rollout_file(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    yield

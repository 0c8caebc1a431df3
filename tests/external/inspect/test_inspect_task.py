"""inspect_task with the real inspect_ai: its solvers, tools and scorers behave as in its own evaluation."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import inspect_ai
import orjson
import pytest
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from rollyard.cli.doctor_environment import Target, findings
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.foreign_files import rollout_file
from rollyard.records.rollout_file import Rollouts
from rollyard.records.types import Json
from rollyard.resources_servers.inspect_task import prepare
from rollyard.resources_servers.inspect_task.app import InspectTask
from rollyard.testing import Rollout, calls, environment_server, in_process_servers, play
from tests.external.inspect import inspect_tasks
from tests.support.coming_from import MODEL, endpoint, last_text, our_rewards, pair, run_lines
from tests.support.commands import BIN, command, ng_run
from tests.support.scripted_engine import listening
from tests.support.waiting import deadline_s

pytestmark = pytest.mark.filterwarnings("default")  # inspect_ai's dependencies are not ours to mend
FILE = str(Path(__file__).parent / "inspect_tasks.py")
CONFIG = "resources_servers/inspect_task/configs/inspect_task.yaml"
EXAMPLES = INSTALLED / "resources_servers/inspect_task/data/example.jsonl"
ROW: Json = {"sample": "q"}


async def episode(name: str, turns: list[Any], row: Json = ROW, **settings: Any) -> Rollout:
    models = settings.pop("models", None)
    return await play(InspectTask, row, turns, settings={"task": f"{FILE}@{name}", **settings}, models=models)


async def refusal(**settings: Any) -> str:
    with pytest.raises(OperatorError) as raised:
        await play(InspectTask, ROW, ["42"], settings=settings)
    return str(raised.value)


async def own_score(name: str, outputs: list[ModelOutput]) -> Any:
    """Score of the first scorer in inspect_ai's own evaluation with the same outputs of the model."""
    model, played = get_model("mockllm/model", custom_outputs=outputs), getattr(inspect_tasks, name)()
    (log,) = await inspect_ai.eval_async(played, model=model, log_samples=True, log_dir="memory://logs")
    assert log.status == "success", log.error
    return next(iter(log.samples[0].scores.values()))


def as_output(turn: str | Json) -> ModelOutput:
    if isinstance(turn, str):
        output = ModelOutput.from_content("mockllm/model", turn)
    else:
        output = ModelOutput.for_tool_call("mockllm/model", turn["name"], orjson.loads(turn["arguments"]))
    output.usage = ModelUsage()  # else inspect_ai downloads a tokenizer to count
    return output


PLAYED: list[tuple[str, list[str | Json], Json]] = [
    ("plain", ["42"], ROW),
    ("plain", ["It is 43."], ROW),
    ("tools", [calls("multiply", x=6, y=7), "42"], ROW),
    ("tools", [calls("multiply", x=-6, y=7), "41"], ROW),
    ("chat", ["So it is 42."], {"sample": "1"}),
    ("options", ["ANSWER: B"], {"sample": "1"}),
    ("options", ["ANSWER: C"], {"sample": "1"}),
    ("options", ["I cannot decide."], {"sample": "1"}),
    ("agent", [calls("multiply", x=6, y=7), calls("submit", answer="42")], ROW),
    ("agent", [calls("submit", answer="41")], ROW),
    ("trajectory", [calls("multiply", x=6, y=7), "done"], ROW),
    ("trajectory", ["done"], ROW),
]


@pytest.mark.parametrize(("name", "turns", "row"), PLAYED)
async def test_the_reward_is_the_score_of_inspects_own_evaluation(
    name: str, turns: list[str | Json], row: Json
) -> None:
    rollout = await episode(name, turns, row)
    own = await own_score(name, [as_output(turn) for turn in turns])
    assert rollout.reward == {"C": 1.0, "I": 0.0}[own.value]
    assert rollout["success"] is (own.value == "C") and rollout["solver_finished"]
    assert rollout.row.get("extracted_answer") == own.answer


@pytest.mark.smoke
async def test_the_model_reads_the_messages_and_tools_of_the_solver() -> None:
    rollout = await episode("chat", ["42"], {"sample": "1"})
    assert [item["role"] for item in rollout.requests[0]["input"]] == ["system", "user", "assistant", "user"]
    rollout = await episode("tools", ["42"])
    (tool,) = rollout.requests[0]["tools"]
    assert tool["name"] == "multiply" and tool["description"] == "Multiply two numbers."
    assert tool["parameters"]["required"] == ["x", "y"] and tool["parameters"]["properties"]["x"]["type"] == "integer"


async def test_errors_of_tools_and_invalid_calls_are_words_for_the_model_and_exceptions_failures() -> None:
    parallel = [calls("multiply", x=2, y=3), calls("multiply", x=4, y=5)]
    turns = [calls("multiply", x=-1, y=2), calls("multiply", x="six", y=2), calls("divide", x=1), parallel, "42"]
    negative, invalid, unknown, *products = (await episode("tools", turns)).tool_outputs
    assert "x must not be negative" in negative and "'six' is not of type 'integer'" in invalid
    assert "divide not found" in unknown and products == ["6", "20"]
    before = asyncio.all_tasks()
    for turn, words in ((calls("multiply", x=13, y=2), "this host is broken"), (calls("multiply", x=1, y=1), "")):
        with pytest.raises(Failure, match=words or None):
            await episode("tools", [turn])  # the script has no second turn
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks() - before) == 0


async def test_a_submission_ends_the_episode_unless_it_is_wrong_and_another_attempt_is_left() -> None:
    rollout = await episode("agent", [calls("submit", answer="42"), "never asked"])
    assert rollout.finish_reason == "done" and len(rollout.requests) == 1
    turns = [calls("submit", answer="41"), calls("submit", answer="42")]
    rollout = await episode("agent", turns, task_args={"attempts": 2})
    assert rollout.reward == 1.0 and "incorrect" in rollout.tool_outputs[0].lower()
    rollout = await episode("agent", ["It is 42."])  # without a submission
    assert rollout.reward == 1.0 and rollout["solver_finished"] is False


async def test_scorers_ask_the_model_server_that_is_named_as_the_grader() -> None:
    for name, reply, reward in (("graded", "GRADE: C", 1.0), ("graded", "GRADE: I", 0.0), ("role", "yes", 1.0)):
        rollout = await episode(name, ["42"], grader={"name": "judge"}, models={"judge": [reply]})
        assert rollout.reward == reward
    with pytest.raises(Failure) as raised:
        await episode("graded", ["42"], grader={"name": "judge"}, models={"judge": []})
    assert raised.value.problem.server == "judge"


async def test_a_score_with_several_values_gives_their_mean_or_one_of_them_and_no_score_is_a_failure() -> None:
    assert (await episode("dictionary", ["42"])).reward == 0.75
    assert (await episode("dictionary", ["42"], score_key="content")).reward == 1.0
    with pytest.raises(Failure, match="no key 'humour'"):
        await episode("dictionary", ["42"], score_key="humour")
    with pytest.raises(Failure, match="gave no score") as raised:
        await episode("nan", ["42"])
    assert raised.value.kind is FailureKind.MALFORMED_ANSWER


async def test_another_scorer_of_the_task_can_give_the_reward() -> None:
    rollout = await episode("plain", ["42 it is."], scorer="includes")
    assert rollout.reward == 1.0 and rollout["scores"].keys() == {"match", "includes"}
    assert "it has match, includes" in await refusal(task=f"{FILE}@plain", scorer="exact")


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (f"{FILE}@boxed", "it runs in a sandbox (docker)"),
        (f"{FILE}@files", "1 of its samples need a sandbox"),
        (f"{FILE}@unscored", "has no scorer"),
        (f"{FILE}@several", "calls the model again after its answer"),
        (f"{FILE}@failing", "its solver fails (RuntimeError: no such file)"),
        (f"{FILE}@graded", "set `grader` to a model server"),
        (f"{FILE}@nowhere", "cannot be loaded"),
        ("nowhere.py@plain", "nowhere.py does not exist"),
        ("plain", "expected path/to/file.py@name"),
    ],
)
async def test_a_task_that_does_not_exist_or_cannot_be_an_environment_stops_the_start(task: str, problem: str) -> None:
    assert problem in await refusal(task=task)


async def test_task_arguments_reach_the_task() -> None:
    rollout = await episode("plain", ["42"], task_args={"question": "How many?"})
    assert "How many?" in rollout.requests[0]["input"][-1]["content"]
    assert "has no argument answer" in await refusal(task=f"{FILE}@plain", task_args={"answer": 1})


async def test_a_row_of_another_version_of_the_dataset_is_a_bad_task() -> None:
    for row, problem in (({"sample": "q", "sample_sha256": "0"}, "has changed"), ({"sample": "z"}, "plain has q")):
        with pytest.raises(Failure, match=problem) as raised:
            await episode("plain", ["42"], row)
        assert raised.value.kind is FailureKind.BAD_TASK


def test_prepared_rows_are_the_same_in_every_process_and_can_be_played(tmp_path: Path) -> None:
    first, again = tmp_path / "rows.jsonl", tmp_path / "again.jsonl"
    for output in (first, again):
        prepare.main(["--task", f"{FILE}@chat", "--output", str(output)])
    assert first.read_bytes() == again.read_bytes()
    assert asyncio.run(episode("chat", ["42"], orjson.loads(first.read_bytes()))).reward == 1.0


async def test_a_hundred_episodes_wait_for_their_models_at_once_and_ng_doctor_finds_nothing(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    prepare.main(["--output", str(rows), "--task", f"{FILE}@tools"])
    server = environment_server(InspectTask, {"task": f"{FILE}@tools"})
    async with in_process_servers({"server": server}) as servers:
        opened = await asyncio.gather(*(servers.post("server", "/seed_session", ROW) for _ in range(100)))
        assert {response.status for response in opened} == {200}
        cookies = [{"cookie": response.cookies[0].partition(";")[0]} for response in opened]
        requests = [({"x": number, "y": 2}, cookie) for number, cookie in enumerate(cookies, start=20)]
        products = await asyncio.gather(*(servers.post("server", "/multiply", *request) for request in requests))
        assert [orjson.loads(one.body) for one in products] == [str(2 * number) for number in range(20, 120)]
        target = Target("server", "http://server:1", servers.transport, deadline_s())
        assert [finding async for finding in findings(target, rows) if finding.status == "failed"] == []


async def test_the_example_rows_are_played_by_the_built_in_policy_as_documented(tmp_path: Path) -> None:
    model = "responses_api_models/builtin_model/configs/builtin_model.yaml"
    files = [f"+input_jsonl_fpath={EXAMPLES}", "+output_jsonl_fpath=rollouts.jsonl"]
    async with ng_run(f"+config_paths=[{CONFIG},{model}]", "+colocate=true", "+head_port=0", cwd=tmp_path):
        collect = ["ng_collect_rollouts", "+agent_name=inspect_agent", *files, "+num_repeats=1"]
        done = await command(*collect, cwd=tmp_path)
    assert done.status == 0, done.err
    rows = [orjson.loads(line) for line in (tmp_path / "rollouts.jsonl").read_bytes().splitlines()]
    assert len(rows) == len(EXAMPLES.read_bytes().splitlines()) and all("match" in row["scores"] for row in rows)


async def test_the_pair_of_the_page_gives_as_many_samples_with_the_same_scores(tmp_path: Path) -> None:
    def answer(request: Json) -> str:
        numbers = [int(number) for number in re.findall(r"\d+", last_text(request))]
        return str(sum(numbers) if numbers and numbers[0] < 30 else 0)

    shutil.copy(Path(prepare.__file__).with_name("example_task.py"), tmp_path / "sums.py")
    async with listening(endpoint(answer)) as url:
        found = pair("inspect_ai", {MODEL: url})
        await run_lines(found.theirs, tmp_path, BIN)
        await run_lines(found.ours, tmp_path, BIN)
    [log] = (tmp_path / "results" / "theirs").glob("*.eval")
    theirs = sorted(row["reward"] for row in Rollouts(rollout_file(log)))
    assert theirs == our_rewards(tmp_path) == [0.0] * 2 + [1.0] * 4

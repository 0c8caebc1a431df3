"""An agent that is a program: what is recorded of it, how it ends, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollyard.agents.program_agent.app import (
    Program,
    ProgramAgent,
    ProgramAgentSettings,
    ProgramEpisode,
    addresses,
    write_mcp_file,
    written,
)
from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import FinishReason, Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, ToolResult, Verdict, Verification, tool
from rollyard.responses_api_models.base import ModelServer
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.http.request import HttpResponse, RawRequest
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings
from rollyard.testing import Rollout, play
from rollyard.training.training_sequence import SequenceRules, training_sequences
from tests.support.fixtures import failure_of
from tests.support.in_process import episode_servers
from tests.support.processes import alive
from tests.support.token_clients import CALL_TURN
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, encode_letters
from tests.support.waiting import eventually, until

PROGRAM = Path(__file__).parents[2] / "support" / "scripted_program.py"
ENV = {"OPENAI_BASE_URL": "{base_url}", "OPENAI_API_KEY": "{api_key}", "ANTHROPIC_BASE_URL": "{anthropic_url}"}
ROW: Json = {"question": "Open the door."}


class Door(Environment[EnvironmentSettings]):
    user_template = "{question}"

    @tool
    async def push(self, times: int) -> ToolResult:
        """Push the door."""
        return ToolResult("It moves.", done=times > 5)

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0, success="last" in response.text)


class Stuck(Door):
    @tool
    async def push(self, times: int) -> ToolResult:
        """Push the door."""
        raise RuntimeError("the hinge is broken")


def settings(scene: str, *arguments: str, **more: Any) -> Json:
    return {"program": [sys.executable, str(PROGRAM), scene, *arguments], "env": ENV, **more}


async def played(
    scene: str, *arguments: str, environment: type[Environment[Any]] = Door, turns: Any = None, **more: Any
) -> Rollout:
    """Play a scene with a model that says how many items it has read."""
    script = turns or (lambda request: f"I read {len(request['input'])}.")
    options = settings(scene, *arguments, **more)
    return await play(environment, ROW, script, agent=ProgramAgent, agent_settings=options)


def said(row: Json) -> list[str]:
    """The texts of the output, in order."""
    contents = [item["content"] for item in row["response"]["output"]]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]


async def test_the_conversation_of_a_program_is_the_output_and_the_row_keeps_its_own_input() -> None:
    rollout = await played("linear", "{instruction}")
    assert said(rollout.row) == [
        *("You are a program.", "Open the door.", "I read 2.", "Go on, 0.", "I read 4.", "Go on, 1.", "I read 6.")
    ]
    assert rollout["responses_create_params"]["input"] == [{"role": "user", "content": "Open the door."}]
    assert (rollout.finish_reason, rollout["truncated"], rollout.reward) == ("answered", False, 1.0)
    assert rollout["program_run"]["exit_status"] == 0
    assert rollout["response"]["usage"] == {"input_tokens": 30, "output_tokens": 6, "total_tokens": 36}


async def test_each_dialect_is_recorded_and_a_stream_continues_its_conversation() -> None:
    rollout = await played("dialects")
    assert said(rollout.row) == [
        *("Chat.", "I read 1.", "Be brief.", "Responses.", "I read 1."),
        *("Messages.", "I read 1.", "More.", "I read 3."),
    ]
    assert "event: message_stop" in rollout["program_run"]["output"]


async def test_the_rows_sampling_parameters_replace_those_of_the_program() -> None:
    row = {"responses_create_params": {"input": "Go.", "temperature": 0.3, "max_output_tokens": 7}}
    rollout = await play(Door, row, lambda request: "yes", agent=ProgramAgent, agent_settings=settings("dialects"))
    assert {(request["temperature"], request["max_output_tokens"]) for request in rollout.requests} == {(0.3, 7)}


@pytest.mark.parametrize(("scene", "turns"), [("parallel", [1, 1, 1, 2]), ("sub_agent", [2, 2]), ("cut", [1, 3])])
async def test_conversations_that_do_not_continue_each_other_are_apart(scene: str, turns: list[int]) -> None:
    conversations = (await played(scene))["program_run"]["conversations"]
    assert sorted(one["turns"] for one in conversations) == turns
    longest = [one["turns"] for one in conversations].index(turns[-1])
    # Parallel calls with the same beginning branch off after its only turn; the others begin with their own messages.
    expected = [longest, 0] if scene == "parallel" else None
    assert all(one["branches_off"] == expected for at, one in enumerate(conversations) if at != longest)


SAID = ["the box", "the wall", "go up", "push", "left", "last"]
TURNS = [[*encode_letters(text), END] for text in SAID]
"""Generated letter by letter, as no tokenizer would encode what the program sends back."""


async def with_tokens(
    scene: str, *, token_in: str = "generate", script: Sequence[list[int]] = TURNS
) -> tuple[Json, TokenEngine]:
    engine = TokenEngine(list(script))
    options: Json = {"base_url": "http://engine:1/v1", "model": "tiny", "return_token_id_information": True}
    options |= {"logprobs_mode": "processed_logprobs", "text_tool_parser": "hermes", "token_in": token_in}

    def model(context: Any) -> VllmModel:
        return VllmModel(VllmModelSettings(**options), context)

    async with episode_servers(Door, model, ProgramAgent, **settings(scene, "Go.")) as servers:
        servers.transport.mount("http://engine:1", engine)
        return await servers.run(ROW), engine


@pytest.mark.parametrize(
    ("scene", "calls", "segments"), [("linear", 3, 1), ("parallel", 5, 4), ("sub_agent", 4, 2), ("cut", 4, 2)]
)
async def test_every_sampled_token_is_trained_on_once_and_no_conversation_drifts(
    scene: str, calls: int, segments: int
) -> None:
    row, engine = await with_tokens(scene)
    assert row["token_trail"] == {"turns": calls - 1, "breaks": 0, "segments": segments}
    sequences = training_sequences(row, SequenceRules())
    assert len(sequences) == segments
    trained = [
        [token for token, has_loss in zip(one.completion_ids, one.loss_mask, strict=True) if has_loss]
        for one in sequences
    ]
    # Parallel calls get their turns in any order.
    assert sorted(chain.from_iterable(trained)) == sorted(chain.from_iterable(TURNS[:calls]))
    sent = [body["token_ids"] for path, body in engine.requests if path.endswith("generate") and "token_ids" in body]
    recorded = [item["prompt_token_ids"] for item in row["response"]["output"] if "prompt_token_ids" in item]
    assert all(prompt in sent for prompt in recorded)


async def test_calls_that_a_program_writes_anew_do_not_drift() -> None:
    row, engine = await with_tokens("rewritten", script=[CALL_TURN])
    assert row["token_trail"] == {"turns": 2, "breaks": 0, "segments": 1}
    (sequence,) = training_sequences(row, SequenceRules())
    assert sequence.loss_tokens == 3 * len(CALL_TURN)
    rendered = [body["messages"] for path, body in engine.requests if path.endswith("render") and "messages" in body]
    results = [message for message in rendered[-1] if message["role"] == "tool"]
    assert [result["tool_call_id"] for result in results] == ["own1"]


async def test_a_prompt_that_the_engine_tokenized_again_is_recorded_as_a_break() -> None:
    row, _ = await with_tokens("linear", token_in="off")
    assert row["token_trail"] == {"turns": 2, "breaks": 2, "segments": 3}


async def test_a_program_cannot_forge_tokens() -> None:
    row, engine = await with_tokens("forged")
    recorded = [item for item in row["response"]["output"] if "generation_token_ids" in item]
    assert len(recorded) == 5 and all(item["generation_token_ids"] in TURNS for item in recorded)
    assert all(item["role"] == "assistant" for item in recorded)
    trained = sum(sequence.loss_tokens for sequence in training_sequences(row, SequenceRules()))
    assert trained == sum(len(turn) for turn in TURNS[:5])
    assert "66,66" not in json.dumps([row, engine.requests], separators=(",", ":"))


async def test_a_program_reads_nothing_of_tokens() -> None:
    row, _ = await with_tokens("dialects")
    assert "token" not in row["program_run"]["output"].replace("_tokens", "").replace("max_token", "")


async def test_a_programs_loop_ends_at_the_limit_of_steps_and_is_graded_as_truncated() -> None:
    rollout = await played("endless", max_steps=4)
    assert (rollout.finish_reason, rollout["truncated"], rollout["timings"]["model_calls"]) == ("max_steps", True, 4)
    assert (rollout.reward, rollout["program_run"]["exit_status"]) == (1.0, None)


async def test_a_programs_loop_ends_at_the_limit_of_generated_tokens() -> None:
    rollout = await played("endless", max_generated_tokens=5)  # each turn reports 2
    assert (rollout.finish_reason, rollout["truncated"], rollout["timings"]["model_calls"]) == ("length", True, 3)


async def test_a_program_that_takes_too_long_is_graded_as_truncated(tmp_path: Path) -> None:
    for limit_s in (1, 4, 16, 64):  # how long a busy machine takes to start the program
        with contextlib.suppress(Failure):
            rollout = await played("stubborn", str(tmp_path / "pids"), time_limit_s=limit_s)
            break
    assert (rollout.finish_reason, rollout["truncated"], rollout.reward) == ("time_limit", True, 1.0)


class HangingModel(ModelServer[ServerSettings]):
    async def responses(self, request: Json, call: RawRequest) -> Json:
        await asyncio.Event().wait()
        raise AssertionError


async def with_a_hanging_model(**more: Any) -> Json:
    def model(context: Context) -> HangingModel:
        return HangingModel(ServerSettings(), context)

    async with episode_servers(Door, model, ProgramAgent, **settings("endless", **more)) as servers:
        return await servers.run(ROW)


async def test_a_first_answer_that_takes_longer_than_the_limit_is_graded_as_truncated() -> None:
    for limit_s in (1, 4, 16):  # how long a busy machine takes to start the program
        with contextlib.suppress(Failure):
            row = await with_a_hanging_model(time_limit_s=limit_s)
            break
    assert (row["finish_reason"], row["truncated"], row["timings"]["model_calls"]) == ("time_limit", True, 0)
    assert (row["reward"], row["response"]["output"]) == (1.0, [])


async def test_a_model_server_that_hangs_longer_than_its_timeout_is_a_failure() -> None:
    failure = await failure_of(with_a_hanging_model(model_timeout_s=0.2))
    assert failure.kind is FailureKind.TIMEOUT


async def test_a_program_that_fails_after_a_turn_is_graded_and_its_output_recorded() -> None:
    rollout = await played("crash")
    assert (rollout.finish_reason, rollout["truncated"], rollout.reward) == ("program_failed", False, 1.0)
    assert rollout["program_run"]["exit_status"] == 1
    assert "the program broke" in rollout["program_run"]["output"]


async def test_a_program_that_never_called_the_model_is_a_failure_with_its_output() -> None:
    failure = await failure_of(played("silent"))
    assert failure.kind is FailureKind.SERVER_ERROR
    assert "nothing to ask" in failure.problem.detail


async def test_of_a_long_output_the_begin_and_the_end_are_kept() -> None:
    output = (await played("loud"))["program_run"]["output"]
    assert output.startswith("begin\n") and output.endswith("end\n")
    assert len(output) < 70_000


async def test_the_program_reads_why_a_request_is_refused_and_may_go_on() -> None:
    rollout = await played("refused")
    lines = rollout["program_run"]["output"].splitlines()
    assert [line[:4] for line in lines] == ["400 ", "400 "]
    assert (rollout.finish_reason, said(rollout.row)) == ("answered", ["One.", "I read 1."])


async def test_malformed_requests_harm_neither_the_episode_nor_its_session() -> None:
    rollout = await played("malformed")
    lines = rollout["program_run"]["output"].splitlines()
    assert [line for line in lines if line.split()[1][0] == "5"] == []
    refused = [line for line in lines if "There is no tool" in line]
    assert [name in line for name, line in zip(("verify", "../close"), refused, strict=True)] == [True, True]
    assert (rollout.finish_reason, rollout.reward, said(rollout.row)[0]) == ("answered", 1.0, "Well formed.")


async def test_a_failed_model_call_fails_the_episode_although_the_program_would_go_on() -> None:
    def fail(request: Json) -> str:
        raise Failure(FailureKind.UPSTREAM_ERROR, "the engine died")

    failure = await failure_of(played("endless", turns=["first", fail]))
    assert (failure.kind, failure.problem.detail) == (FailureKind.UPSTREAM_ERROR, "the engine died")


async def test_what_fails_after_the_end_does_not_undo_it_and_no_tool_runs_any_more() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def late(*_: Any) -> HttpResponse:
        begun.set()
        await ended.wait()
        raise Failure(FailureKind.SERVER_ERROR, "the hinge is broken")

    async def answer(*_: Any) -> HttpResponse:
        return HttpResponse(200, {}, b"{}")

    door, model = (SimpleNamespace(server="it", foreign=False, send=send) for send in (late, answer))
    state = SimpleNamespace(enter=lambda *_: 0.0, finish=lambda *_: None, spans=[])
    stubs: list[Any] = [SimpleNamespace(params={}), door, model, state]
    episode = ProgramEpisode(*stubs, model_timeout_s=9, tool_timeout_s=9)
    episode._recorder = stubs[2]
    refs = {"resources_server": {"name": "a"}, "model_server": {"name": "b"}}
    limits = ProgramAgentSettings.model_validate({**refs, "program": ["x"], "max_steps": 1})
    visitor = episode.visitor("key", limits)
    await visitor.ask("/v1/responses", b"{}")
    tool_call = asyncio.ensure_future(visitor.use("push", {}))
    await begun.wait()
    await failure_of(visitor.ask("/v1/responses", b"{}"))
    ended.set()
    assert (await failure_of(tool_call)).kind is FailureKind.SERVER_ERROR
    assert (await failure_of(visitor.use("push", {}))).kind is FailureKind.BAD_REQUEST
    run: Any = SimpleNamespace(status=None, output="")
    assert episode.outcome(run) is FinishReason.MAX_STEPS


async def test_tools_are_offered_over_mcp_and_end_the_episode() -> None:
    rollout = await played("tools")
    assert said(rollout.row)[0] == "You have ['push']."
    assert "It moves." in said(rollout.row)[2]
    assert (rollout.finish_reason, rollout["timings"]["tool_calls"]) == ("done", 2)


async def test_a_broken_tool_fails_the_episode() -> None:
    failure = await failure_of(played("tools", environment=Stuck))
    assert (failure.kind, failure.problem.server) == (FailureKind.SERVER_ERROR, "environment")


async def test_a_key_opens_only_its_own_episode() -> None:
    rollout = await played("other_episode")
    assert rollout["program_run"]["output"].splitlines() == ["refused 401", "refused 401"]


KILLED = """
import asyncio, sys
from rollyard.testing import play
from tests.integration.agents.test_program_agent import Door, ProgramAgent, ROW, settings
scene = settings("stubborn", sys.argv[1])
asyncio.run(play(Door, ROW, lambda request: "yes", agent=ProgramAgent, agent_settings=scene))
"""


@pytest.mark.parametrize("kill", [subprocess.Popen.kill, subprocess.Popen.terminate])
def test_nothing_is_left_of_a_program_whose_agent_is_killed(
    tmp_path: Path, kill: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    pids = tmp_path / "pids"
    agent = subprocess.Popen([sys.executable, "-c", KILLED, str(pids)], cwd=PROGRAM.parents[2])
    pid, grandchild, folder = eventually("the program runs", lambda: pids.read_text().split() if pids.exists() else [])
    assert alive(int(pid)) and alive(int(grandchild))
    kill(agent)
    agent.wait()
    eventually("its processes have ended", lambda: not alive(int(pid)) and not alive(int(grandchild)))
    eventually("its folder is removed", lambda: not Path(folder).exists())


async def test_a_guard_that_the_program_has_stopped_does_not_hang_the_episode(tmp_path: Path) -> None:
    written(tmp_path, addresses("http://127.0.0.1:1/abc", "key", "Do it."))
    program = await Program.start(["sh", "-c", 'kill -STOP "$PPID"; echo "$$"; exec sleep 600'], tmp_path, os.environ)
    await until(lambda: program.output, "the program runs")
    await program.kill(guard_s=0.1)
    assert program.status is None
    await until(lambda: not alive(int(program.output)), "the program has ended")


@pytest.mark.parametrize("text", ["x" * 3_000_000, "a\0b"])
async def test_a_task_that_cannot_be_an_argument_is_refused_with_the_way_out(text: str) -> None:
    row: Json = {"responses_create_params": {"input": text}}
    failure = await failure_of(
        play(Door, row, ["x"], agent=ProgramAgent, agent_settings=settings("linear", "{instruction}"))
    )
    assert (failure.kind, "{instruction_file}" in failure.problem.detail) == (FailureKind.BAD_TASK, True)


def test_an_unknown_placeholder_is_refused_at_the_start() -> None:
    refs = {"resources_server": {"name": "a"}, "model_server": {"name": "b"}}
    with pytest.raises(ValueError, match=r"there is no \{url\}; expected one of here, folder"):
        ProgramAgentSettings.model_validate({**refs, "program": ["x", "{url}"]})
    given = ProgramAgentSettings.model_validate({**refs, "program": ["sh", "-c", "echo ${HOME} {api_key} {}"]})
    assert given.program[-1] == "echo ${HOME} {api_key} {}"


async def test_a_program_that_does_not_exist_stops_the_start() -> None:
    with pytest.raises(OperatorError, match="the program 'no-such-program' was not found"):
        await play(Door, ROW, ["x"], agent=ProgramAgent, agent_settings={"program": ["no-such-program"]})


def test_the_file_of_mcp_servers_is_the_usual_one(tmp_path: Path) -> None:
    values = written(tmp_path, addresses("http://127.0.0.1:1/abc", "key", "Do it."))
    assert not Path(values["mcp_file"]).exists()  # it contains the key
    write_mcp_file(values)
    server = {"type": "http", "url": "http://127.0.0.1:1/abc/mcp", "headers": {"Authorization": "Bearer key"}}
    assert json.loads(Path(values["mcp_file"]).read_text()) == {"mcpServers": {"environment": server}}
    assert Path(values["instruction_file"]).read_text() == "Do it."

"""Extracting the program from a model's text."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

import orjson
import pytest

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.humaneval import app as humaneval_app
from rollyard.resources_servers.mbpp import app as mbpp_app
from rollyard.resources_servers.python_answers.program_extraction import defined, find
from rollyard.services.sandbox import isolation_modes
from rollyard.services.server.app import Context, Server
from tests.support.in_process import InProcessServers, Script, agent, in_process_servers, says
from tests.support.waiting import deadline_s
from tests.unit.resources_servers.python_answers.model_texts import TEXTS

HELPER = "def half(x):\n    return x / 2\n"
MAIN = "def f(x):\n    return half(x) * 2\n"


def code_of(text: str, *names: str) -> str:
    found = find(text, names or ("f",))
    return found.code if found else ""


def test_a_fenced_block_is_the_program() -> None:
    assert code_of(f"Sure:\n```python\n{HELPER}{MAIN}```\nThat is all.") == HELPER + MAIN


def test_helpers_before_and_after_the_tested_function_are_kept() -> None:
    assert {"half", "f"} <= defined(code_of(HELPER + MAIN)) & defined(code_of(MAIN + HELPER))


def test_blocks_are_joined_in_order() -> None:
    text = f"First a helper:\n```python\n{HELPER}```\nand now\n```py\n{MAIN}```"
    assert {"half", "f"} <= defined(code_of(text))


def test_a_block_of_another_language_is_ignored() -> None:
    assert code_of(f"```bash\npip install f\n```\n```python\n{MAIN}```") == MAIN


def test_an_invalid_block_does_not_affect_the_others() -> None:
    assert "f" in defined(code_of(f"```python\n{MAIN}```\nUse it so:\n```python\n>>> f(1)\n1\n```"))


def test_an_unclosed_fence_counts() -> None:
    assert code_of(f"```python\n{MAIN}") == MAIN


def test_blocks_in_a_list_are_dedented() -> None:
    assert code_of("1. so:\n   ```python\n   def f(x):\n       return x\n   ```") == "def f(x):\n    return x\n"


def test_reasoning_is_not_an_answer() -> None:
    assert code_of(f"<think>```python\n{MAIN}```</think>I do not know.") == ""


def test_a_base_models_answer_ends_at_done() -> None:
    assert code_of(f"[BEGIN]\n{MAIN}\n[DONE]\n\nYou are an expert") == MAIN + "\n"


@pytest.mark.parametrize(
    "rest", ["\nYou are an expert Python programmer, and here is", "\nThis works.", "\ndef g(", "\n```\nExplanation"]
)
def test_the_continuation_of_a_base_model_is_removed(rest: str) -> None:
    assert defined(code_of(MAIN + rest)) == {"f"}


def test_prose_before_a_program_without_a_fence_is_removed() -> None:
    assert code_of(f"Here is the function:\n\n{MAIN}\nIt doubles a half.") == MAIN + "\n"


def test_a_program_after_very_long_prose_is_found() -> None:
    prose = "Let me think about it.\n```python\nx = 1\n```\n" * 3_000
    assert "f" in defined(code_of(f"{prose}\nSo:\n```python\n{MAIN}```"))


def test_a_truncated_long_program_keeps_its_complete_part() -> None:
    assert "f" in defined(code_of(MAIN + "x = [1, 2, 3]\n" * 1_000 + "y = [1,"))


def test_windows_line_endings_are_accepted() -> None:
    assert "f" in defined(code_of("```python\r\ndef f(x):\r\n\treturn x\r\n```"))


def test_prose_alone_is_not_a_program() -> None:
    assert find("I cannot do that.", ("f",)) is None


def test_an_empty_answer_is_not_a_program() -> None:
    assert find("", ("f",)) is None


@pytest.mark.parametrize("name", TEXTS)
def test_the_complete_program_is_found_in(name: str) -> None:
    names: dict[str, Any] = {}
    exec(code_of(TEXTS[name].format(code=HELPER + MAIN)), names)
    assert names["f"](3) == 3


@pytest.mark.parametrize("line_ending", ["\r\n", "\r"])
def test_any_line_endings_are_accepted_around_fences(line_ending: str) -> None:
    text = f"Here:\n```python\n{HELPER}{MAIN}```\nDone.\n".replace("\n", line_ending)
    assert code_of(text) == HELPER + MAIN


def test_non_breaking_spaces_are_normalized() -> None:
    assert code_of(f"```python\n{HELPER}{MAIN}```".replace("    ", "\u00a0" * 4)) == HELPER + MAIN


def test_an_indented_program_is_found_between_prose() -> None:
    indented = textwrap.indent(HELPER + "\n" + MAIN, "    ")
    assert {"half", "f"} == defined(code_of(f"So it is:\n\n{indented}\nThat's all."))


def test_a_return_outside_a_function_is_not_a_program() -> None:
    assert code_of(f"```python\n{MAIN}```\n```python\nreturn 2\n```") == MAIN


HARD = [
    "(" * 50_000,
    "not " * 50_000,
    "```python\n" + "[" * 90_000,
    "x = '''" * 9_000,
    f"```{'a' * 90_000}`",  # these texts used to take half a minute each
    "`" * 90_000,
    " " * 90_000 + "x",
    "    x = 1\n" * 9_000 + "    (",
    "```python\n(\n```\n" * 2_000,
]


@pytest.mark.parametrize("text", HARD, ids=lambda text: text[:12])
def test_text_that_is_hard_to_parse_is_not_a_program(text: str) -> None:
    assert find(text, ("f",)) is None or "f" not in defined(code_of(text))


ENVIRONMENTS = {"mbpp": mbpp_app.server, "humaneval": humaneval_app.server}


def environment_server(name: str, **settings: Any) -> Any:
    def build(context: Context) -> Server:
        kind = ENVIRONMENTS[name]
        return kind(kind.Settings(**settings), context)

    return build


async def examples(stack: InProcessServers) -> list[Json]:
    answer = await stack.transport.send("GET", "http://environment:1/examples", b"", {}, deadline_s())
    found: list[Json] = orjson.loads(answer.body)
    return found


@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_every_example_row_can_be_fetched_and_run(name: str) -> None:
    script = Script([[says("```python\ndef min_cost(*given): return 8\n```")]])
    async with in_process_servers(
        {"environment": environment_server(name), "model": script.model, "agent": agent(SimpleAgent)}
    ) as stack:
        rows = await examples(stack)
        rollouts = await asyncio.gather(*[stack.run(row) for row in rows])
    assert len(rollouts) == 5
    assert [rollout["reward"] for rollout in rollouts] == [0.0] * 5
    assert all(rollout["sandbox"] and rollout["reason"] for rollout in rollouts)


async def test_a_right_answer_gets_a_reward_of_one_through_the_whole_stack() -> None:
    row = {"test_list": ["assert f(1) == 2"], "responses_create_params": {"input": "Write f."}}
    script = Script([[says("```python\ndef f(x): return x + 1\n```")]])
    async with in_process_servers(
        {"environment": environment_server("mbpp"), "model": script.model, "agent": agent(SimpleAgent)}
    ) as stack:
        rollout = await stack.run(row)
    assert (rollout["reward"], rollout["ending"], rollout["tests_passed"]) == (1.0, "passed", 1)


async def test_without_isolation_the_server_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation_modes, "modes", lambda python, bubblewrap, *, unsandboxed: [])
    monkeypatch.setattr("rollyard.services.sandbox.sandbox.modes", lambda python, bubblewrap, *, unsandboxed: [])
    with pytest.raises(OperatorError, match="allow_unsandboxed: true"):
        async with in_process_servers({"environment": environment_server("mbpp")}):
            pass

"""Extracting the program from a model's text."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

import orjson
import pytest

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import OperatorError
from rollyard.resources_servers.answers.programs import defined, find
from rollyard.resources_servers.humaneval import app as humaneval_app
from rollyard.resources_servers.mbpp import app as mbpp_app
from rollyard.services.server.app import Context, Server
from tests.support.in_process import Script, agent, in_process_servers, says
from tests.support.waiting import deadline_s
from tests.unit.resources_servers.python_answers.model_texts import TEXTS

HELPER = "def half(x):\n    return x / 2\n"
MAIN = "def f(x):\n    return half(x) * 2\n"


def code_of(text: str, *names: str) -> str:
    found = find(text, names or ("f",))
    return found.code if found else ""


EXACT = {
    "a fenced block": (f"Sure:\n```python\n{HELPER}{MAIN}```\nThat is all.", HELPER + MAIN),
    "beside a block of another language": (f"```bash\npip install f\n```\n```python\n{MAIN}```", MAIN),
    "an unclosed fence": (f"```python\n{MAIN}", MAIN),
    "a block in a list": ("1. so:\n   ```python\n   def f(x):\n       return x\n   ```", "def f(x):\n    return x\n"),
    "reasoning alone": (f"<think>```python\n{MAIN}```</think>I do not know.", ""),
    "up to [DONE]": (f"[BEGIN]\n{MAIN}\n[DONE]\n\nYou are an expert", MAIN + "\n"),
    "between prose without a fence": (f"Here is the function:\n\n{MAIN}\nIt doubles a half.", MAIN + "\n"),
    "with non-breaking spaces": (f"```python\n{HELPER}{MAIN}```".replace("    ", "\u00a0" * 4), HELPER + MAIN),
    "beside a return outside a function": (f"```python\n{MAIN}```\n```python\nreturn 2\n```", MAIN),
    "with Windows line endings": (f"Here:\n```python\n{HELPER}{MAIN}```\nDone.\n".replace("\n", "\r\n"), HELPER + MAIN),
    "with old line endings": (f"Here:\n```python\n{HELPER}{MAIN}```\nDone.\n".replace("\n", "\r"), HELPER + MAIN),
    "prose alone": ("I cannot do that.", ""),
    "nothing": ("", ""),
}
DEFINES = {
    "helpers before the function": (HELPER + MAIN, {"half", "f"}),
    "helpers after the function": (MAIN + HELPER, {"half", "f"}),
    "blocks that are joined": (f"First:\n```python\n{HELPER}```\nand\n```py\n{MAIN}```", {"half", "f"}),
    "indentation between prose": (
        f"So:\n\n{textwrap.indent(HELPER + chr(10) + MAIN, '    ')}\nThat's all.",
        {"half", "f"},
    ),
    "an invalid second block": (f"```python\n{MAIN}```\nUse it so:\n```python\n>>> f(1)\n1\n```", {"f"}),
    "a tab": ("```python\r\ndef f(x):\r\n\treturn x\r\n```", {"f"}),
    "very long prose": (f"{'Let me think.' * 20_000}\n```python\n{MAIN}```", {"f"}),
    "many blocks before it": ("Hm.\n```python\nx = 1\n```\n" * 3_000 + f"\nSo:\n```python\n{MAIN}```", {"f"}),
    "a truncated long program": (MAIN + "x = [1, 2, 3]\n" * 1_000 + "y = [1,", {"f", "x"}),
    "the next task of a base model": (f"{MAIN}\nYou are an expert Python programmer, and here is", {"f"}),
    "prose after it": (f"{MAIN}\nThis works.", {"f"}),
    "an incomplete function after it": (f"{MAIN}\ndef g(", {"f"}),
    "a closing fence after it": (f"{MAIN}\n```\nExplanation", {"f"}),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_program_is_extracted_from(name: str) -> None:
    text, code = EXACT[name]
    assert code_of(text) == code


@pytest.mark.parametrize("name", DEFINES)
def test_every_definition_is_kept_with(name: str) -> None:
    text, names = DEFINES[name]
    assert defined(code_of(text)) - {"x"} == names - {"x"}


@pytest.mark.parametrize("name", TEXTS)
def test_the_complete_program_is_found_in(name: str) -> None:
    names: dict[str, Any] = {}
    exec(code_of(TEXTS[name].format(code=HELPER + MAIN)), names)
    assert names["f"](3) == 3


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


@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_every_example_row_can_be_fetched_and_run(name: str) -> None:
    servers = {"environment": environment_server(name), "agent": agent(SimpleAgent)}
    servers["model"] = Script([[says("```python\ndef f(x): return x + 1\n```")]]).model
    async with in_process_servers(servers) as stack:
        answer = await stack.transport.send("GET", "http://environment:1/examples", b"", {}, deadline_s())
        rollouts = await asyncio.gather(*[stack.run(row) for row in orjson.loads(answer.body)])
        if name == "mbpp":
            right = await stack.run({"test_list": ["assert f(1) == 2"], "responses_create_params": {"input": "?"}})
            assert (right["reward"], right["ending"], right["tests_passed"]) == (1.0, "passed", 1)
    assert [rollout["reward"] for rollout in rollouts] == [0.0] * 5
    assert all(rollout["sandbox"] and rollout["reason"] for rollout in rollouts)


async def test_without_isolation_the_server_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("isolation_modes", "sandbox"):
        monkeypatch.setattr(f"rollyard.services.sandbox.{module}.modes", lambda *_, **more: [])
    with pytest.raises(OperatorError, match="allow_unsandboxed: true"):
        async with in_process_servers({"environment": environment_server("mbpp")}):
            pass

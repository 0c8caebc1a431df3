"""The section of docs/agents.md about the policy of an episode, with real servers and a proxy on a port."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import orjson

from tests.support.commands import ng_run
from tests.support.doc_pages import blocks, commands, page, sections
from tests.support.processes import free_port
from tests.support.scripted_engine import completion, engine
from tests.support.waiting import deadline_s

KEY = "sk-key-of-the-trainer"
TOKEN = "0123456789abcdef"
STEP = {"id": "c1", "type": "function", "function": {"name": "step", "arguments": '{"actions": ["Right"]}'}}


async def sent(request: str) -> bytes:
    environ = {**os.environ, "ROLLYARD_TOKEN": TOKEN}
    process = await asyncio.create_subprocess_exec("bash", "-c", request, env=environ, stdout=asyncio.subprocess.PIPE)
    printed, _ = await asyncio.wait_for(process.communicate(), deadline_s())
    return printed


async def test_an_episode_is_played_through_the_proxy_and_the_key_is_in_no_file(tmp_path: Path) -> None:
    section = sections(page("agents.md"))["The policy of an episode"]
    agent_port = free_port()
    script = [completion({"content": None, "tool_calls": [STEP]}), completion({"content": "done"})]
    async with engine(*script) as proxy:
        at = re.sub(r".*:(\d+)/.*", r"\1", proxy.url)

        def local(text: str) -> str:
            return text.replace("30000", at).replace("9000", str(agent_port)).replace("the key", KEY)

        line = next(words for words in commands(section) if words[0] == "ng_run")
        async with ng_run(*map(local, line[1:]), "+colocate=true", cwd=tmp_path, env={"ROLLYARD_TOKEN": TOKEN}):
            request = local(next(block for block in blocks(section) if block.startswith("curl")))
            answer = await sent(request)
            refused = await sent(request.replace("/sessions/", "/other/"))
    rollout = orjson.loads(answer)
    assert (rollout["success"], rollout["policy_model_name"]) == (True, "student"), rollout
    assert proxy.paths[0] == "/sessions/7/v1/chat/completions"
    assert proxy.headers[0]["authorization"] == f"Bearer {KEY}"
    assert orjson.loads(refused)["status"] == 403
    for text in (answer, refused, *(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())):
        assert KEY.encode() not in text

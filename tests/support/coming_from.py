"""docs/coming-from.md: the two commands of each project, and a model for both."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from rollyard.records.types import Json
from tests.support.commands import command
from tests.support.doc_pages import blocks, commands, page, sections
from tests.support.scripted_engine import chunks
from tests.support.stacks import read_rows
from tests.support.waiting import deadline_s

PAGE = "coming-from.md"
MODEL = "http://127.0.0.1:8000"
"""Address of the model on the page."""
ROLLOUTS = "results/ours/rollouts.jsonl"
"""Where `ng_eval` puts its rollouts with the page's options."""
LIMIT_S = 3 * deadline_s()
"""For one command, which may start servers of both projects."""
Answer = Callable[[Json], str | Json]
"""The reply to a request: its text, or a message with tool calls."""


@dataclass(frozen=True)
class Pair:
    """The commands of a section, split like in a shell."""

    theirs: list[list[str]]
    ours: list[list[str]]


def pair(project: str, replaced: Mapping[str, str] | None = None) -> Pair:
    """`replaced`: text of the page -> what stands for it here, such as addresses. The section has to contain each."""
    [block] = blocks(_section(project, replaced or {}))
    first, theirs, ours = re.split(r"^# .*\n", block, flags=re.MULTILINE)
    assert not first and "\n# Rollyard\n" in block
    return Pair(*(commands(f"```bash\n{half}```\n") for half in (theirs, ours)))


def program(project: str, replaced: Mapping[str, str]) -> str:
    """The Python program of a section."""
    [found] = re.findall(r"^```python\n(.*?)^```", _section(project, replaced), re.DOTALL | re.MULTILINE)
    return str(found)


def _section(project: str, replaced: Mapping[str, str]) -> str:
    section = sections(page(PAGE))[project]
    for documented, here in replaced.items():
        assert documented in section, documented
        section = section.replace(documented, here)
    return section


async def run_lines(
    lines: list[list[str]], folder: Path, programs: Path, variables: Mapping[str, str] | None = None
) -> str:
    """Run commands one after another in `folder`; `programs` is where theirs and ours are installed. Returns what the
    last one has printed.
    """
    path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "OPENAI_API_KEY": "none"}
    printed = ""
    for name, *arguments in lines:
        given = {**path, **(variables or {})}
        done = await command(str(programs / name), *arguments, cwd=folder, env=given, deadline_s=LIMIT_S)
        assert done.status == 0, f"{name} {arguments}\n{done.out[-5000:]}\n{done.err[-5000:]}"
        printed = done.out
    return printed


def our_rewards(folder: Path) -> list[float]:
    return sorted(row["reward"] for row in read_rows(folder / ROLLOUTS))


def last_text(request: Json) -> str:
    """The text of the request's last message."""
    given = request["messages"] if "messages" in request else request["input"]
    content = given if isinstance(given, str) else given[-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def endpoint(answer: Answer) -> FastAPI:
    """OpenAI's two APIs with replies of `answer`."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: dict[str, Any]) -> Any:
        reply = answer(request)
        message = {"role": "assistant", **({"content": reply} if isinstance(reply, str) else reply)}
        if request.get("stream"):
            events = (
                each if isinstance(each, bytes) else b"data: %b\n\n" % orjson.dumps(each) for each in chunks(message)
            )
            return StreamingResponse(events, media_type="text/event-stream")
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": request["model"]}
        return {**head, "choices": [choice], "usage": usage}

    @app.post("/v1/responses")
    async def responses(request: dict[str, Any]) -> Json:
        content: list[Json] = [{"type": "output_text", "text": answer(request), "annotations": []}]
        message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
        head = {"id": "r", "created_at": 1, "model": request["model"], "object": "response", "status": "completed"}
        return {**head, "output": [message], "tools": [], "parallel_tool_calls": False, "tool_choice": "auto"}

    return app

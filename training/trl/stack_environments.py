"""StackEnvironments: `environment_factory` and reward of TRL's GRPOTrainer, on an environment of a running stack.

TRL generates, with its own engine, and calls the tools; the environment plays. For agents, use RolloutFunc.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.errors import Failure, OperatorError, RunError
from rollyard.records.io.json_values import items, mapping
from rollyard.records.rollouts.rewards import EXPECTED, is_reward, mask_of
from rollyard.records.types import Json
from rollyard.services.datasets.prompts import messages_of, text_of, valid_rows
from rollyard.services.http.client import SESSION_END_HEADER, SESSION_HEADER
from rollyard.services.http.response_failures import raise_for_status
from rollyard.services.http.session import Session
from rollyard.training.trl.stack_session import StackSession
from rollyard.training.trl.tool_methods import tool_method

FAILED = "The environment has failed. The episode is over."


class StackEnvironments:
    """Makes environments for a trainer: pass `factory` as `environment_factory` and `reward` as the reward function."""

    def __init__(self, session: StackSession, server: str, *, timeout_s: float = 300.0) -> None:
        """`server`: name of the resources server. `timeout_s`: timeout of each of its calls.

        Raises RunError if the stack has no such server, and OperatorError if its tools cannot be methods.
        """
        self._session, self._server, self._timeout_s = session, server, timeout_s
        tools = session.run(self._tools())
        methods = {str(tool.get("name")): tool_method(tool, StackEnvironment._call_tool) for tool in tools}
        self._type: type[StackEnvironment] = type("StackEnvironment", (StackEnvironment,), methods)

    def factory(self) -> StackEnvironment:
        """Return an environment, which TRL uses for one rollout after the other."""
        return self._type(self._session, self._server, self._timeout_s)

    def reward(self, *, completions: Sequence[Any], environments: Sequence[Any], **_: Any) -> list[float | None]:
        """Return the environment's verdict on each rollout; None, which TRL leaves out, if a server has failed."""
        pairs = zip(environments, completions, strict=True)
        return [environment._verdict_on(completion) for environment, completion in pairs]

    async def _tools(self) -> list[Json]:
        url, token = self._session.url(self._server), self._session.stack.token
        headers = {"authorization": f"Bearer {token}"} if token else {}
        transport = self._session.stack.clients.client.transport
        response = await transport.send("GET", f"{url}/tools", b"", headers, self._timeout_s)
        found = orjson.loads(raise_for_status(response, self._server).body)
        if not isinstance(found, list):
            raise RunError(f"{self._server} returned tools that are not a list: {str(found)[:100]}")
        return [mapping(tool) for tool in found]


class StackEnvironment:
    """One environment at a time, opened by `reset` with a row. Subclasses have a method for each tool.

    TRL offers all public methods except `reset` as tools, so that there are no others.
    """

    def __init__(self, session: StackSession, server: str, timeout_s: float) -> None:
        self._stack, self._server, self._timeout_s = session, server, timeout_s
        self._episode: Session | None = None
        self._row: Json = {}
        self._failure: Failure | None = None

    def reset(self, **columns: Any) -> str | None:
        """Open a session for the row in the column `row`, and return what the environment adds to the prompt.

        Raises OperatorError if there is no row. A failure ends the episode without a reward.
        """
        self._close()
        row = orjson.loads(columns["row"]) if isinstance(columns.get("row"), str) else columns.get("row")
        if not isinstance(row, dict) or not isinstance(row.get("responses_create_params"), dict):
            raise OperatorError("the dataset has no column `row`: make it with environment_rows(FILE)")
        self._row, self._failure = row, None
        headers = {SESSION_HEADER: uuid.uuid4().hex}
        self._episode = Session(self._stack.stack.clients.client, self._server, "", headers)
        seeded = self._post("/seed_session", row)
        added = [*items(mapping(seeded.get("additions")).get("input")), *items(seeded.get("observation"))]
        texts = [text_of(mapping(item).get("content")) for item in added]
        return "\n\n" + "\n\n".join(texts) if texts else None

    def _call_tool(self, name: str, arguments: Json) -> str:
        """Return the text for the model, also about its own mistakes. A failure ends the episode without a reward."""
        if self._failure is not None or self._episode is None:
            return FAILED
        given = {key: value for key, value in arguments.items() if value is not None}
        try:
            response = self._stack.run(self._episode.send(f"/{name}", orjson.dumps(given), self._timeout_s))
            if response.status in (400, 404, 405, 413, 422) and "problem+json" not in response.headers.get(
                "content-type", ""
            ):
                return response.body.decode("utf-8", "replace")  # another framework's answer to wrong arguments
            return raise_for_status(response, self._server).body.decode("utf-8", "replace")
        except Failure as failure:
            self._failure = failure
            return FAILED

    def _verdict_on(self, completion: Any) -> float | None:
        """Return the reward of the episode, and end it; None if a server has failed or masked it."""
        if self._failure is not None or self._episode is None:
            self._close()
            return None
        body = {**self._row, "response": {"id": "trl", "object": "response", "output": _output(completion)}}
        verdict = self._post("/verify", body, {SESSION_END_HEADER: "1"})
        self._episode = None
        if self._failure is not None:
            return None
        reward: Any = verdict.get("reward")
        if mask_of(verdict):
            return None
        if not is_reward(reward):
            raise RunError(f"{self._server} returned the reward {reward!r:.100}; {EXPECTED}")
        return float(reward)

    def _post(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> Json:
        assert self._episode is not None
        try:
            call = self._episode.post(path, orjson.dumps(body), self._timeout_s, headers)
            return mapping(orjson.loads(self._stack.run(call) or b"{}"))
        except Failure as failure:
            self._failure = failure
            return {}

    def _close(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None and episode.may_be_open:
            with contextlib.suppress(Failure):  # the server closes idle sessions itself
                self._stack.run(episode.post("/close", b"{}", self._timeout_s))


def environment_rows(path: str | Path, limit: int | None = None) -> Any:
    """Return the rows of a dataset file as a `train_dataset`: their messages as prompts, and the rows as JSON."""
    from datasets import Dataset

    rows = list(itertools.islice(valid_rows(Path(path)), limit))
    # TRL appends what `reset` returns to the last message.
    columns = {"prompt": [messages_of(row) for row in rows], "row": [orjson.dumps(row).decode() for row in rows]}
    return Dataset.from_dict(columns)


def _output(completion: Any) -> list[Json]:
    """Return TRL's completion, which is text or messages, as output items of a Response."""
    output: list[Json] = []
    messages = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else items(completion)
    for message in messages:
        if message.get("role") == "tool":
            call = {"call_id": str(message.get("tool_call_id") or "call"), "output": text_of(message.get("content"))}
            output.append({"type": "function_call_output", **call})
            continue
        if text := text_of(message.get("content")):
            content = [{"type": "output_text", "text": text, "annotations": []}]
            output.append({"type": "message", "role": "assistant", "status": "completed", "content": content})
        for call in items(message.get("tool_calls")):
            called = mapping(call.get("function"))
            arguments = called.get("arguments")
            text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
            call_id = str(call.get("id") or "call")
            output.append({"type": "function_call", "call_id": call_id, "name": called.get("name"), "arguments": text})
    return output

"""What is played in a simulation: an environment with state, a scripted policy, and a ledger of what has happened."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollyard.records.types import Json, Verdict
from rollyard.resources_servers.base import BadTask, Environment, tool
from rollyard.services.http.request import Message, Receive, Scope, Send, read_body
from tests.sim.clock import CLOCK
from tests.sim.loop import PROCESS

_TOLD = re.compile(r"total=(-?\d+) proof=(\w+)")
_ANSWER = re.compile(r"answer=(-?\d+) proof=(\w+)")
_EMPTY = b'{"choices": [{"message": {"role": "assistant", "content": ""}, "finish_reason": null}]'
_COUNTED = b', "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}}'
_BROKEN = (
    *(b"", b"null", b"<html>", b'{"choices": []}', b'{"choices": [{"message": {}}', _EMPTY + b"}"),
    *4 * (_EMPTY + _COUNTED,),
)
"""What a broken engine says in place of a turn."""


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass
class Ledger:
    """What the environments have done, whatever anyone was told about it."""

    verdicts: dict[str, set[float]] = field(default_factory=dict)
    """Proof of an episode -> the rewards that its environment gave."""
    open: Counter[str] = field(default_factory=Counter)
    """Process -> number of environments that were seeded and not closed."""
    late: list[str] = field(default_factory=list)
    """Calls of environments whose episode was over: it had its verdict, or was closed."""
    repeats: bool = False
    """Whether the network may deliver a request twice, which the product does not notice."""


LEDGER: contextvars.ContextVar[Ledger] = contextvars.ContextVar("ledger")
"""That of the simulation that the running code belongs to."""


def proof(secret: str, amounts: list[int]) -> str:
    return hashlib.sha256(f"{secret} {amounts}".encode()).hexdigest()[:12]


class Adding(Environment[Any]):
    """The model adds numbers until they sum to the target. Its answer names the total and this episode's proof."""

    is_open = False

    def __init__(self, task: Json, settings: Any) -> None:
        super().__init__(task, settings)
        if task["target"] < 0:
            raise BadTask(f"target is {task['target']}; expected 0 or more")

    async def seed(self) -> list[Json]:
        self.is_open = True
        self.secret = CLOCK.rng.randbytes(8).hex()
        self.amounts: list[int] = []
        self.acts: list[str] = []
        self.is_over = False
        LEDGER.get().open[PROCESS.get()] += 1
        return []

    @tool
    async def add(self, amount: int) -> str:
        """Add a number to the total."""
        await self._act(f"add {amount}")
        self.amounts.append(amount)
        return self._told()

    @tool
    async def undo(self) -> str:
        """Take back the last number."""
        await self._act("undo")
        self.amounts.pop()
        return self._told()

    async def verify(self, response: Any) -> Verdict:
        acts = [*self.acts]
        await self._act("verify")
        found = _ANSWER.search(response.text)
        own = proof(self.secret, self.amounts)
        target = int(self.task["target"])
        is_right = found is not None and int(found[1]) == target == sum(self.amounts) and found[2] == own
        LEDGER.get().verdicts.setdefault(own, set()).add(float(is_right))
        self.is_over = True  # an agent asks for one verdict, which ends the session
        name = PROCESS.get().partition("#")[0]
        return Verdict(reward=float(is_right), success=is_right, proof=own, acts=acts, played_by=name)

    async def close(self) -> None:
        self.is_over = True
        if self.is_open:  # a session may be closed before it is seeded
            LEDGER.get().open[PROCESS.get()] -= 1
        self.is_open = False

    async def _act(self, act: str) -> None:
        """Note a call. It takes a while, so that others meet it."""
        if self.is_over:
            LEDGER.get().late.append(f"{act} at {PROCESS.get()}")
        self.acts.append(act)
        await asyncio.sleep(CLOCK.rng.expovariate(50.0))

    def _told(self) -> str:
        return f"total={sum(self.amounts)} proof={proof(self.secret, self.amounts)}"


class Engine:
    """The scripted policy, an OpenAI-compatible endpoint that answers from the conversation alone."""

    def __init__(self, rng: random.Random, rate: float) -> None:
        """`rate`: share of the responses that are faulty, or so late that the client has asked again."""
        self._rng = rng
        self.rate = rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        status, answer = 200, b""
        draw = self._rng.random()
        if scope["path"] != "/v1/chat/completions":
            status, answer = 404, b'{"error": {"message": "no such path"}}'
        elif draw < self.rate / 4:
            status, answer = self._rng.choice([429, 500, 503]), b'{"error": {"message": "busy"}}'
        elif draw < self.rate / 2:
            answer = self._rng.choice(_BROKEN)
        else:
            await asyncio.sleep(self._rng.expovariate(5.0) * (100 if draw < self.rate else 1))
            answer = orjson.dumps(self._completion(orjson.loads(body)["messages"]))
        headers = [(b"content-type", b"application/json")]
        head: Message = {"type": "http.response.start", "status": status, "headers": headers}
        await send(head)
        await send({"type": "http.response.body", "body": answer})

    def _completion(self, messages: list[Any]) -> Json:
        asked = re.search(r"target (\d+)", str([one for one in messages if one["role"] == "user"]))
        seen = [found for one in messages if one["role"] == "tool" if (found := _TOLD.search(str(one["content"])))]
        assert asked is not None
        target, total = int(asked[1]), int(seen[-1][1]) if seen else 0
        message: Json
        if total == target:
            answer = total + (self._rng.random() < 0.3)
            message = {"role": "assistant", "content": f"answer={answer} proof={seen[-1][2] if seen else 'none'}"}
        else:
            amount = self._rng.randint(1, 3)
            name, arguments = ("undo", {}) if total > target else ("add", {"amount": amount})
            function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
            call = {"id": f"call_{self._rng.getrandbits(60):x}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if message["content"] else "tool_calls"}
        usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def check_row(row: Json, ledger: Ledger) -> None:
    """Raise Broken unless an environment gave this reward, and for the answer and the tool results that the row has."""
    items: list[Any] = row["response"]["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    results = [str(item.get("output")) for item in items if item["type"] == "function_call_output"]
    texts = [item["content"][0]["text"] for item in items if item["type"] == "message"]
    ended = _ANSWER.search(texts[-1]) if texts else None
    if row["reward"] not in ledger.verdicts.get(row["proof"], ()):
        raise Broken(f"no environment gave the reward {row['reward']} for the proof {row['proof']}")
    if row["played_by"] != row["environment"]:
        raise Broken(f"{row['played_by']} has played a task of {row['environment']}")
    if ended is None and row["finish_reason"] != "max_steps":
        raise Broken(f"a row has the reward {row['reward']}, and no answer: {items}")
    asked = [" ".join([call["name"], *map(str, orjson.loads(call["arguments"]).values())]) for call in calls]
    if asked != row["acts"] and not ledger.repeats:
        raise Broken(f"the model asked for {asked}, and the environment did {row['acts']}")
    if len(calls) != len(results):
        raise Broken(f"a row has {len(calls)} calls, and {len(results)} results")
    seen = [found for result in results if (found := _TOLD.search(result))]
    total, own = (int(seen[-1][1]), seen[-1][2]) if seen else (0, "none")
    is_right = ended is not None and bool(seen) and int(ended[1]) == row["target"] == total and ended[2] == own
    if bool(row["reward"]) != (is_right and own == row["proof"]):
        answer = ended[0] if ended else "no answer"
        raise Broken(f"the reward {row['reward']} does not belong to {answer!r} after the results {results}")

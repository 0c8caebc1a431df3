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
_VALID = re.compile(r'add {"amount":\d}|undo {}')
"""A call of the model that the environment can execute."""
_EMPTY = b'{"choices": [{"message": {"role": "assistant", "content": ""}, "finish_reason": null}]'
_COUNTED = b', "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}}'
_PART = b'{"choices": [{"message": {"role": "assistant", "content": "I "}, "finish_reason": "%b"}]%b'
_BROKEN = (
    *(b"", b"null", b"<html>", b'{"choices": []}', b'{"choices": [{"message": {}}', _EMPTY + b"}"),
    *4 * (_EMPTY + _COUNTED,),
    *(_PART % (reason, _COUNTED) for reason in (b"abort", b"tool_calls")),
    _PART % (b"stop", b', "error": {"message": "the engine has stopped"}}'),
)
"""What a broken engine says in place of a turn."""
MAX_TURNS = 12
"""Number of turns after which an agent ends an episode."""


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass
class Ledger:
    """What the environments have done, whatever anyone was told about it."""

    verdicts: dict[str, set[float]] = field(default_factory=dict)
    """Proof of an episode -> the rewards that its environment gave."""
    open: Counter[str] = field(default_factory=Counter)
    """Process -> number of environments that were seeded and not closed."""
    wrong: list[str] = field(default_factory=list)
    """What must not happen: calls of environments whose episode was over, since it had its verdict or was closed, or
    that had another call at the same time, and conversations that a model must not get."""
    said: dict[str, str] = field(default_factory=dict)
    """A call or text of the model -> the engine that it came from."""
    cut: set[str] = field(default_factory=set)
    """Calls that the model could not finish, with which its episode ends."""
    told: set[str] = field(default_factory=set)
    """Results of tools."""
    tasks: list[Json] = field(default_factory=list)
    restarts: bool = False
    """Whether model servers may restart under their address, and forget which engine an episode belongs to."""
    repeats: bool = False
    """Whether the network may deliver a request twice, which the product does not notice."""


LEDGER: contextvars.ContextVar[Ledger] = contextvars.ContextVar("ledger")
"""That of the simulation that the running code belongs to."""


def proof(secret: str, amounts: list[int]) -> str:
    return hashlib.sha256(f"{secret} {amounts}".encode()).hexdigest()[:12]


class Adding(Environment[Any]):
    """The model adds numbers until they sum to the target. Its answer names the total and this episode's proof."""

    is_open = is_over = is_busy = False

    def __init__(self, task: Json, settings: Any) -> None:
        super().__init__(task, settings)
        if task["target"] < 0:
            raise BadTask(f"target is {task['target']}; expected 0 or more")

    async def seed(self) -> list[Json]:
        self.is_open = True
        self.secret = CLOCK.rng.randbytes(8).hex()
        self.amounts: list[int] = []
        self.acts: list[str] = []
        LEDGER.get().open[PROCESS.get()] += 1
        await self._take_a_while("seed")
        return []

    @tool
    async def add(self, amount: int) -> str:
        """Add a number to the total."""
        await self._act(f'add {{"amount":{amount}}}')
        self.amounts.append(amount)
        return self._told()

    @tool
    async def undo(self) -> str:
        """Take back the last number."""
        await self._act("undo {}")
        del self.amounts[-1:]
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
        if self.is_over:
            LEDGER.get().wrong.append(f"{act} at {PROCESS.get()} after the end of its episode")
        self.acts.append(act)
        await self._take_a_while(act)
        if self.is_over:
            LEDGER.get().wrong.append(f"{act} at {PROCESS.get()} and the end of its episode at the same time")

    async def _take_a_while(self, act: str) -> None:
        """Let others meet this call."""
        if self.is_busy:
            LEDGER.get().wrong.append(f"{act} at {PROCESS.get()} and another call of its episode at the same time")
        self.is_busy = True
        try:
            await asyncio.sleep(CLOCK.rng.expovariate(50.0))
        finally:
            self.is_busy = False

    def _told(self) -> str:
        told = f"total={sum(self.amounts)} proof={proof(self.secret, self.amounts)}"
        LEDGER.get().told.add(told)
        return told


class Engine:
    """The scripted policy, an OpenAI-compatible endpoint that answers from the conversation alone.

    It sometimes calls two tools at once, one that does not exist, one with invalid arguments, or none it can finish.
    """

    def __init__(self, name: str, rng: random.Random, rate: float) -> None:
        """`rate`: share of the responses that are faulty, or so late that the client has asked again."""
        self.name = name
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
        self._check(messages)
        asked = re.search(r"target (\d+)", str([one for one in messages if one["role"] == "user"]))
        seen = [found for one in messages if one["role"] == "tool" if (found := _TOLD.search(str(one["content"])))]
        assert asked is not None
        target, total = int(asked[1]), int(seen[-1][1]) if seen else 0
        message: Json
        is_cut = self._rng.random() < 0.01
        if total == target:
            answer = total + (self._rng.random() < 0.3)
            message = {"role": "assistant", "content": f"answer={answer} proof={seen[-1][2] if seen else 'none'}"}
            self._say(message["content"])
        else:
            wanted = [self._call(target - total, is_cut) for _ in range(1 + (self._rng.random() < 0.1))]
            message = {"role": "assistant", "content": None, "tool_calls": wanted}
        reason = "length" if is_cut else "stop" if message["content"] else "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}

    def _call(self, missing: int, is_cut: bool) -> Json:
        name, arguments = ("undo", "{}") if missing < 0 else ("add", f'{{"amount":{self._rng.randint(1, 3)}}}')
        draw = self._rng.random()
        if draw < 0.02:
            name = "multiply"
        elif draw < 0.06:
            arguments = self._rng.choice(['{"amount":"many"}', '{"amount":', "[1]"])
        call_id = f"call_{self._rng.getrandbits(60):x}"
        self._say(text := f"{call_id} {name} {arguments}")
        if is_cut:
            LEDGER.get().cut.add(text)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _say(self, text: str) -> None:
        LEDGER.get().said[text] = self.name

    def _check(self, messages: list[Any]) -> None:
        """Note a conversation in which a call has no result or one that no environment gave, or ended too early."""
        ledger = LEDGER.get()
        calls = [call for one in messages for call in one.get("tool_calls") or ()]
        results = [one for one in messages if one["role"] == "tool"]
        is_whole = [call["id"] for call in calls] == [one["tool_call_id"] for one in results]
        for call, result in zip(calls, results, strict=False):
            text = "{id} {name} {arguments}".format(**call, **call["function"])
            is_told = _VALID.search(text) is None or result["content"] in ledger.told
            is_whole &= is_told and text not in ledger.cut
        if not is_whole:
            ledger.wrong.append(f"a model was asked with the calls {calls} and the results {results}")


async def stranger(scope: Scope, receive: Receive, send: Send) -> None:
    """A server that is not of this run, and whose responses look as if it were."""
    part = {"type": "output_text", "text": "answer=1 proof=1", "annotations": []}
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    answer = {"id": "r", "output": [message], "reward": 1.0, "proof": "1", "acts": [], "played_by": "stranger"}
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": orjson.dumps(answer)})


def check_row(row: Json, ledger: Ledger) -> None:
    """Raise Broken unless the row tells what has happened: what the model said, what the environment did and answered,
    and the reward that it gave for this.
    """
    items: list[Any] = row["response"]["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    results = [item for item in items if item["type"] == "function_call_output"]
    texts = [item["content"][0]["text"] for item in items if item["type"] == "message"]
    ended = _ANSWER.search(texts[-1]) if texts else None
    task, params = ledger.tasks[row["_ng_task_index"]], row["responses_create_params"]
    if (row["target"], params["input"]) != (task["target"], task["responses_create_params"]["input"]):
        raise Broken(f"a row of the task {task} has the target {row['target']} and the input {params['input']}")
    if row["reward"] not in ledger.verdicts.get(row["proof"], ()):
        raise Broken(f"no environment gave the reward {row['reward']} for the proof {row['proof']}")
    if row["played_by"] != task["environment"]:
        raise Broken(f"{row['played_by']} has played a task of {task['environment']}")
    said = {f"{call['call_id']} {call['name']} {call['arguments']}": call for call in calls}
    if unsaid := {*said, *texts} - ledger.said.keys():
        raise Broken(f"a row has turns that the model did not say: {unsaid}")
    is_bound = not ledger.restarts and not ledger.repeats  # a turn that was asked for twice may come from two engines
    if is_bound and len({ledger.said[text] for text in (*said, *texts)}) > 1:
        raise Broken(f"a row has turns of several engines: {[*said, *texts]}")
    is_cut = row["finish_reason"] == "length"
    if ended is None and not is_cut and row["finish_reason"] != "max_steps":
        raise Broken(f"a row has the reward {row['reward']}, and no answer: {items}")
    ids = [call["call_id"] for call in calls]
    if ids[: len(results) if is_cut else None] != [item["call_id"] for item in results]:
        raise Broken(f"a row has the calls {ids}, and the results {results}")
    outputs = [str(item["output"]) for item in results]
    asked = [_VALID.search(text) for text in said][: len(results)]
    if any((call is not None) != (output in ledger.told) for call, output in zip(asked, outputs, strict=True)):
        raise Broken(f"the model asked for {[*said]}, and has read {outputs}")
    acts, wanted = iter(row["acts"]), [call[0] for call in asked if call is not None]
    if not all(call in acts for call in wanted) or (len(row["acts"]) > len(wanted) and not ledger.repeats):
        raise Broken(f"the model asked for {wanted}, and the environment did {row['acts']}")
    timings, usage = row["timings"], row["response"]["usage"]
    turns = timings["model_calls"]
    if turns > MAX_TURNS or usage["total_tokens"] != 10 * turns or timings["tool_calls"] != len(results):
        raise Broken(f"a row counts {timings} and {usage} for {items}")
    if row["truncated"] != (row["finish_reason"] in ("max_steps", "length")):
        raise Broken(f"a row that ended with {row['finish_reason']} has truncated {row['truncated']}")
    seen = [found for output in outputs if (found := _TOLD.search(output))]
    total, own = (int(seen[-1][1]), seen[-1][2]) if seen else (0, "none")
    is_right = ended is not None and bool(seen) and int(ended[1]) == row["target"] == total and ended[2] == own
    if bool(row["reward"]) != (is_right and own == row["proof"]):
        answer = ended[0] if ended else "no answer"
        raise Broken(f"the reward {row['reward']} does not belong to {answer!r} after the results {outputs}")

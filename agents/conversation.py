"""Conversation: the request to the model, which grows with every turn."""

from __future__ import annotations

from typing import cast

import orjson

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.responses.tool_calls import offered, sendable_items
from rollyard.services.rollout_types import Response, ResponseItem
from rollyard.services.types import TOKEN_FIELDS, Json


class Conversation:
    """The request that grows by a turn at a time. Items stay plain JSON objects: they are validated nowhere."""

    def __init__(self, params: Json) -> None:
        start = params.get("input")
        self._sent: list[ResponseItem] = []
        self._tools = offered(params.get("tools"))
        self.params = params
        self._changed = False
        self.start: list[ResponseItem] = (
            [{"role": "user", "content": start}] if isinstance(start, str) else list(start or [])
        )
        self.output: list[ResponseItem] = []
        self.usage: Json = {}
        self.last: Response = {"output": []}

    def open(self, additions: object, observed: list[ResponseItem]) -> None:
        """Take over what the environment adds to a row that leaves it open, and after the row's input what it observed.

        Raises Failure bad_task where there is nothing to ask the model then.
        """
        own = bool(self.start)
        added: Json = additions if isinstance(additions, dict) else {}
        if added.get("tools") and self.params.get("tools") is None:
            self.params = {**self.params, "tools": added["tools"]}
            self._tools = offered(added["tools"])
        if (before := added.get("input") or []) or observed:
            self.start = [*before, *self.start, *observed]
            self._changed = True
        if not own and all(item.get("role") in ("system", "developer") for item in self.start):
            detail = (
                "the row has no responses_create_params.input, and the environment adds none: expected an `input`, a "
                "text or a list, or a user_template of the environment that makes it from the row's fields"
            )
            raise Failure(FailureKind.BAD_TASK, detail)

    @property
    def asked(self) -> Json:
        """`responses_create_params` as the model saw them at first."""
        return {**self.params, "input": self.start} if self._changed else self.params

    def request(self) -> bytes:
        """The next model call's body. Raises Failure where it holds what no JSON can."""
        try:
            return orjson.dumps({**self.params, "input": self.start + self._sent})
        except TypeError as error:
            detail = f"the conversation cannot be sent ({error})"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail) from error

    def add(self, response: Response) -> None:
        """Take over a model's answer: on the record as the model wrote it, for the model in a form that can be sent."""
        self.output.extend(response["output"])
        # Only the last turn's tokens are needed to build on; all of them would make each request as long as all before.
        self._sent = [without_tokens(item) if "generation_token_ids" in item else item for item in self._sent]
        self._sent.extend(sendable_items(response["output"], self._tools))
        self.usage = _summed(self.usage, response.get("usage"))
        self.last = response

    def answer(self, item: ResponseItem) -> None:
        """Take over the world's answer to a tool call."""
        self.output.append(item)
        self._sent.append(item)


def without_tokens(item: ResponseItem) -> ResponseItem:
    """An output item without the token ids and log-probabilities of the model call that made it."""
    kept = {key: value for key, value in item.items() if key not in TOKEN_FIELDS}
    return cast(ResponseItem, kept)


def _summed(total: Json, usage: object) -> Json:
    """Usage of two calls together: numbers add up, nested details likewise; what is neither is left out."""
    summed = dict(total)
    for key, value in usage.items() if isinstance(usage, dict) else ():
        before = summed.get(key)
        if isinstance(value, dict):
            summed[key] = _summed(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, int | float):
            summed[key] = (before if isinstance(before, int | float) else 0) + value
    return summed

"""Builds the requests to the model, which grow with every turn."""

from __future__ import annotations

from typing import Any, cast

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.json_values import json_kind
from rollyard.records.rollout_types import Response, ResponseItem
from rollyard.records.types import TOKEN_FIELDS, Json
from rollyard.services.responses.tool_calls import offered, sendable_items


class Conversation:
    """The messages and tools of one episode. Items are plain JSON objects, which are not validated."""

    def __init__(self, params: Json, row: Json | None = None) -> None:
        """`row` is the dataset row that contains `params`, for messages about it."""
        start = params.get("input")
        self._sent: list[ResponseItem] = []
        self._tools = offered(params.get("tools"))
        self.params = params
        self._row = {} if row is None else row
        self._changed = False
        self.start: list[ResponseItem] = (
            [{"role": "user", "content": start}] if isinstance(start, str) else list(start or [])
        )
        self.output: list[ResponseItem] = []
        self.usage: Json = {}
        self.last: Response = {"output": []}

    def open(self, additions: object, observed: list[ResponseItem]) -> None:
        """Prepend the environment's input to the row's, append its observation, and use its tools if the row has none.

        Raises Failure bad_task if there is still no message for the model to respond to.
        """
        has_input = bool(self.start)
        added: Json = additions if isinstance(additions, dict) else {}
        if added.get("tools") and self.params.get("tools") is None:
            self.params = {**self.params, "tools": added["tools"]}
            self._tools = offered(added["tools"])
        if (before := added.get("input") or []) or observed:
            self.start = [*before, *self.start, *observed]
            self._changed = True
        if not has_input and all(item.get("role") in ("system", "developer") for item in self.start):
            raise missing_input(self._row)

    def offer(self, tools: list[Json]) -> None:
        """Add tools to those of the request, except those whose names it already has."""
        given = self.params.get("tools") or []
        if not isinstance(given, list):
            return  # the model server rejects the request
        added = {tool["name"]: tool for tool in tools if tool["name"] not in self._tools}
        self.params = {**self.params, "tools": [*given, *added.values()]}
        self._tools = offered(self.params["tools"])

    @property
    def create_params(self) -> Json:
        return {**self.params, "input": self.start} if self._changed else self.params

    def request(self) -> bytes:
        """Return the body of the next model call. Raises Failure malformed_answer if it cannot be encoded as JSON."""
        try:
            return orjson.dumps({**self.params, "input": self.start + self._sent})
        except TypeError as error:
            detail = f"the conversation cannot be encoded as JSON ({error})"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail) from error

    def add(self, response: Response) -> None:
        """Append a model response to the record and, in a format that every engine accepts, to the next request."""
        self.output.extend(response["output"])
        # The next prompt needs only the last turn's tokens; keeping them all would make requests grow quadratically.
        self._sent = [without_tokens(item) if "generation_token_ids" in item else item for item in self._sent]
        self._sent.extend(sendable_items(response["output"], self._tools))
        self.usage = _sum_usage(self.usage, response.get("usage"))
        self.last = response

    def answer(self, item: ResponseItem) -> None:
        self.output.append(item)
        self._sent.append(item)


def without_tokens(item: ResponseItem) -> ResponseItem:
    """Return the output item without the token ids and log-probabilities of its model call."""
    kept = {key: value for key, value in item.items() if key not in TOKEN_FIELDS}
    return cast(ResponseItem, kept)


def _sum_usage(total: Json, usage: object) -> Json:
    """Add up the usage of two calls, including nested details. Values that are not numbers are dropped."""
    total_usage = dict(total)
    for key, value in usage.items() if isinstance(usage, dict) else ():
        before = total_usage.get(key)
        if isinstance(value, dict):
            total_usage[key] = _sum_usage(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, int | float):
            total_usage[key] = (before if isinstance(before, int | float) else 0) + value
    return total_usage


_PARAMS = "responses_create_params"


def create_params(row: Json) -> Json:
    """Return the row's parameters. Raises Failure bad_task if they are invalid.

    They may have no `input`, because the environment can add it.
    """
    if (params := row.get(_PARAMS)) is None:
        return {}
    if not isinstance(params, dict):
        raise _bad(_PARAMS, params, "an object whose `input` is a string or a list")
    given = params.get("input")
    if not isinstance(given, str | list | None):
        raise _bad(f"{_PARAMS}.input", given, "a string or a list of items")
    _check_objects(f"{_PARAMS}.input", given if isinstance(given, list) else None)
    if not isinstance(tools := params.get("tools"), list | None):
        raise _bad(f"{_PARAMS}.tools", tools, "a list of tools")
    _check_objects(f"{_PARAMS}.tools", tools)
    return params


def missing_input(row: Json) -> Failure:
    """Return the failure for a row to which the environment added no message that the model could respond to."""
    keys = ", ".join(sorted(row)[:10]) or "nothing"
    detail = (
        f"the row has no {_PARAMS}.input, and the environment does not add any (the row has {keys}); expected an "
        "`input` (a string or a list), or a user_template in the environment that builds it from the row's fields"
    )
    if row.keys() == {"idx"}:
        detail += ". A row with idx alone needs an environment that serves a dataset"
    return Failure(FailureKind.BAD_TASK, detail)


def _check_objects(field: str, items: list[Any] | None) -> None:
    for index, item in enumerate(items or ()):
        if not isinstance(item, dict):
            raise _bad(f"{field}[{index}]", item, "an object")


def _bad(field: str, found: Any, expected: str) -> Failure:
    return Failure(FailureKind.BAD_TASK, f"the row's {field} is {json_kind(found)}; expected {expected}")

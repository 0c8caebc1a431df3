"""The wire between collector and agent: encodes, parses and checks the body of `/run`, and cuts unfinished episodes.

`parse_row` refuses a body without a finite reward, `encode_line` removes credentials from the line to be stored, and
`shortened` fits an unfinished conversation into a limit of bytes.

The large `response` of the body is stored verbatim: the agent puts it last and sends its length in a header. The
collector then parses the body in two parts: the short part becomes a dict, to which it adds its own keys; the response
is only checked to be a JSON object on one line. The row is written from the dict, so it contains each key once, even if
the agent sent duplicates. For other programs the body is ordinary JSON, and a body without the header is parsed in one
piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from rollyard.records.activity import Omitted
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.nemo_gym import kind_of
from rollyard.records.rewards import check_reward, tidy
from rollyard.records.rollout_keys import PROMPT
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.types import TOKEN_FIELDS, Json, items, mapping
from rollyard.services.http.request import HttpResponse
from rollyard.services.server.settings import is_secret, redacted

RESPONSE_BYTES_HEADER = "x-rollyard-response-bytes"
"""Header with the length in bytes of the response, which ends just before the body's closing brace."""
REPLAY_HEADER = "x-rollyard-replay"
"""Header of a `/run` request whose body is a stored rollout: the agent asks for a verdict on its response instead of
playing the task. The answer to such a request has the header as well, because other agents would call their model."""
_MEMBER = b'"response":'
_REASONS = ("error", "failure_reason", "_ng_failure_reason", "_ng_failure_message", "_ng_failure_judge_error")
"""Where servers of NeMo Gym explain a failure."""
_MAX_DIGITS = 10
"""Maximum number of digits in the header's value."""


def encode_response(response: Mapping[str, Any]) -> bytes:
    """Return `response` as JSON. Raises TypeError if it is nested too deeply to be part of a row."""
    return orjson.dumps({"response": response})[len(_MEMBER) + 1 : -1]


def encode_row(row: Mapping[str, Any], response: bytes) -> bytes:
    """Return `row` as JSON with `response` as its last member. Raises TypeError if a value is not valid in JSON."""
    complete = dict(row)
    complete.pop("response", None)  # so that it becomes the last key
    complete["response"] = orjson.Fragment(response)
    return orjson.dumps(complete)


def decode_row(body: bytes, response_bytes: str | None) -> Any:
    """Parse a body. `response` becomes an `orjson.Fragment` if the header contains its correct length."""
    row = None if response_bytes is None else _parse_in_two_parts(body, response_bytes)
    return orjson.loads(body) if row is None else row


def _parse_in_two_parts(body: bytes, response_bytes: str) -> Json | None:
    """Return the row, or None if the body does not match the header and must be parsed in one piece."""
    if not (response_bytes.isascii() and response_bytes.isdigit() and len(response_bytes) <= _MAX_DIGITS):
        return None
    start = len(body) - 1 - int(response_bytes)
    if start < len(_MEMBER) or not body.startswith(_MEMBER, start - len(_MEMBER)) or not body.endswith(b"}"):
        return None
    response = body[start:-1]
    if b"\n" in response:
        return None
    try:
        row = orjson.loads(body[:start] + b"null}")
        checked = orjson.loads(response)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(row, dict) or not isinstance(checked, dict) or row.get("response", checked) is not None:
        return None
    row["response"] = orjson.Fragment(response)
    return row


def parse_row(response: HttpResponse, agent: str) -> RolloutRow:
    """Parse the response. Raises Failure malformed_answer unless it is an object with a finite reward."""
    try:
        row = decode_row(response.body, response.headers.get(RESPONSE_BYTES_HEADER))
    except orjson.JSONDecodeError as error:
        detail = f"/run did not return JSON ({error}): {response.body[:200]!r}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent) from error
    if not isinstance(row, dict):
        detail = f"/run returned a JSON {type(row).__name__}; expected an object"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent)
    _check_failure_class(row, agent)
    if "episode_id" in row:
        row = _episode_result(row, agent)
        _check_failure_class(row, agent)
    check_reward(row, "/run", agent)
    row["reward"] = tidy(row["reward"])
    return cast(RolloutRow, row)


def without_keys(body: bytes) -> bytes:
    """Return the body of a `/run` request without credentials: those of the episode's policy, and in parameters such as
    `extra_headers`. The task itself is unchanged.
    """
    row = orjson.loads(body)
    shown = {key: redacted(value, key) if key.startswith("policy_") else value for key, value in row.items()}
    if isinstance(params := row.get("responses_create_params"), dict):
        shown["responses_create_params"] = {
            key: value if key in PROMPT else redacted(value, key) for key, value in params.items()
        }
    return body if shown == row else orjson.dumps(shown)


def _without_keys_in_params(row: RolloutRow) -> RolloutRow:
    params = cast(Json, row.get("responses_create_params"))
    if not isinstance(params, dict):
        return row
    carriers = [
        name
        for name in params
        if name.startswith("extra_") or name.endswith("headers") or (name not in PROMPT and is_secret(name))
    ]
    if not carriers:
        return row
    shown = {**params, **{key: redacted(params[key], key) for key in carriers}}
    return cast(RolloutRow, {**row, "responses_create_params": shown})


def _episode_result(answer: Json, agent: str) -> Json:
    """Return the result in the answer of an environment server. Raises the Failure that it reports instead."""
    failure = answer.get("failure")
    if isinstance(failure, dict):
        kind = kind_of(failure.get("failure_kind")) or FailureKind.SERVER_ERROR
        stage = f" in the stage {failure['stage']}" if failure.get("stage") else ""
        detail = f"/run reported a failure{stage}: {failure.get('failure_reason')!s:.2000}"
        raise _reported(kind, detail, agent, terminal=bool(failure.get("terminal")))
    if failure is not None:
        detail = f"/run reported the failure {failure!r:.500}; expected an object"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent)
    result = answer.get("result")
    return result if isinstance(result, dict) and "reward" not in answer else answer


def _reported(kind: FailureKind, detail: str, agent: str, *, terminal: bool) -> Failure:
    """Return the failure that `agent` reports. `terminal`: its own kind is kept if that is never retried either."""
    # What is unreachable is behind the agent, which has answered.
    failure = Failure(kind, detail, server="" if kind is FailureKind.UNREACHABLE else agent)
    return Failure(FailureKind.BAD_TASK, detail, server=agent) if terminal and not failure.terminal else failure


def _check_failure_class(row: dict[str, object], agent: str) -> None:
    """Raise the Failure that an agent of NeMo Gym reports with status 200; a terminal one is final."""
    failure_class = row.get("_ng_failure_class")
    if failure_class is None and not row.get("_ng_no_persist"):
        return
    named = row.get("failure_kind") or failure_class
    kind = kind_of(named) or FailureKind.SERVER_ERROR
    reported = "no result to keep" if named is None else f"the failure class {named!r:.100}"
    message = next((text for name in _REASONS if (text := row.get(name))), "")
    detail = f"/run reported {reported}" + (f": {message!s:.500}" if message else "")
    raise _reported(kind, detail, agent, terminal=bool(row.get("_ng_failure_terminal")))


def encode_line(row: RolloutRow, agent: str) -> bytes:
    """Encode the row without keys in its parameters. Raises Failure if it is nested deeper than orjson writes."""
    try:
        return orjson.dumps(_without_keys_in_params(row))
    except TypeError as error:
        detail = f"/run's response cannot be stored ({error})"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent) from error


_TEXT_SHARE = 16
"""A text longer than this fraction of the limit is shortened."""
_LEAST_TEXT = 200
_FIELD_SHARE = 4
"""The fields of the row may take this fraction of the limit."""
_FIXED_BYTES = 600
"""Bytes of the record around the row."""
_UNREADABLE = b'{"type":"unreadable"}'
"""Replaces an item that cannot be encoded, because it is nested too deeply."""


def shortened(fields: Json, start: Sequence[Any], output: Sequence[Any], limit: int) -> tuple[Json, Omitted | None]:
    """Return the row of `fields`, `start` and `output` in at most `limit` bytes, and what it lacks (None: nothing)."""
    limit = max(0, limit - _FIXED_BYTES)
    encoded = [encoded_item(item) for item in (*start, *output)]
    fields_encoded = _encoded_fields(fields)
    if _size(encoded) + _size(fields_encoded.values()) <= limit:
        return _row(fields_encoded, encoded, len(start)), None
    tokens = texts = 0
    conversation: list[Any] = []
    for item in (*start, *output):
        without = _without_tokens(item)
        tokens += without is not item
        short, cut = _cut(without, max(_LEAST_TEXT, limit // _TEXT_SHARE))
        texts += cut
        conversation.append(short)
    short_fields, cut = _cut(fields, max(_LEAST_TEXT, limit // _TEXT_SHARE))
    kept, removed = _fitting_fields(_encoded_fields(short_fields), limit // _FIELD_SHARE)
    encoded = [encoded_item(item) for item in conversation]
    head, tail = _ends(encoded, limit - _size(kept.values()))
    gap = len(encoded) - head - tail
    rest = encoded[:head] + encoded[len(encoded) - tail :]
    first_output = min(len(start), head) if len(start) < len(encoded) - tail else len(start) - gap
    omitted = Omitted(items=gap, after=head, texts=texts + cut, tokens=tokens, fields=removed)
    return _row(kept, rest, first_output), omitted


def _row(fields: dict[tuple[str, ...], bytes], encoded: Sequence[bytes], first_output: int) -> Json:
    row: Json = {}
    params: Json = {}
    for name, value in fields.items():
        (row if len(name) == 1 else params)[name[-1]] = orjson.loads(value)
    decoded = [orjson.loads(item) for item in encoded]
    params["input"] = decoded[:first_output]
    return {**row, "responses_create_params": params, "response": {"output": decoded[first_output:]}}


def _encoded_fields(fields: Json) -> dict[tuple[str, ...], bytes]:
    """Return the encoded value of each field, and of each create parameter, by its path."""
    params = mapping(fields.get("responses_create_params"))
    found: dict[tuple[str, ...], Any] = {
        (name,): value for name, value in fields.items() if name not in ("responses_create_params", "response")
    }
    found |= {("responses_create_params", name): value for name, value in params.items() if name != "input"}
    return {name: encoded_item(value) for name, value in found.items()}


def _fitting_fields(fields: dict[tuple[str, ...], bytes], limit: int) -> tuple[dict[tuple[str, ...], bytes], list[str]]:
    """Remove the largest fields until the others fit; return them, and the names of the removed ones."""
    kept, removed = dict(fields), list[str]()
    size = _size(kept.values()) + sum(len(name[-1]) + 4 for name in kept)
    for name in sorted(kept, key=lambda name: -len(kept[name])):
        if size <= limit:
            break
        size -= len(kept.pop(name)) + len(name[-1]) + 4
        removed.append(".".join(name)[:100])
    return kept, removed[:50]


def _ends(encoded: Sequence[bytes], limit: int) -> tuple[int, int]:
    """Return how many items of the beginning and of the end fit. The end gets what the beginning does not need."""
    head, used = 0, 0
    while head < len(encoded) and used + len(encoded[head]) + 1 <= limit // 2:
        used += len(encoded[head]) + 1
        head += 1
    tail = 0
    while tail < len(encoded) - head and used + len(encoded[-1 - tail]) + 1 <= limit:
        used += len(encoded[-1 - tail]) + 1
        tail += 1
    return head, tail


def _without_tokens(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    content = items(item.get("content"))
    if not any(name in item for name in TOKEN_FIELDS) and not any("logprobs" in mapping(part) for part in content):
        return item
    kept = {name: value for name, value in item.items() if name not in TOKEN_FIELDS}
    if content:
        kept["content"] = [
            {name: value for name, value in part.items() if name != "logprobs"} if isinstance(part, dict) else part
            for part in content
        ]
    return kept


def _cut(value: Any, longest: int) -> tuple[Any, int]:
    """Shorten all texts within `value` to about `longest` characters; return it, and the number of shortened texts."""
    if isinstance(value, str):
        return (value, 0) if len(value) <= longest else (_middle_removed(value, longest), 1)
    if isinstance(value, list):
        parts = [_cut(one, longest) for one in value]
        return [part for part, _ in parts], sum(cut for _, cut in parts)
    if isinstance(value, dict):
        pairs = {name: _cut(one, longest) for name, one in value.items()}
        return {name: part for name, (part, _) in pairs.items()}, sum(cut for _, cut in pairs.values())
    return value, 0


def _middle_removed(text: str, longest: int) -> str:
    half = longest // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters omitted ...]\n{text[-half:]}"


def encoded_item(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return _UNREADABLE


def _size(encoded: Any) -> int:
    return sum(len(one) + 1 for one in encoded)

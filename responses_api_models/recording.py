"""Records the model calls of an episode whose agent is a program that knows nothing of Rollyard.

The program speaks the dialect of its choice (Chat Completions, Responses, Anthropic's Messages). It keeps its
conversations itself, as messages without tokens, and does with them what it likes: it calls the model in parallel,
starts conversations for sub-agents, cuts or rewrites its history. Every call becomes a Responses request. If its
messages begin with those of a recorded call and the answer to it, the call continues that one: it gets its tokens, and
the model server sends its prompt as exactly these ids, or records where the two differ (token_history.py). Any other
call begins a conversation. Nothing is tokenized again in silence, because what is recorded of a call are the ids that
the engine received and sampled for it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import TOKEN_FIELDS, Json, items, mapping
from rollyard.responses_api_models.anthropic_api import COUNT_TOKENS, MESSAGES, Answer, AnthropicApi
from rollyard.responses_api_models.conversion import (
    chat_request_to_responses,
    check_chat_request,
    check_depth,
    check_responses_request,
    response_to_chat,
    unconvertible,
)
from rollyard.responses_api_models.upstream.sse import chat_chunks
from rollyard.services.http.client import EPISODE_HEADER
from rollyard.services.http.request import Handler, RawRequest, RawResponse
from rollyard.services.responses import api_shapes, stream_events
from rollyard.services.responses.recorded_episode import (
    CLOSE,
    OPEN,
    OUTPUT_TOKENS_HEADER,
    RECORDED,
    RecordedConversation,
    RecordedEpisode,
    RecordingRequest,
)
from rollyard.services.responses.response_validity import (
    check_response,
    message_text,
    read_arguments,
    read_items,
    read_name,
    sendable_arguments,
    sendable_name,
    why_unreadable,
)
from rollyard.services.responses.stream_events import SSE, STREAM_HEADERS
from rollyard.services.server.openapi import Shape


class Recorder:
    """The recordings of a model server. One is kept until its agent closes it, or until its time is over."""

    def __init__(
        self,
        respond: Callable[[Json, RawRequest], Awaitable[Answer]],
        count: Callable[[Json, RawRequest], Awaitable[int]],
        *,
        passes_stop: bool,
    ) -> None:
        """`respond`: the model server's answer to a Responses request; the others are those of AnthropicApi."""
        self._respond = respond
        self._recordings: dict[str, Recording] = {}
        anthropic = AnthropicApi(self._responses, self._stream, count, passes_stop=passes_stop)
        self.routes: dict[str, tuple[Handler, Shape]] = {
            OPEN: (self._open, Shape(RecordingRequest)),
            CLOSE: (self._close, Shape(Json, RecordedEpisode)),
            f"{RECORDED}/v1/responses": (self._serve_responses, api_shapes.RESPONSES),
            f"{RECORDED}/v1/chat/completions": (self._serve_chat, api_shapes.CHAT),
            f"{RECORDED}{MESSAGES}": (anthropic.create, api_shapes.MESSAGES),
            f"{RECORDED}{COUNT_TOKENS}": (anthropic.count_tokens, api_shapes.TOKEN_COUNT),
        }

    async def _open(self, call: RawRequest) -> bytes:
        """Begin the recording of the episode that the call names."""
        request = call.record(RecordingRequest)
        now = time.monotonic()
        for episode, recording in list(self._recordings.items()):
            if recording.until < now:  # its agent died
                del self._recordings[episode]
        self._recordings[_episode(call)] = Recording(request.params, now + request.keep_s)
        return b"{}"

    async def _close(self, call: RawRequest) -> bytes:
        """Return what was recorded of the episode, and forget it. Later calls of the episode are refused."""
        recording = self._find(call)
        del self._recordings[_episode(call)]
        return orjson.dumps(recording.closed().model_dump())

    def _find(self, call: RawRequest) -> Recording:
        if (found := self._recordings.get(_episode(call))) is None:
            detail = "the model calls of this episode are not recorded: it has ended, or the model server restarted"
            raise Failure(FailureKind.SESSION_LOST, detail)
        return found

    async def _serve_responses(self, call: RawRequest) -> RawResponse:
        """Create a Response of a recorded episode."""
        request = call.json()
        check_responses_request(request)
        return await (self._stream if request.get("stream") else self._responses)(request, call)

    async def _serve_chat(self, call: RawRequest) -> RawResponse:
        """Create a chat completion of a recorded episode."""
        request = call.json()
        check_chat_request(request)
        answer = await self._responses(chat_request_to_responses(request), call)
        completion = response_to_chat(orjson.loads(answer.body))
        if not request.get("stream"):
            return RawResponse(orjson.dumps(completion), headers=answer.headers)
        with_usage = bool(mapping(request.get("stream_options")).get("include_usage"))
        return _streamed(chat_chunks(completion, with_usage), answer)

    async def _stream(self, request: Json, call: RawRequest) -> RawResponse:
        # Not before the response is complete: only then are its tokens recorded.
        answer = await self._responses(request, call)
        return _streamed(stream_events.whole(orjson.loads(answer.body)), answer)

    async def _responses(self, request: Json, call: RawRequest) -> RawResponse:
        """Return the response for the program, without the tokens, of which it knows nothing."""
        request, grouped = ungrouped(request)
        response = await self._recorded(request, call)
        output = [{**item, **grouped.get(str(item.get("name")), {})} for item in without_tokens(response["output"])]
        generated = mapping(response.get("usage")).get("output_tokens")
        header = (OUTPUT_TOKENS_HEADER.encode(), b"%d" % (generated if isinstance(generated, int) else 0))
        return RawResponse(orjson.dumps({**response, "output": output}), headers=(header,))

    async def _recorded(self, request: Json, call: RawRequest) -> Json:
        recording = self._find(call)
        check_depth(request, "the request")
        turn = recording.begin(request)
        try:
            answer = await self._respond({**turn.request, **recording.params}, call)
            if isinstance(answer, RawResponse):
                answer = answer.body
            response: Json = orjson.loads(answer) if isinstance(answer, bytes) else answer
            check_response(response)
            response["output"] = read_items(response["output"])
        except BaseException:
            turn.abandon()
            raise
        recording.add(turn, response)
        return response


def ungrouped(request: Json) -> tuple[Json, dict[str, Json]]:
    """Return a request whose functions are in no namespaces, which chat engines do not have; and, by the functions'
    longer names, what calls of them have instead.

    Codex offers the tools of each MCP server as a namespace, and expects it in their calls.
    """
    tools: list[Any] = []
    grouped: dict[str, Json] = {}
    for tool in items(request.get("tools")):
        if mapping(tool).get("type") != "namespace":
            tools.append(tool)
            continue
        for function in map(mapping, items(tool.get("tools"))):
            own = {"namespace": tool.get("name"), "name": function.get("name")}
            grouped[name := f"{own['namespace']}__{own['name']}"] = own
            tools.append({**function, "name": name})
    if grouped:
        request = {**request, "tools": tools}
    if isinstance(given := request.get("input"), list):  # calls of earlier requests, even if this one has no tools
        request = {**request, "input": [_ungrouped_call(item) for item in given]}
    return request, grouped


def _ungrouped_call(item: Any) -> Any:
    call = mapping(item)
    namespace, name = call.get("namespace"), call.get("name")
    if call.get("type") != "function_call" or not (isinstance(namespace, str) and isinstance(name, str)):
        return item
    return {**{key: value for key, value in call.items() if key != "namespace"}, "name": f"{namespace}__{name}"}


def _streamed(events: bytes, answer: RawResponse) -> RawResponse:
    return RawResponse(events, content_type=SSE, headers=(*STREAM_HEADERS, *answer.headers))


def _episode(call: RawRequest) -> str:
    if not (episode := call.header(EPISODE_HEADER.encode())):
        raise Failure(FailureKind.BAD_REQUEST, f"the request names no episode; expected the header {EPISODE_HEADER}")
    return episode


@dataclass(slots=True, eq=False)
class Conversation:
    """Turns that continue each other. They are kept as JSON: lists of tokens would take seven times as much memory."""

    params: Json
    """The parameters of the first request, without its input."""
    turns: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Of each turn, the items that its request adds to the turn before, and those of the model."""
    last: Json = field(default_factory=dict)
    """The last response, without its output."""
    number: int = 0
    """Number of the last turn among all turns of the episode."""
    origin: RecordedTurn | None = None
    """The turn of another conversation after which it branches off."""


@dataclass(slots=True, eq=False)
class RecordedTurn:
    conversation: Conversation
    index: int
    items: bytes
    """What the model wrote, without tokens."""
    tokens: Json
    """The token fields of its last item; empty if none are recorded."""
    is_continued: bool = False
    """Whether a call has continued it. The next one that does begins a conversation of its own: a branch."""


@dataclass(slots=True, eq=False)
class Turn:
    """A model call that is not answered yet."""

    request: Json
    """With the tokens of the turn that it continues."""
    before: RecordedTurn | None
    """The turn that it continues; None if there is none."""
    is_branch: bool
    """Whether another call has continued that turn already."""
    added: bytes
    """The items that the program has added to what is recorded."""
    digest: Digest

    def abandon(self) -> None:
        if self.before is not None and not self.is_branch:
            self.before.is_continued = False


class Recording:
    def __init__(self, params: Json, until: float) -> None:
        """`params`: create parameters that replace the program's own. `until`: on the monotonic clock, in seconds."""
        self.params = params
        self.until = until
        self._turns: dict[bytes, list[RecordedTurn]] = {}
        """By the digest of the conversation up to the turn's end. Parallel calls may get the same answer."""
        self._conversations: list[Conversation] = []
        self._usages: list[Json] = []

    def begin(self, request: Json) -> Turn:
        """Raises Failure bad_request if no verifier could read an item. Some engines would accept it."""
        sent = {key: value for key, value in request.items() if key not in ("model", "stream", "stream_options")}
        given = sent.get("input")
        given = [{"role": "user", "content": given}] if isinstance(given, str) else items(given)
        # What the program sends as tokens would be trained on as if an engine had sampled it.
        given = [without_tokens([item])[0] if isinstance(item, dict) else item for item in given]
        digest = Digest()
        before: RecordedTurn | None = None
        written: list[Any] = []
        begin = end = last = 0
        for index, item in enumerate([*given, None]):
            if is_of_model(item):
                begin = begin if digest.in_turn else index
            elif digest.in_turn and (found := self._turns.get(digest.value())):
                before = next((turn for turn in reversed(found) if not turn.is_continued), found[-1])
                written += [*given[end:begin], *as_written(before, given[begin:index])]
                end, last = index, len(written) - 1
            if item is not None:
                digest.add(item)
        if why := next((why for item in given[end:] if (why := why_unreadable(item))), ""):
            raise unconvertible("input", f"it {why}")
        added = orjson.dumps(given[end:])  # now, because the model server may change what it gets
        written += given[end:]
        if before is not None:
            written[last] = {**written[last], **before.tokens}
        is_branch = before is not None and before.is_continued
        if before is not None:
            before.is_continued = True
        return Turn({**sent, "input": written}, before, is_branch, added, digest)

    def add(self, turn: Turn, response: Json) -> None:
        if turn.before is None or turn.is_branch:
            params = {key: value for key, value in turn.request.items() if key != "input"}
            conversation = Conversation(params, origin=turn.before)
            self._conversations.append(conversation)
        else:
            conversation = turn.before.conversation
        output: list[Json] = response["output"]
        index = len(conversation.turns)
        conversation.turns.append((turn.added, orjson.dumps(output)))
        conversation.last = {key: value for key, value in response.items() if key != "output"}
        self._usages.append(mapping(response.get("usage")))
        conversation.number = len(self._usages)
        for item in output:
            turn.digest.add(item)
        tokens = {key: item[key] for item in output[-1:] for key in TOKEN_FIELDS if key in item}
        known = RecordedTurn(conversation, index, orjson.dumps(without_tokens(output)), tokens)
        self._turns.setdefault(turn.digest.value(), []).append(known)

    def closed(self) -> RecordedEpisode:
        """Return the conversations, the last one to end as the last. Their turns are numbered by segment throughout."""
        ordered = sorted(self._conversations, key=lambda conversation: conversation.number)
        output: list[Json] = []
        segment = -1
        for conversation in ordered:
            instructions = conversation.params.get("instructions")
            if instructions and conversation.origin is None:
                output.append({"type": "message", "role": "system", "content": instructions})
            segment += 1
            for index, (added, of_model) in enumerate(conversation.turns):
                made: list[Json] = orjson.loads(of_model)
                if made and isinstance(trace := made[-1].get("token_trace"), dict):
                    segment += index > 0 and "break" in trace
                    made[-1]["token_trace"] = {**trace, "segment": segment}
                output += [*orjson.loads(added), *made]
        return RecordedEpisode(
            conversations=[
                RecordedConversation(
                    turns=len(one.turns),
                    params=one.params,
                    branches_off=(ordered.index(one.origin.conversation), one.origin.index) if one.origin else None,
                )
                for one in ordered
            ],
            output=output,
            usages=self._usages,
            last=ordered[-1].last if ordered else {},
        )


def without_tokens(output: list[Json]) -> list[Json]:
    return [{key: item[key] for key in item if key not in TOKEN_FIELDS} for item in output]


def as_written(turn: RecordedTurn, given: list[Any]) -> list[Any]:
    """Return a turn as the model wrote it, with the ids of the program, if its tokens are recorded.

    Programs format arguments differently and drop reasoning. The history would then count as another one.
    """
    if not turn.tokens:
        return given
    ids = [item.get("call_id") for item in given if item.get("type") == "function_call"]
    items: list[Json] = orjson.loads(turn.items)
    calls = [item for item in items if item.get("type") == "function_call"]
    for item, call_id in zip(calls, ids, strict=False):
        item["call_id"] = call_id
    return items


class Digest:
    """A digest of a conversation. It omits what programs and conversions change without changing the conversation:
    ids, reasoning, surrounding white space, the order of a turn's text and calls, markers for caches, and prompts of
    the system, which the token history checks.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._text = ""
        self._calls: list[Any] = []
        self.in_turn = False
        """Whether the last item is of the model."""

    def add(self, item: Any) -> None:
        if is_of_model(item):
            self.in_turn = True
            if item.get("type") == "function_call":
                arguments = sendable_arguments(read_arguments(item.get("arguments")))
                self._calls.append([sendable_name(read_name(item.get("name"))), _canonical(arguments)])
            elif item.get("type") != "reasoning":
                self._text += message_text(item)
            return
        if self.in_turn:
            self._hash.update(self._turn())
            self._text, self._calls, self.in_turn = "", [], False
        if mapping(item).get("role") not in ("system", "developer"):
            self._hash.update(orjson.dumps(_essence(item)))

    def value(self) -> bytes:
        whole = self._hash.copy()
        whole.update(self._turn())
        return whole.digest()

    def _turn(self) -> bytes:
        said = self._text.rpartition("</think>")[2].partition("<think>")[0].strip()
        return orjson.dumps(["model", said, self._calls])


def is_of_model(item: Any) -> bool:
    kind = mapping(item).get("type", "message")
    return kind in ("reasoning", "function_call") or (kind == "message" and mapping(item).get("role") == "assistant")


def _canonical(arguments: str) -> Any:
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return arguments


def _essence(item: Any) -> list[Any]:
    """Return what the model reads of an item: texts and images, and who has said it."""
    found = mapping(item)
    content = found.get("output") if found.get("type") == "function_call_output" else found.get("content")
    parts = items(content) if isinstance(content, list) else [{"text": content}]
    shown = [mapping(part).get("text") or mapping(part).get("image_url") for part in parts]
    return [found.get("role"), [one.strip() if isinstance(one, str) else one for one in shown]]

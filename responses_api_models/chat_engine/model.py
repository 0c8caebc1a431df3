"""The model server in front of an engine that supports Chat Completions.

Responses requests are converted, sent to `{base_url}/chat/completions`, and the completion is converted back. With
`return_token_id_information` the engine's tokens are recorded, and turns are sent as token ids (token_history.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import orjson
from pydantic import SecretStr
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from rollyard.records.activity import EngineLoad
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models import conversion, streaming
from rollyard.responses_api_models.base import EpisodeInput, ModelServer
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.chat_engine.special_tokens import SpecialTokens
from rollyard.responses_api_models.chat_engine.token_backends import (
    Capabilities,
    CompletionsBackend,
    GenerateBackend,
    TokenBackend,
    read_hermes,
)
from rollyard.responses_api_models.chat_engine.token_history import (
    Continuation,
    TokenTurn,
    TokenTurns,
    first_difference,
    without_traces,
)
from rollyard.responses_api_models.chat_engine.vllm_control import TrainerApi
from rollyard.responses_api_models.conversion import Dialect, check_limits, mark_unreadable_tool_call
from rollyard.responses_api_models.streaming import ResponseEvents
from rollyard.responses_api_models.upstream.engine_metrics import EngineMetrics
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.response_parsing import (
    choices_of,
    completion_reader,
    encode_request,
    json_object,
)
from rollyard.responses_api_models.upstream.sse import ChatStreamStart
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream
from rollyard.services.http.request import Handler, RawRequest, RawResponse
from rollyard.services.responses.policy_logprobs import are_ids
from rollyard.services.responses.response_validity import (
    first_choice,
    malformed,
    offered,
    sendable_items,
    sendable_messages,
)
from rollyard.services.server.app import Context
from rollyard.services.server.openapi import ANY, Shape

S = TypeVar("S", bound=ChatEngineSettings)


class TokenCheck(TypedDict, total=False):
    samples: int


class ChatEngineModel(ModelServer[S]):
    passes_stop = True
    keeps_input = True

    def __init__(self, settings: S, context: Context, replicas: Replicas, api_key: SecretStr | None) -> None:
        self.upstream = Upstream(replicas, settings, api_key, context.external_transport)
        # Created before the base class registers its routes, because `route` puts their handlers behind the gate.
        self.trainer = TrainerApi(self.upstream, settings, context, self.on_invalid_weights, self.located)
        super().__init__(settings, context)
        self.measure(replicas)
        self._engine_metrics = EngineMetrics(self.upstream)
        self._dialect = settings.dialect
        self._capabilities = Capabilities(self.upstream, settings)
        self._special_tokens = special = SpecialTokens(self.upstream, settings)
        turns = TokenTurns(self.upstream, self._capabilities, self.trainer.versions, special, settings)
        self._turns = turns if settings.return_token_id_information else None
        self.route("/token_check", self.__token_check, cancellable=True, shape=Shape(TokenCheck))
        self.trainer.mount(self)

    def route(self, path: str, handler: Handler, *, cancellable: bool = False, shape: Shape = ANY) -> None:
        """Register a route. Model calls wait while weights change, and their responses report the policy version."""
        super().route(path, self.trainer.guarded(path, handler), cancellable=cancellable, shape=shape)

    def on_invalid_weights(self, url: str) -> None:
        """Handle an engine that lost its weights in a failed load; vLLM cannot load new weights afterwards.

        Servers that start engines themselves restart it. An external engine stays excluded until its operator restarts
        it, which this server detects.
        """

    def located(self, root: str) -> str:
        """Return the local folder of `root`, with which the engines were started; `root` itself if there is none."""
        return root

    async def start(self) -> None:
        await self.trainer.start()

    async def stop(self) -> None:
        """Wait for a running update to finish, because engines must not stay paused."""
        await self.trainer.stop()

    async def responses(self, request: Json, call: RawRequest) -> RawResponse:
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))

        def read(answer: bytes) -> bytes:
            return conversion.encoded_response(json_object(answer), request, self._dialect)

        if self._turns is None and self._special_tokens.allowed:
            sent = await self._encoded_body(request, self.episode_of(call))
            return request_context.answered(await self.upstream.post("/chat/completions", sent, read, request_context))
        body = await self._converted_body(self.complete(request, call))
        if self._turns is not None:
            completion = await self._turns.make(body, request_context)
            return request_context.answered(conversion.encoded_response(completion, request, self._dialect))
        body["messages"] = without_traces(body["messages"])
        return await self._posted(body, read, request_context)

    async def _encoded_body(self, request: Json, episode: EpisodeInput | None) -> bytes:
        """Return the encoded chat request. Of an episode's input, only what is new is converted and encoded."""
        if episode is not None and episode.items is not request.get("input"):
            episode = None  # the call came in another format
        if episode is not None and isinstance(known := episode.converted, EncodedChat):
            if known.add(request["input"], episode.count, self._dialect):
                encoded = known.body  # before another call of the episode can add to it
                await self.trainer.check_seed(known.params)
                return encoded
            request = episode.complete()
        body = await self._converted_body(request)
        messages = without_traces(body.pop("messages"))
        chat = EncodedChat(body, messages, request)
        if episode is not None and episode.items is request["input"]:  # no other call has come meanwhile
            episode.converted = chat
        return chat.body

    async def chat(self, request: Json, call: RawRequest) -> RawResponse:
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body = await self._chat_body(request)
        if self._turns is not None:
            return request_context.answered(orjson.dumps(await self._turns.make(body, request_context)))
        return await self._posted(body, completion_reader(body), request_context)

    async def _posted(self, body: Json, read: Callable[[bytes], bytes], request_context: RequestContext) -> RawResponse:
        body, _ = await self._special_tokens.treated(body, request_context)
        sent = encode_request(body)
        return request_context.answered(await self.upstream.post("/chat/completions", sent, read, request_context))

    async def stream_responses(self, request: Json, call: RawRequest) -> RawResponse:
        """Convert the engine's chunks to events. Recorded tokens need the complete response, which is then streamed."""
        if self._turns is not None:
            return await super().stream_responses(request, call)
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body = {
            **await self._converted_body(self.complete(request, call)),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        events = ResponseEvents(request, self._dialect, mark_unreadable_tool_call)
        chunks = await self._chunks(body, request_context)
        return request_context.streamed(streaming.converted(chunks, events, streaming.event_reporter(self.name, call)))

    async def stream_chat(self, request: Json, call: RawRequest) -> RawResponse:
        """Forward the engine's chunks. If tokens are recorded, the chunks are built from the complete response."""
        if self._turns is not None:
            return await super().stream_chat(request, call)
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body = await self._chat_body(request)
        chunks = await self._chunks(body, request_context)
        report = streaming.event_reporter(self.name, call)
        return request_context.streamed(streaming.chat(chunks, report, choices_of(body)))

    async def _chunks(self, body: Json, request_context: RequestContext) -> AsyncIterator[bytes]:
        body, _ = await self._special_tokens.treated(body, request_context)
        return await self.upstream.stream("/chat/completions", encode_request(body), request_context, ChatStreamStart)

    async def count_tokens(self, request: Json, call: RawRequest) -> int:
        """Let the engine render and tokenize the prompt. Raises Failure (501) if it cannot."""
        request_context = RequestContext.of(call)
        body = await self._converted_body(request)
        body["messages"] = without_traces(body["messages"])
        body, _ = await self._special_tokens.treated(body, request_context)
        return await count_prompt_tokens(self.upstream, body, request_context)

    def models(self) -> list[str]:
        return [self.settings.model]

    async def engine_load(self) -> tuple[int, EngineLoad | None]:
        return self.upstream.replicas.rejected, await self._engine_metrics.read()

    async def __token_check(self, call: RawRequest) -> bytes:
        """Check for `ng_doctor tokens` whether multi-turn histories are contiguous. Body: `{"samples": 8}`."""
        samples = call.json().get("samples", 8)
        if not isinstance(samples, int) or not 0 <= samples <= 1000:
            raise Failure(FailureKind.BAD_REQUEST, f"samples is {samples!r}; expected an integer from 0 to 1000")
        request_context = RequestContext()
        backend = await self._capabilities.backend(request_context)
        diagnostics = TokenDiagnostics(
            self.upstream,
            backend or CompletionsBackend(self.upstream, True),
            self.settings.model,
            await self.trainer.takes_seeds(),
        )
        report = {
            "model": self.settings.model,
            "token_in": backend.name if backend else "off",
            "logprobs_mode": await self._capabilities.logprobs_mode(request_context),
            "template": await diagnostics.template(),
            "sampled": await diagnostics.sampled(samples),
        }
        return orjson.dumps(report)

    async def _converted_body(self, request: Json) -> Json:
        """Convert a Responses create request, with earlier tool calls normalized so that engines accept them."""
        items = request.get("input")
        if isinstance(items, list):
            request = {**request, "input": sendable_items(items, offered(request.get("tools")))}
        return await self._complete_body(conversion.request_to_chat(request, self._dialect))

    async def _chat_body(self, request: Json) -> Json:
        conversion.apply_metadata(request)
        if isinstance(messages := request.get("messages"), list):
            request["messages"] = sendable_messages(messages, offered(request.get("tools")))
        if self._dialect.developer_as_system:
            for message in request["messages"] if isinstance(messages, list) else ():
                if isinstance(message, dict) and message.get("role") == "developer":
                    message["role"] = "system"
        return await self._complete_body(request)

    async def _complete_body(self, body: Json) -> Json:
        settings = self.settings
        if settings.chat_template_kwargs:
            given = body.get("chat_template_kwargs")
            body["chat_template_kwargs"] = {
                **settings.chat_template_kwargs,
                **(given if isinstance(given, dict) else {}),
            }
        for key, value in (settings.extra_body or {}).items():
            body.setdefault(key, value)
        if settings.strict_tools is not None:
            tools = body.get("tools")
            for tool in tools if isinstance(tools, list) else ():
                if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
                    tool["function"] = {**tool["function"], "strict": settings.strict_tools}
        body.update(settings.sampling_overrides or {})
        check_limits(body)
        body["model"] = self.settings.model
        await self.trainer.check_seed(body)
        return body


class EncodedChat:
    """The chat request of one episode, to which each turn adds messages."""

    def __init__(self, params: Json, messages: list[Json], request: Json) -> None:
        """`params`: the chat request without its messages; `request`: the Responses request."""
        self.params = params
        self._head = encode_request({**params, "messages": []})[:-2]
        self._messages = encode_request(messages)[1:-1]
        self._items = len(request["input"])
        self._offered = offered(request.get("tools"))
        self._ends_in_turn = _ends_in_turn(messages)

    def __len__(self) -> int:
        return len(self._head) + len(self._messages)

    @property
    def body(self) -> bytes:
        return b"%b%b]}" % (self._head, self._messages)

    def add(self, items: list[Any], count: int, dialect: Dialect) -> bool:
        """Add the last items of `count`. Return False if others are missing, if they may continue the last message of
        the model, or if they become no message.
        """
        if count - len(items) != self._items or (items and self._ends_in_turn):
            return False
        if not items:
            return True
        messages = without_traces(conversion.to_messages(sendable_items(items, self._offered), dialect, self._items))
        if messages:
            self._messages += b"," + encode_request(messages)[1:-1]
            self._items = count
            self._ends_in_turn = _ends_in_turn(messages)
        return bool(messages)


def _ends_in_turn(messages: list[Json]) -> bool:
    return not messages or messages[-1]["role"] == "assistant"


_PROMPT = ("model", "messages", "tools", "chat_template", "chat_template_kwargs")
_MISSING = frozenset({404, 405, 501})


async def count_prompt_tokens(upstream: Upstream, body: Json, request_context: RequestContext) -> int:
    """Return the number of tokens in the prompt of a chat request.

    Raises Failure bad_request with status 501 if the engine has no endpoint that tokenizes conversations.
    """
    sent = {key: body[key] for key in _PROMPT if key in body}
    try:
        answer = await upstream.post("/../tokenize", orjson.dumps(sent), json_object, request_context)
    except Failure as failure:
        if failure.problem.upstream_status in _MISSING:
            raise _unsupported(f"status {failure.problem.upstream_status}") from failure
        raise
    count = answer.get("count")
    if not isinstance(count, int) or isinstance(count, bool):
        raise _unsupported(f"the fields {', '.join(sorted(answer)) or 'none'}")
    return count


def _unsupported(found: str) -> Failure:
    detail = (
        f"the engine cannot count the tokens of a conversation: its /tokenize answered with {found}; expected the "
        "field count, as vLLM returns it. Read the usage of a response instead"
    )
    return Failure(FailureKind.BAD_REQUEST, detail, status=501)


SHOWN_IDS = 12
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Move one step and see the board.",
        "parameters": {
            "type": "object",
            "properties": {"direction": {"type": "string", "enum": ["up", "down", "left", "right"]}},
            "required": ["direction"],
        },
    },
}
_START: list[Json] = [{"role": "user", "content": "Reach the goal. Move left first, then say where you are."}]
_FOLLOW_UP: Json = {"role": "user", "content": "And now?"}


def _call(number: int, direction: str) -> Json:
    function = {"name": "move", "arguments": orjson.dumps({"direction": direction}).decode()}
    return {"id": f"call_{number}", "type": "function", "function": function}


def _answer(number: int) -> Json:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": "#####\n#_P_#\n#####"}


def _cases() -> list[tuple[str, Json, list[Json]]]:
    calls = [_call(1, "left"), _call(2, "up")]
    left = "The goal is left of me."

    def message(content: str | None, calls: list[Json] | None = None, reasoning: str = "") -> Json:
        fields = {"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {}
        return {"role": "assistant", "content": content, **fields, **({"tool_calls": calls} if calls else {})}

    return [
        ("text, then a question", message("I am at the goal."), [_FOLLOW_UP]),
        ("a tool call, then its answer", message(None, calls[:1]), [_answer(1)]),
        ("text and a tool call", message("I go left.", calls[:1]), [_answer(1)]),
        ("two tool calls", message(None, calls), [_answer(1), _answer(2)]),
        ("reasoning and a tool call", message(None, calls[:1], left), [_answer(1)]),
        ("reasoning and text, then a question", message("I am there.", None, left), [_FOLLOW_UP]),
    ]


class TokenDiagnostics:
    def __init__(self, upstream: Upstream, backend: TokenBackend, model: str, takes_seeds: bool) -> None:
        self._upstream = upstream
        self._backend = backend
        self._body: Json = {"model": model, "tools": [TOOL], "temperature": 1.0, "max_tokens": 256}
        self._request_context = RequestContext()
        self._takes_seeds = takes_seeds
        """If True, requests have seeds, so repeated checks of an engine sample the same turns."""
        self._continuation = Continuation()

    async def template(self) -> list[Json]:
        """Check each kind of turn. In each result, `retokenized` and `token_in` describe a mismatch, or are null if the
        ids are contiguous; `parser` is the result of the tool parser check.
        """
        return [{"case": name, **await self._case(message, new)} for name, message, new in _cases()]

    async def sampled(self, count: int) -> Json:
        """Check sampled turns. Returns their number, the number of prefix mismatches, and the first mismatch."""
        mismatches: list[Json] = []
        for seed in range(count):
            body = {**self._body, "messages": _START, "return_token_ids": True}
            if self._takes_seeds:
                body["seed"] = seed
            completion = await self._post("/chat/completions", body)
            choice, message = first_choice(completion)
            prompt, generated = completion.get("prompt_token_ids"), choice.get("token_ids")
            if not are_ids(prompt) or not are_ids(generated):
                raise malformed("lacks the token ids that return_token_ids asks for", completion)
            ids = [*prompt, *generated]
            new = [{**_answer(1), "tool_call_id": call["id"]} for call in message.get("tool_calls") or ()]
            if found := await self._difference(ids, await self._rendered(message, *(new or [_FOLLOW_UP]))):
                mismatches.append(found)
        return {"turns": count, "broken": len(mismatches), "first": mismatches[0] if mismatches else None}

    async def _rendered(self, *messages: Json, ask: bool = True) -> list[int]:
        return (await self._backend.render(self._body, [*_START, *messages], self._request_context, ask=ask)).ids

    async def _post(self, path: str, body: Json) -> Json:
        return await self._upstream.post(path, orjson.dumps(body), json_object, self._request_context)

    async def _case(self, message: Json, new: list[Json]) -> Json:
        try:
            prompt, whole = await self._rendered(), await self._rendered(message, ask=False)
            after = await self._rendered(message, *new)
        except Failure as failure:
            return {"error": f"the template rejects this turn: {failure.problem.detail}"}
        if found := await self._difference(prompt, whole):
            # The generation prompt differs from what the template renders before a finished turn.
            return {"retokenized": found, "token_in": None, "parser": None}
        ids = whole
        ending = await self._continuation.ending(self._backend, self._body, self._request_context)
        if ending is not None and ending.token in whole:
            ids = whole[: len(whole) - whole[::-1].index(ending.token)]
        body = {**self._body, "messages": [*_START, message, *new]}
        built = await self._continuation.prompt(self._backend, TokenTurn(1, ids, {}), body, self._request_context)
        expected = await self._text(after[-SHOWN_IDS:])
        token_in = None
        if built is None:
            token_in = {"reason": "the template has no recognizable end of a turn"}
        elif (built_end := await self._text(built[0][-SHOWN_IDS:])) != expected:
            token_in = {"expected": expected, "found": built_end}
        parsed = await self._parsed(prompt, ids[len(prompt) :], message)
        return {"retokenized": await self._difference(ids, after), "token_in": token_in, "parser": parsed}

    async def _parsed(self, prompt: list[int], generated: list[int], original: Json) -> str:
        if isinstance(self._backend, GenerateBackend):
            choice = {"index": 0, "token_ids": generated, "finish_reason": "stop", "logprobs": None}
            answer = {"request_id": "checkup", "choices": [choice]}
            _, message = first_choice(await self._backend.read(answer, prompt, self._body, self._request_context))
        else:
            message = read_hermes(await self._text(generated, special=False))
        expected, found = _calls(original), _calls(message)
        text = str(message.get("content"))[:200]
        return "ok" if expected == found else f"expected {expected}, found {found} in {text!r}"

    async def _difference(self, expected: list[int], found: list[int]) -> Json | None:
        """Describe where `found` differs from `expected`; None if `found` begins with `expected`."""
        at = first_difference(expected, found)
        if at is None:
            return None
        return {
            "position": at,
            "before": await self._text(expected[max(at - SHOWN_IDS, 0) : at]),
            "expected": await self._text(expected[at : at + SHOWN_IDS]),
            "found": await self._text(found[at : at + SHOWN_IDS]),
        }

    async def _text(self, ids: list[int], *, special: bool = True) -> str:
        if not ids:
            return ""
        text: str = (await self._post("/../detokenize", {"model": self._body["model"], "tokens": ids}))["prompt"]
        return text if special else text.removesuffix("<|im_end|>")


def _calls(message: Json) -> list[Any]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [[function["name"], orjson.loads(function["arguments"] or "{}")] for function in functions]

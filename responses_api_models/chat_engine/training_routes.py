"""The trainer endpoints of a model server: token-in, weight updates, and vLLM's control calls.

They are disabled unless `trainer_endpoints` is set, which requires a run token, because every caller can change the
policy of a running collection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json
from rollyard.responses_api_models import streaming
from rollyard.responses_api_models.chat_engine.checkpoint import bad_request
from rollyard.responses_api_models.chat_engine.engine_group import EngineGroup, EngineReply, JobQueue
from rollyard.responses_api_models.chat_engine.policy_versions import Gate, PolicyVersions, checked_version
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.chat_engine.vllm_control import GETS, POSTS, VllmControl, answer
from rollyard.responses_api_models.chat_engine.weight_update import (
    SERVER_INFO,
    CpuLimits,
    JoiningEngines,
    WeightLoader,
    WeightUpdates,
)
from rollyard.responses_api_models.upstream.response_parsing import json_bytes
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream
from rollyard.services.http.request import Handler, RawRequest, RawResponse
from rollyard.services.responses.policy_endpoint import POLICY_PATH
from rollyard.services.server.app import Context, Server

UPDATE = "/weights/update"
STATUS = "/weights"
LOG_PROBS = "/weights/log_probs"
LEASE_HEADER = b"x-rollyard-pause-lease"
"""Header of the responses to control calls during a pause: seconds until the pause ends automatically."""
FORWARDED = {
    "/tokenize": "/../tokenize",
    "/detokenize": "/../detokenize",
    "/v1/completions": "/completions",
    "/inference/v1/generate": "/../inference/v1/generate",
    "/v1/chat/completions/render": "/chat/completions/render",
    "/v1/chat/completions/derender": "/chat/completions/derender",
}
_SAMPLE = ("/v1/completions", "/inference/v1/generate")


class TrainerApi:
    def __init__(
        self,
        upstream: Upstream,
        settings: ChatEngineSettings,
        context: Context,
        on_invalid: Callable[[str], None],
        locate: Callable[[str], str],
    ) -> None:
        if settings.trainer_endpoints and not context.keys.token:
            raise OperatorError(f"{settings.token_needed_for}: set a run token, or remove trainer_endpoints")
        self._name = context.name
        self._upstream = upstream
        self._model = settings.model
        self._open = settings.trainer_endpoints
        self.versions = PolicyVersions(settings.policy_version, is_exclusive=self._open)
        self._engines = EngineGroup(upstream)
        self._gate = Gate(self.versions, lambda: self._engines.urls, settings.request_timeout_s)
        self._log_probs = EngineLogProbs(self._engines, self.versions, self._gate, settings.model)
        self._jobs = JobQueue()
        self._loader = loader = WeightLoader(self._engines, self.versions, locate)
        self._cpu = CpuLimits(self._engines)
        self._seeds = (settings.extra_body, settings.sampling_overrides)
        self._weights = WeightUpdates(
            self._engines, loader, self.versions, self._gate, self._cpu, on_invalid, settings.weights_check
        )
        upstream.engine_model = lambda: self.versions.engine_model
        upstream.blocked = self._gate.update
        self._joining_engines = JoiningEngines(self._engines, loader, self.versions, self._gate, self._jobs)
        self._gate.resync = self._joining_engines.resync
        self._protocol = VllmControl(
            self._engines,
            loader,
            self.versions,
            self._gate,
            self._jobs,
            self._joining_engines,
            self._cpu,
            on_invalid,
            settings.pause_lease_s,
        )
        self._watching: asyncio.Task[None] | None = None

    def guarded(self, path: str, handler: Handler) -> Handler:
        """Put the handler of a call to this server's policy behind the gate; return any other handler unchanged."""
        return handler if path in (UPDATE, POLICY_PATH) or path in POSTS else self._gate.guarded(handler)

    def mount(self, server: Server) -> None:
        """Register the endpoints. If they are disabled, they return an error that says how to enable them."""
        server.app.get("/policy_version")(self._policy_version)
        if not self._open:
            # Starlette's routes: FastAPI would analyse the parameters of two dozen functions that have none.
            closed = _closed(self._name)
            for path in (*FORWARDED, UPDATE, LOG_PROBS, *POSTS):
                server.app.add_route(path, closed, ["POST"], include_in_schema=False)
            for path in (STATUS, *GETS):
                server.app.add_route(path, closed, ["GET"], include_in_schema=False)
            return
        for path, target in FORWARDED.items():
            server.route(path, self._forward(path, target), cancellable=True)
        server.route(UPDATE, self._update)
        server.route(LOG_PROBS, self._read_log_probs, cancellable=True)
        server.app.get(STATUS)(self._status)
        for path, reason in POSTS.items():
            server.route(path, self._control_post(path, reason))
        for path, reason in GETS.items():
            server.app.get(path, summary=f"On every engine: {reason}")(self._control_get(path))

    async def start(self) -> None:
        """Ask running engines for their weights and devices, and start watching them."""
        if self._open:
            await self._joining_engines.learn()
            await self._cpu.learn(self._engines.urls)
            self._cpu.check_settings(self._name, self._seeds)
            self._watching = asyncio.create_task(self._joining_engines.watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._protocol.lease.end()
        await self._jobs.settle()

    async def register_engine(self, url: str) -> None:
        """Load the policy's weights into an engine that has just started, then add it to the pool of `upstream`. An
        update may have replaced the weights that it started with. Raises Failure if it does not load them (e.g. because
        the folder of the last update was removed); it is then not in the pool and should be restarted.
        """
        if self._open:
            await self._cpu.learn([url])
            await self._joining_engines.register_engine(url)
        else:
            await self._joining_engines.register_with_start_weights(url)

    async def started_with(self, root: str) -> None:
        """Record the files of a folder before engines are started with it; they may have changed at a restart."""
        await self._loader.started_with(root)

    async def takes_seeds(self) -> bool:
        return not self._open or await self._cpu.takes_seeds()

    async def check_seed(self, body: Json) -> None:
        """Raises Failure bad_request for a request with a seed if a weight update would crash its engine."""
        if self._open:
            await self._cpu.check_seed(body)

    def gone(self, url: str) -> None:
        self._engines.forget(url)

    async def _policy_version(self) -> Response:
        """Return the policy's version, or a problem document while engines have different versions."""
        await self._gate.look()
        return _response(self._gate.with_version(orjson.dumps({"policy_version": self.versions.now})))

    async def _status(self) -> Response:
        """Return the policy's version and files, the version on each engine, and the current pause lease."""
        versions, lease = self.versions, self._protocol.lease
        urls = self._engines.urls
        now = versions.checkpoint
        status = {
            "version": versions.now,
            "path": now.folder if now else versions.folder or None,
            "kind": "adapter" if versions.has_adapter else "weights",
            "fingerprint": versions.fingerprint(versions.now) or None,
            "difference": versions.difference(urls) or None,
            "engines": [{"url": url, "version": versions.held(url)} for url in urls],
            "on_cpu": self._cpu.on_cpu(urls),
            "lost": list(self._engines.lost),
            "waits_for": self._gate.reasons,
            "lease": {"lease_s": lease.length_s, "left_s": lease.left_s} if lease.length_s else None,
            "lease_expired": lease.expired,
        }
        return _response(self._gate.with_version(orjson.dumps(status)))

    async def _update(self, call: RawRequest) -> RawResponse:
        """Load new weights into all engines. Body: `{"path": folder, "version": name}`, and `"kind": "adapter"` if the
        folder contains a LoRA adapter. Running requests are kept; those of adapters are finished first.
        """
        request = call.json()
        if unknown := request.keys() - {"path", "version", "kind"}:
            raise bad_request(f"found {', '.join(sorted(unknown))}; expected only path, version and kind")
        if (kind := request.get("kind", "weights")) not in ("weights", "adapter"):
            raise bad_request(f"kind: found {str(kind)[:100]!r}; expected 'weights' or 'adapter'")
        folder, version = request.get("path"), request.get("version")
        if not isinstance(folder, str) or not folder:
            raise bad_request(f"path: found {folder!r}; expected the folder with the new weights")
        name = checked_version(version) if version is not None else None
        done = await self._protocol.update(lambda: self._weights.update(folder, name, adapter=kind == "adapter"))
        return self._gate.with_version(orjson.dumps(done))

    async def _read_log_probs(self, call: RawRequest) -> bytes:
        """Return every engine's log-probabilities of the given token ids, `{"sequences": [[1, 2, 3], ...]}`."""
        return orjson.dumps(await self._log_probs.read(call.json()))

    def _forward(self, path: str, target: str) -> Handler:
        async def forwarded(call: RawRequest) -> bytes | RawResponse:
            body = call.json()
            body["model"] = self._model
            if path in _SAMPLE:
                await self.check_seed(body)
            request_context = RequestContext.of(call)
            if path in _SAMPLE and body.get("stream"):
                chunks = await self._upstream.stream(target, orjson.dumps(body), request_context)
                return request_context.streamed(streaming.chat(chunks, streaming.event_reporter(self._name, call)))
            return request_context.answered(
                await self._upstream.post(target, orjson.dumps(body), json_bytes, request_context)
            )

        forwarded.__doc__ = (
            f"The engine's own {path}, on the least busy engine or the one that serves the episode (x-session-id)."
        )
        return forwarded

    def _control_post(self, path: str, reason: str) -> Handler:
        async def posted(call: RawRequest) -> RawResponse:
            replies = await self._protocol.post(path, call.query.decode("latin-1"), call.body)
            status, body, content_type = answer(replies)
            lease_s = self._protocol.lease.length_s
            headers = ((LEASE_HEADER, f"{lease_s:g}".encode()),) if lease_s else ()
            return self._gate.with_version(RawResponse(body, status, headers, content_type.encode()))

        posted.__doc__ = f"On every engine: {reason}."
        return posted

    def _control_get(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        async def got(request: Request) -> Response:
            status, body, content_type = answer(await self._protocol.get(path, request.url.query))
            return _response(self._gate.with_version(RawResponse(body, status, content_type=content_type.encode())))

        return got


def _closed(server: str) -> Callable[[Request], Awaitable[Response]]:
    async def closed(_: Request) -> Response:
        detail = f"this trainer endpoint is disabled: set trainer_endpoints: true on {server} and set a run token"
        raise Failure(FailureKind.BAD_REQUEST, detail, status=404)

    return closed


def _response(reply: RawResponse) -> Response:
    headers = {name.decode(): value.decode("latin-1") for name, value in reply.headers}
    return Response(reply.body, reply.status, headers, reply.content_type.decode())


MAX_TOKENS = 65_536
"""Limit of a request, because vLLM computes the logits of all tokens of a prompt together."""
SAMPLED_TOKENS = 32
"""How many tokens an engine with LoRA samples for each sequence."""


class EngineLogProbs:
    """Log-probabilities of given token sequences, from every engine: a trainer compares them with its own. They are
    those at temperature 1, without any constraint, of prompts, which vLLM computes without its prefix cache. An engine
    with --enable-lora samples tokens instead, because vLLM 0.32 dies on a CPU if it computes the log-probabilities of a
    prompt together with another request (add_lora_logits in punica_cpu.py; not tried on a GPU).
    """

    def __init__(self, engines: EngineGroup, versions: PolicyVersions, gate: Gate, model: str) -> None:
        self._engines = engines
        self._versions = versions
        self._gate = gate
        self._model = model

    async def read(self, request: Json) -> Json:
        """Return the version and, for each engine, sequences with the log-probabilities of their last tokens. An engine
        that does not respond while another does leaves the pool, as in an update. Raises Failure if no engine responds,
        if one refuses the tokens, or if the weights changed in the meantime.
        """
        sequences = _sequences(request)
        urls, mark = self._engines.urls, self._versions.mark
        found: dict[str, list[Json]] = {}

        async def ask(url: str) -> None:
            one = self._sampled if await self._has_lora(url) else self._of_prompt
            found[url] = await asyncio.gather(*(one(url, ids) for ids in sequences))

        if failed := await self._engines.all(urls, ask):
            raise next(iter(failed.values()))
        if not found:
            raise Failure(FailureKind.UNREACHABLE, "no engine is up")
        self._gate.check()
        if self._versions.mark != mark:
            raise Failure(FailureKind.UPSTREAM_ERROR, "the weights changed during the request; repeat it", status=503)
        engines = [{"url": url, "sequences": found[url]} for url in urls if url in found]
        return {"version": self._versions.now, "engines": engines}

    async def _has_lora(self, url: str) -> bool:
        reply = await self._engines.query(url, SERVER_INFO)
        return self._versions.has_adapter or bool(reply.get("vllm_config", "lora_config"))

    async def _of_prompt(self, url: str, ids: list[int]) -> Json:
        """Return a sequence with the log-probability of every token but the first."""
        reply = await self._ask(url, ids, {"max_tokens": 1, "prompt_logprobs": 0})
        with _readable(url):
            listed = reply.value["choices"][0]["prompt_logprobs"]
            pairs = zip(ids[1:], listed[1:], strict=True)
            return {"ids": ids, "log_probs": [float(entry[str(token)]["logprob"]) for token, entry in pairs]}

    async def _sampled(self, url: str, ids: list[int]) -> Json:
        """Return the first half of a sequence with tokens that the engine then samples, and their log-probabilities."""
        start = ids[: len(ids) // 2]
        own = {"max_tokens": SAMPLED_TOKENS, "logprobs": 0, "return_token_ids": True, "ignore_eos": True}
        reply = await self._ask(url, start, own)
        with _readable(url):
            choice = reply.value["choices"][0]
            generated = [int(token) for token in choice["token_ids"]]
            log_probs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
            if not generated or len(generated) != len(log_probs):
                raise ValueError(f"{len(generated)} tokens")
            return {"ids": [*start, *generated], "log_probs": log_probs}

    async def _ask(self, url: str, prompt: list[int], own: Json) -> EngineReply:
        model = self._versions.engine_model or self._model
        body = {"model": model, "prompt": prompt, "temperature": 1.0, **own}
        reply = await self._engines.request(url, "POST", "/v1/completions", orjson.dumps(body))
        if reply.answered and 400 <= reply.status < 500:
            raise bad_request(str(reply.failure("/v1/completions").problem.detail))
        if not reply.ok:
            raise reply.failure("/v1/completions")
        return reply


@contextlib.contextmanager
def _readable(url: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        detail = f"{url} returned no log-probabilities of tokens ({type(error).__name__}: {error})"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail) from error


def _sequences(request: Json) -> list[list[int]]:
    if unknown := request.keys() - {"sequences"}:
        raise bad_request(f"found {', '.join(sorted(unknown))}; expected only sequences")
    found = request.get("sequences")
    if not isinstance(found, list) or not found or not all(map(_is_sequence, found)):
        raise bad_request("sequences: expected a list of lists of two or more token ids")
    if (tokens := sum(map(len, found))) > MAX_TOKENS:
        raise bad_request(f"sequences: found {tokens} tokens; the limit is {MAX_TOKENS} per request")
    return found


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(type(token) is int and token >= 0 for token in value)

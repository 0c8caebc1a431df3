"""Keeps every engine at the policy's weights: loads new ones from a folder, or restores the old ones (`WeightUpdates`),
and syncs engines that were restarted (`JoiningEngines`). `WeightLoader` has the steps on one engine, and `CpuLimits`
what vLLM cannot do on a CPU.

An update pauses all engines (requests in flight are kept), loads the weights on all of them, and resumes them only when
all have finished, so no two engines ever sample with different weights. If one fails, the others restore the previous
weights: they load the same files as before or, if these have changed, nothing.

vLLM 0.32 does not recover from a failed load: the old weights are lost, and a running request crashes the process. It
keeps the parts that were loaded and counts them in the next load; in tests, later loads of valid weights sometimes
failed and sometimes succeeded. After a failed load, an engine's weights are therefore invalid: its requests are
aborted, and the gate stays shut until it is restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json, mapping
from rollyard.responses_api_models.chat_engine import checkpoint
from rollyard.responses_api_models.chat_engine.checkpoint import (
    Checkpoint,
    Depth,
    ModelSignature,
    adapter_name,
    bad_request,
    conflict,
    upstream_error,
    version_of,
)
from rollyard.responses_api_models.chat_engine.policy_versions import (
    CHANGING,
    PAUSED,
    RESYNCING,
    STARTED,
    UPDATING,
    Gate,
    PolicyVersions,
    next_version,
)
from rollyard.responses_api_models.upstream.response_parsing import error_message
from rollyard.responses_api_models.upstream.upstream import Upstream
from rollyard.services.http.request import PROBLEM_TYPE

log = logging.getLogger(__name__)

DEV_MODE = "vLLM enables its control endpoints with VLLM_SERVER_DEV_MODE=1 in its environment"

STEP_S = 120.0
"""Timeout for a step that loads no weights. A pause waits until the engine's current batch is done."""
QUERY_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineReply:
    """The response of one engine; a problem document from this server if the engine did not respond."""

    url: str
    status: int
    body: bytes
    content_type: str = "application/json"
    answered: bool = True

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def value(self) -> Any:
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return self.body.decode("utf-8", "replace")

    def get(self, *keys: str | int) -> Any:
        found: Any = self.value if self.ok else None
        for key in keys:
            try:
                found = found[key]
            except (KeyError, IndexError, TypeError):
                return None
        return found

    def failure(self, path: str) -> Failure:
        detail = f"{self.url.removesuffix('/v1')}{path} returned {self.status}: {error_message(self.body)}"
        detail += f" ({DEV_MODE})" if self.status == 404 else ""
        kind = Failure if self.answered else EngineUnreachable
        return kind(FailureKind.UPSTREAM_ERROR, detail, upstream_status=self.status)


class EngineUnreachable(Failure):
    """An engine could not be reached or did not respond, so it is unknown whether it executed the call."""


class EngineGroup:
    """The engines behind one `Upstream`. Paths are relative to an engine's root URL, not to `/v1`."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.lost: dict[str, None] = {}
        """Engines removed from the pool because they did not respond."""
        self.unresumed: set[str] = set()
        """Engines that did not respond to a resume call, but stay in the pool because no other engine is left."""

    @property
    def urls(self) -> list[str]:
        return self._upstream.replicas.urls

    def add(self, url: str) -> None:
        self.lost.pop(url, None)
        self._upstream.replicas.add(url)

    def forget(self, url: str) -> None:
        """Remove an engine that has exited; a new one may start at the same URL."""
        self.lost.pop(url, None)
        self._upstream.replicas.remove(url)

    def lose(self, url: str, why: str) -> bool:
        """Remove an engine from the pool unless it is the last one. Return True if it is no longer in the pool."""
        if url in self.urls:
            if len(self.urls) == 1:
                return False
            log.error("%s was removed from the pool until it has the policy's weights again: %s", url, why)
            self._upstream.replicas.remove(url)
            self.lost[url] = None
        return url in self.lost

    async def all(self, urls: Sequence[str], step: Callable[[str], Awaitable[object]]) -> dict[str, Failure]:
        """Run the step on all engines concurrently; return the failures of those that are still in the pool."""
        results = await asyncio.gather(*(step(url) for url in urls), return_exceptions=True)
        failed = {url: result for url, result in zip(urls, results, strict=True) if isinstance(result, Failure)}
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Failure):
                raise result
        unreachable = {url: str(failure) for url, failure in failed.items() if isinstance(failure, EngineUnreachable)}
        if len(unreachable) < len(urls):
            for url, why in unreachable.items():
                self.lose(url, why)
        return {url: failure for url, failure in failed.items() if url in self.urls}

    async def each(
        self, method: str, path: str, body: bytes = b"", bodies: Mapping[str, bytes] | None = None
    ) -> list[EngineReply]:
        """Send one request to every engine concurrently, without retries; return all replies. `bodies`: the body for an
        engine, by its URL, if it differs from `body`.
        """
        if not self.urls:
            raise Failure(FailureKind.UNREACHABLE, "no engine is up")
        own = bodies or {}
        return await asyncio.gather(*(self.request(url, method, path, own.get(url, body)) for url in self.urls))

    async def change_each(
        self, path: str, body: bytes = b"", bodies: Mapping[str, bytes] | None = None
    ) -> list[EngineReply]:
        """Send a POST that changes the engines. An engine that does not respond while another one does is lost."""
        replies = await self.each("POST", path, body, bodies)
        silent = [one for one in replies if not one.answered]
        for one in silent if len(silent) < len(replies) else ():
            self.lose(one.url, str(one.failure(path)))
        return replies

    async def request(
        self, url: str, method: str, path: str, body: bytes = b"", timeout_s: float | None = None
    ) -> EngineReply:
        try:
            answer = await self._upstream.send(method, url, f"/..{path}", body, timeout_s)
        except Failure as failure:
            problem = failure.problem
            return EngineReply(url, problem.status, problem.model_dump_json().encode(), PROBLEM_TYPE, False)
        return EngineReply(url, answer.status, answer.body, answer.headers.get("content-type") or "text/plain")

    async def query(self, url: str, path: str) -> EngineReply:
        return await self.request(url, "GET", path, timeout_s=QUERY_S)

    async def step(self, url: str, path: str, body: Json | None = None) -> EngineReply:
        """Send an idempotent POST, which is repeated once if the connection fails. Raises Failure if the call fails."""
        sent = orjson.dumps(body) if body is not None else b""
        reply = await self.request(url, "POST", path, sent, STEP_S)
        if reply.status in _CONNECTION_ERRORS and not reply.answered:
            reply = await self.request(url, "POST", path, sent, STEP_S)
        if not reply.ok:
            raise reply.failure(path)
        return reply


_CONNECTION_ERRORS = (502, 503)
"""Statuses of failed or interrupted connections; vLLM closes idle connections after five seconds."""


T = TypeVar("T")


class JobQueue:
    """Runs jobs on the engines one after another. A job runs to completion even if its caller disconnects. A partial
    update would be worse than none: engines would stay paused or have different weights.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` after all earlier jobs and return its result. Raises Failure if the server is stopping."""

        async def in_turn() -> T:
            async with self._lock:
                if self._stopping:
                    work.close()
                    raise Failure(FailureKind.CANCELLED, "the server is stopping; nothing was done")
                return await work

        task = asyncio.create_task(in_turn())
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait for the running job; reject the jobs that wait behind it."""
        self._stopping = True
        while self._running:
            await asyncio.wait(self._running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s", error)  # the caller may have disconnected


DRAIN_S = 30.0
"""How long requests in flight may continue before an adapter replaces another one. They are aborted then, and the model
server repeats them."""
_TIMED_OUT = 504
_LOAD, _UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
_ENABLE = (
    "vLLM loads adapters with --enable-lora, a sufficient --max-lora-rank, and "
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
)


class FilesChanged(Failure):
    """The files of a version were changed or removed, so it cannot be loaded again."""


class WeightLoader:
    """The steps on one engine. All of them raise Failure if the engine reports an error."""

    def __init__(self, engines: EngineGroup, versions: PolicyVersions, locate: Callable[[str], str]) -> None:
        self._engines = engines
        self._versions = versions
        self._locate = locate
        """Maps the model that an engine was started with to its local folder."""
        self._adapted: set[str] = set()

    async def pause(self, url: str) -> None:
        await self._engines.step(url, "/pause?mode=keep")

    async def resume(self, url: str) -> None:
        await self._engines.step(url, "/resume")

    async def abort(self, url: str) -> None:
        await self._engines.step(url, "/pause?mode=abort")

    async def drain(self, url: str) -> None:
        """Pause the engine when its requests are done, and abort those that take longer."""
        reply = await self._engines.request(url, "POST", "/pause?mode=wait", timeout_s=DRAIN_S)
        if reply.status == _TIMED_OUT and not reply.answered:
            await self.abort(url)
        elif not reply.ok:
            raise reply.failure("/pause")

    async def bring(self, url: str, source: Checkpoint, version: str) -> None:
        """Load the weights in a folder. The engine's version is unknown until the last step is done.

        Raises FilesChanged if the folder changed during the load, so the engine may have loaded different weights.
        """
        self._versions.hold(url, None)
        await self._name(url, CHANGING)
        await self._unload_adapters(url)
        if source.is_adapter:
            # If this fails, the engine keeps the weights below the adapter, which are still valid.
            load = {"lora_name": adapter_name(version), "lora_path": source.folder}
            reply = await self._engines.request(url, "POST", _LOAD, orjson.dumps(load))
            if not reply.ok:
                failure = reply.failure(_LOAD)
                raise upstream_error(f"{failure.problem.detail} ({_ENABLE})") if reply.answered else failure
            self._adapted.add(url)
        else:
            self._versions.invalid.add(url)
            reload = {"method": "reload_weights", "kwargs": {"weights_path": source.folder}}
            reply = await self._engines.request(url, "POST", "/collective_rpc", orjson.dumps(reload))
            if not reply.ok:
                raise reply.failure("/collective_rpc")
            self._versions.invalid.discard(url)
        # reset_running_requests recomputes requests in flight with the new weights; otherwise their blocks stay cached.
        reset = await self._engines.step(url, "/reset_prefix_cache?reset_running_requests=true")
        if reset.get("success") is False:
            raise upstream_error(
                f"{url} did not reset its prefix cache, which contains keys and values of the old weights"
            )
        if changed := await asyncio.to_thread(checkpoint.difference, source):
            raise self._lost(url, f"{changed}, while the engine was loading it")
        await self.put_back(url, version)

    async def put_back(self, url: str, version: str | None) -> None:
        """Record that an engine has this version, and give its weights the name; they are valid."""
        if version is not None:
            await self._name(url, version)
        self._versions.hold(url, version)
        self._versions.invalid.discard(url)

    async def drop_adapter(self, url: str) -> None:
        """Return to the weights that an engine was started with, after an adapter could not be loaded."""
        await self._unload_adapters(url)
        await self.put_back(url, self._versions.now)

    async def catch_up(self, url: str) -> None:
        """Load the policy's weights into a new engine, if they came from a folder.

        Raises FilesChanged if the files have changed; nothing is loaded, and the engine's weights then count as
        unknown.
        """
        if self._versions.folder:
            await self.restore(url)
            return
        is_start = self._versions.folder == ""
        if is_start:
            await self.check_start(url)
        version = self._versions.now if is_start else self._versions.first
        await self._name(url, version)
        self._versions.hold(url, version)

    async def restore(self, url: str) -> None:
        source = await self._source(url)
        await self._check_files(url, source)
        await self.bring(url, source, self._versions.now)

    async def check_start(self, url: str) -> None:
        """Raises FilesChanged if the engine's start folder has changed since the first engine was started."""
        await self.learn_start(url)
        known = self._versions.fingerprint(self._versions.first)
        if known and (root := await self._root(url)) == self._versions.root:
            folder = await asyncio.to_thread(self._locate, root)  # a link may have changed
            await self._check_files(url, Checkpoint(folder, known))

    async def _check_files(self, url: str, source: Checkpoint) -> None:
        if changed := await asyncio.to_thread(checkpoint.difference, source):
            detail = f"version {self._versions.now!r} cannot be loaded again: {changed}"
            advice = "save each version in its own folder, and POST /weights/update with one of them"
            raise self._lost(url, f"{detail}; {advice}, or restart the run")

    def _lost(self, url: str, detail: str) -> FilesChanged:
        self._versions.hold(url, None, detail)
        return FilesChanged(FailureKind.UPSTREAM_ERROR, detail)

    async def learn(self, url: str) -> None:
        """Record the version that the engine reports, and the adapters that it has loaded for an earlier run of this
        server. A new engine is assigned the name of the first version, so that a restart can be detected.
        """
        reply, label = await self._weight_info(url)
        if label is None:
            if reply.status != 404:  # 404: an engine without weight versions
                log.warning("could not query the weight version: %s", reply.failure("/weight_info"))
            return
        version = self._versions.named(label)
        self._versions.hold(url, version)
        with contextlib.suppress(Failure):
            for name, folder in (await self._adapters(url)).items():
                self._adapted.add(url)
                self._versions.learn_adapter(str(version_of(name)), Checkpoint(folder, is_adapter=True))
        if version is None:
            self._versions.invalid.add(url)
        if label == STARTED:
            await self._name(url, self._versions.first)

    async def learn_start(self, url: str) -> None:
        """Record the files that the engine was started with, if they can be read; updates are compared with them."""
        if not self._versions.fingerprint(self._versions.first) and (root := await self._root(url)):
            await self.started_with(root)

    async def started_with(self, root: str) -> None:
        if start := await asyncio.to_thread(lambda: checkpoint.start_checkpoint(self._locate(root))):
            self._versions.started_with(root, start)

    async def started_again(self, url: str, *, may_be_silent: bool = False) -> bool:
        """Return True if the engine was restarted, in which case its weights are valid but unknown.

        Unless it `may_be_silent`, an engine that does not respond leaves the pool.
        """
        reply, label = await self._weight_info(url)
        if not reply.answered and not may_be_silent:
            self._engines.lose(url, str(reply.failure("/weight_info")))
        if label != STARTED:
            return False
        self._versions.hold(url, None, "it was restarted")
        self._versions.invalid.discard(url)
        return True

    async def responds(self, url: str) -> bool:
        return (await self._weight_info(url))[0].answered

    async def back(self, url: str) -> bool:
        """Return True if a lost engine responds and can load weights; record its version."""
        reply, label = await self._weight_info(url)
        if not reply.answered:
            return False
        if label is not None:
            version = self._versions.named(label) if label != STARTED else None
            self._versions.hold(url, version)
            if label == STARTED:
                self._versions.invalid.discard(url)
            elif version is None:
                self._versions.invalid.add(url)
        return url not in self._versions.invalid

    async def _source(self, url: str) -> Checkpoint:
        """Return the source of the policy's weights for that engine: a folder, or a name on the hub."""
        if self._versions.folder is None:
            raise upstream_error(f"version {self._versions.now!r} was not loaded from a folder")
        known = self._versions.checkpoint
        if self._versions.folder:
            return known or Checkpoint(self._versions.folder)
        if root := await self._root(url):
            return known if known and root == self._versions.root else Checkpoint(root)
        raise upstream_error(f"{url} does not report the weights that it was started with (`root` in /v1/models)")

    async def _root(self, url: str) -> str:
        return str((await self._engines.query(url, "/v1/models")).get("data", 0, "root") or "")

    async def release(self, url: str) -> None:
        """Resume an engine that is still paused, because the server that paused it has died."""
        paused = (await self._engines.query(url, "/is_paused")).get("is_paused")
        if paused and self._versions.held(url) is not None:
            log.warning("%s was paused by an earlier run of this server or by another client; resuming it", url)
            await self.resume(url)

    async def _weight_info(self, url: str) -> tuple[EngineReply, Any]:
        reply = await self._engines.query(url, "/weight_info")
        return reply, reply.get("weight_version")

    async def _name(self, url: str, version: str) -> None:
        try:
            await self._engines.step(url, "/update_weight_version", {"new_version": version})
        except Failure as failure:
            if failure.problem.upstream_status != 404:  # 404: an engine without weight versions
                raise

    async def _unload_adapters(self, url: str) -> None:
        """Unload all adapters of this server. An engine without adapters is not asked."""
        if url not in self._adapted:
            return
        for name in await self._adapters(url):
            await self._engines.step(url, _UNLOAD, {"lora_name": name})
        self._adapted.discard(url)

    async def _adapters(self, url: str) -> dict[str, str]:
        """Return the names and folders of the adapters that this server, or an earlier run of it, has loaded."""
        reply = await self._engines.query(url, "/v1/models")
        if not reply.ok:
            raise reply.failure("/v1/models")
        models = {str(mapping(one).get("id")): str(mapping(one).get("root")) for one in reply.get("data") or ()}
        return {name: root for name, root in models.items() if version_of(name) is not None}


TIED = (
    "tie_word_embeddings is true: on a CPU, vLLM keeps the old output head of such a model when its weights are "
    "reloaded; train a model with tie_word_embeddings=false, or serve it on a GPU"
)
SEED = "on a CPU, a weight update crashes vLLM while a request with a seed is running"


class CpuLimits:
    """Tracks which engines run on a CPU and rejects what they do not support.

    When the engine starts, the output head is packed for the matrix product. A reload repacks a separate head, but not
    a head that is tied to the embeddings, so vLLM would combine the new body with the old head and return 200. A
    request with a seed that is in flight during an update is recomputed in chunks, which crashes vLLM if its random
    numbers come from the CPU ("CPU Generator does not use offset").
    """

    def __init__(self, engines: EngineGroup) -> None:
        self._engines = engines
        self._known: dict[str, bool] = {}
        """URL -> whether the engine runs on a CPU; False if it does not report it, which requires vLLM's dev mode."""

    async def learn(self, urls: Sequence[str]) -> None:
        new = [url for url in urls if url not in self._known]
        for reply in await asyncio.gather(*(self._engines.query(url, SERVER_INFO) for url in new)):
            if reply.answered:
                self._known[reply.url] = reply.get("vllm_config", "device_config", "device") == "cpu"

    def on_cpu(self, urls: Sequence[str]) -> bool:
        return any(self._known.get(url) for url in urls)

    async def takes_seeds(self) -> bool:
        await self.learn(self._engines.urls)
        return not any(self._known.values())

    async def check_head(self, model: ModelSignature | None, urls: Sequence[str]) -> None:
        """Raises Failure bad_request for new weights if the model's output head is tied and an engine runs on a CPU."""
        if model is not None and model.is_tied:
            await self.learn(urls)
            if self.on_cpu(urls):
                raise bad_request(TIED)

    def check_settings(self, name: str, settings: Sequence[Mapping[str, Any] | None]) -> None:
        """Raises OperatorError if the settings add a seed to every request and an engine runs on a CPU."""
        for given in settings:
            if given and given.get("seed") is not None and any(self._known.values()):
                raise OperatorError(
                    f"{name}: found seed: {given['seed']!r} together with trainer_endpoints: true, but {SEED}; remove "
                    "one of the two"
                )

    async def check_seed(self, body: Json) -> None:
        """Raises Failure bad_request if the request has a seed and an engine runs on a CPU."""
        seed = body.get("seed")
        if seed is None and isinstance(params := body.get("sampling_params"), dict):
            seed = params.get("seed")
        if seed is not None and not await self.takes_seeds():
            raise bad_request(
                f"found seed {seed!r} in a request, but {SEED}: remove the seed (sampling_overrides: {{seed: null}}), "
                "or set trainer_endpoints: false"
            )


SERVER_INFO = "/server_info?config_format=json"


@dataclass(eq=False)
class WeightUpdates:
    _engines: EngineGroup
    _loader: WeightLoader
    _versions: PolicyVersions
    _gate: Gate
    _cpu: CpuLimits
    _on_invalid: Callable[[str], None]
    _depth: Depth

    async def update(self, folder: str, version: str | None, *, adapter: bool = False) -> Json:
        """Update the weights, or their adapter, and return the response.

        Raises Failure with the reason and the engines' versions.
        """
        started_at, previous, urls = time.monotonic(), self._versions.now, self._engines.urls
        if not urls:
            raise Failure(FailureKind.UNREACHABLE, "no engine is up")
        invalid = [url for url in urls if url in self._versions.invalid]
        if left := [url for url in invalid if not await self._loader.started_again(url) and url in self._engines.urls]:
            raise upstream_error(
                f"{', '.join(left)}: the weights were lost in an update that failed or is not finished, and vLLM "
                "cannot load new weights after that; restart the engine, then repeat the update"
            )
        started = self._versions.model
        if adapter and self._versions.folder != "" and not self._versions.has_adapter:
            raise conflict(
                f"version {previous!r} replaced the weights that the engines were started with, to which adapters are "
                "added: restart the engines, or publish merged weights"
            )
        found = await asyncio.to_thread(checkpoint.check, folder, started, self._depth, is_adapter=adapter)
        if not adapter:
            await self._cpu.check_head(started or found.signature, urls)
        version = version or next_version(previous, found.folder)
        self._versions.check_name(version, found.fingerprint)
        with self._gate.shut_while(UPDATING):
            await self._change(urls, found, version)
        seconds = round(time.monotonic() - started_at, 3)
        log.info("updated the policy from version %r to %r in %.1f s: %s", previous, version, seconds, found.folder)
        remaining = self._in_pool(urls)
        answer = {"version": version, "previous": previous, "seconds": seconds, "engines": len(remaining)}
        files = {"path": found.folder, "fingerprint": found.fingerprint} if found.fingerprint else {}
        lost = {"lost": [url for url in urls if url in self._engines.lost]} if len(remaining) < len(urls) else {}
        return {**answer, **files, **lost, "warnings": list(found.warnings)}

    async def _change(self, urls: Sequence[str], found: Checkpoint, version: str) -> None:
        unchanged = f"nothing was changed; the policy stays at version {self._versions.now!r}"
        # If a trainer paused the engines, the trainer resumes them.
        should_pause = not self._gate.stopped
        # An engine that replaces an adapter must have no requests in flight, which would keep the old one.
        adapted = found.is_adapter or self._versions.has_adapter
        stop = (self._loader.drain if should_pause else self._loader.abort) if adapted else self._loader.pause
        try:
            if (should_pause or adapted) and (failed := await self._engines.all(urls, stop)):
                raise _failed(unchanged, failed.values())
            if changed := await asyncio.to_thread(checkpoint.difference, found):
                raise conflict(f"{unchanged}: {changed}")
            loading = self._in_pool(urls)
            failed = await self._engines.all(loading, lambda url: self._loader.bring(url, found, version))
            self._end_invalid(url for url in loading if url in self._engines.lost)
            if failed or version not in map(self._versions.held, self._in_pool(loading)):
                await self._roll_back(self._in_pool(loading), found, version, failed)
            # Before the engines resume, so that requests in flight end under the new version.
            self._versions.advance(version, found.folder, found)
        except BaseException:
            if should_pause:
                await self._resume(urls)
            raise
        if should_pause and (stuck := await self._resume(urls)):
            raise _failed(
                f"version {version!r} was loaded, but an engine did not resume (retry with POST /resume)", [stuck]
            )

    def _in_pool(self, urls: Sequence[str]) -> list[str]:
        return [url for url in urls if url in self._engines.urls]

    def _end_invalid(self, urls: Iterable[str]) -> None:
        for url in urls:
            if url in self._versions.invalid:
                self._on_invalid(url)

    async def _resume(self, urls: Sequence[str]) -> Failure | None:
        for url, failure in (await self._engines.all(self._in_pool(urls), self._loader.resume)).items():
            if isinstance(failure, EngineUnreachable):
                self._engines.unresumed.add(url)
            elif self._engines.lose(url, str(failure)):
                continue
            else:
                self._gate.shut(PAUSED)
            return failure
        return None

    async def _roll_back(
        self, urls: Sequence[str], found: Checkpoint, version: str, failures: Mapping[str, Failure]
    ) -> None:
        """Restore the previous weights on all engines that can load them. Always raises Failure."""
        previous = self._versions.now

        async def restore(url: str) -> None:
            if url in self._versions.invalid:
                return
            if found.is_adapter and not self._versions.has_adapter:
                await self._loader.drop_adapter(url)
            else:
                await self._loader.restore(url)

        failed = [*failures.values(), *(await self._engines.all(urls, restore)).values()]
        remaining = self._in_pool(urls)
        summary = f"the update to {version!r} failed"
        if not (difference := self._versions.difference(remaining)):
            raise _failed(f"{summary} and was rolled back; the policy stays at version {previous!r}", failed)
        invalid = [url for url in remaining if url in self._versions.invalid]
        # A request that runs on invalid weights crashes vLLM, so those in flight are aborted.
        await self._engines.all(invalid, self._loader.abort)
        self._end_invalid(invalid)
        again = f"; {', '.join(invalid)} must be restarted" if invalid else ""
        raise _failed(f"{summary}: {difference}{again}", failed)


def _failed(summary: str, failures: Iterable[Failure]) -> Failure:
    reasons = "; ".join(dict.fromkeys(failure.problem.detail for failure in failures))
    return upstream_error(f"{summary}: {reasons or 'no engine is left'}")


CHECK_INTERVAL_S = 5.0


class JoiningEngines:
    """Registers, resyncs and watches the engines of one policy.

    While an engine in the pool differs, the gate stays shut until it has loaded the policy's weights; all waiting calls
    share one resync. Lost engines rejoin the pool once they have the policy's weights.
    """

    def __init__(
        self, engines: EngineGroup, loader: WeightLoader, versions: PolicyVersions, gate: Gate, jobs: JobQueue
    ) -> None:
        self._engines = engines
        self._loader = loader
        self._versions = versions
        self._gate = gate
        self._jobs = jobs
        self._resyncing: asyncio.Task[None] | None = None
        self._next_check = 0.0
        self._waiting: dict[str, int] = {}
        """Engines that could not load the policy's files and wait for a new version -> `PolicyVersions.mark` at that
        time."""

    async def learn(self) -> None:
        """Ask running engines which weights they have, because this server may have been restarted."""
        urls = self._engines.urls
        await self._engines.all(urls, self._loader.learn)
        await self._engines.all(urls, self._loader.release)
        await self._engines.all(urls, self._loader.learn_start)
        held = {self._versions.held(url) for url in urls}
        if len(held) == 1 and (only := held.pop()) is not None and only != self._versions.now:
            log.warning("the engines have version %r from an earlier run of this server; continuing with it", only)
            self._versions.advance(only, self._versions.adapter_folder(only))
        elif difference := self._versions.difference(urls):
            log.error("%s: model calls are rejected", difference)

    async def register_engine(self, url: str) -> None:
        """Add a newly started engine to the pool once it has the policy's weights.

        Raises Failure, without adding the engine, if it fails to load them. If the weights came from a trainer and not
        from a folder, the engine is added as it is, and the gate stays shut until the trainer sends them again. If the
        files in the folder have changed, the engine waits outside the pool for the next update; if it is the only one,
        it is added, and model calls are rejected with the reason.
        """
        is_current = await self._jobs.run(self._admit(url, self._loader.catch_up))
        if is_current and (difference := self._versions.difference([url])):
            log.error("%s: model calls are rejected until the trainer sends its weights again", difference)

    async def register_with_start_weights(self, url: str) -> None:
        """Add an engine to the pool of a server without trainer endpoints. It is excluded if its files have changed
        since the start of the first engine, unless it is the only one.
        """
        await self._admit(url, self._loader.check_start)

    async def _admit(self, url: str, prepare: Callable[[str], Awaitable[None]]) -> bool:
        """Add the engine, or exclude it if its files have changed. Return whether they have not."""
        try:
            await prepare(url)
        except FilesChanged as changed:
            self._engines.add(url)
            self._exclude(url, changed)
            return False
        self._engines.add(url)
        return True

    async def resync(self) -> None:
        if self._resyncing is None or self._resyncing.done():
            if time.monotonic() < self._next_check:
                return
            self._resyncing = asyncio.create_task(self._resync_waiting())
        await asyncio.shield(self._resyncing)

    async def watch(self) -> None:
        """Run until cancelled: return lost engines to the pool once they respond and have the policy's weights, resume
        engines that did not respond to an earlier resume call, and detect engines that were restarted at the same URL.
        """
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            for url in list(self._engines.urls):
                if self._gate.stopped or self._waits(url) or url in self._versions.invalid:
                    continue
                if await self._loader.started_again(url, may_be_silent=True):
                    with contextlib.suppress(Failure):
                        await self._jobs.run(self._resync())
            # Queried outside the queue, because an engine that does not respond must not delay a trainer.
            for url in list(self._engines.lost):
                if not self._gate.stopped and not self._waits(url) and await self._loader.responds(url):
                    with contextlib.suppress(Failure):  # JobQueue logs it
                        await self._jobs.run(self._rejoin(url))
            for url in list(self._engines.unresumed):
                if await self._loader.responds(url):
                    with contextlib.suppress(Failure):
                        await self._jobs.run(self._release(url))

    async def join(self) -> None:
        """Return lost engines that respond to the pool, without weights: a trainer is about to send new ones."""
        for url in list(self._engines.lost):
            if await self._loader.back(url):
                self._engines.add(url)

    async def _resync_waiting(self) -> None:
        try:
            await self._jobs.run(self._resync())
        except Failure as failure:  # waiting calls check the difference themselves
            log.error("%s", failure)
        finally:
            self._next_check = time.monotonic() + CHECK_INTERVAL_S

    async def _resync(self) -> None:
        for url in self._engines.urls:
            if self._versions.difference([url]) and not self._waits(url) and await self._loader.started_again(url):
                log.warning("%s was restarted; loading version %r", url, self._versions.now)
                with self._gate.shut_while(RESYNCING):
                    for failure in (await self._engines.all([url], self._catch_up)).values():
                        log.error("%s", failure)
                        if isinstance(failure, FilesChanged):
                            self._exclude(url, failure)

    async def _release(self, url: str) -> None:
        if url in self._engines.unresumed and not self._gate.stopped:
            await self._loader.release(url)
            self._engines.unresumed.discard(url)

    async def _rejoin(self, url: str) -> None:
        if self._gate.stopped or url not in self._engines.lost or not await self._loader.back(url):
            return
        if self._versions.held(url) != self._versions.now:
            if self._versions.folder is None:
                log.warning("%s responds again, but only the trainer can send it version %r", url, self._versions.now)
                return
            try:
                await self._catch_up(url)
            except FilesChanged:
                self._waiting[url] = self._versions.mark
                raise
        else:
            await self._loader.release(url)
        if self._versions.held(url) == self._versions.now:
            log.warning("%s is back in the pool with version %r", url, self._versions.now)
            self._engines.add(url)

    def _waits(self, url: str) -> bool:
        return self._waiting.get(url) == self._versions.mark

    def _exclude(self, url: str, changed: FilesChanged) -> None:
        self._waiting[url] = self._versions.mark
        if not self._engines.lose(url, str(changed)):
            log.error("model calls are rejected: %s", changed)

    async def _catch_up(self, url: str) -> None:
        await self._loader.pause(url)  # a retried model call may have reached it
        try:
            await self._loader.catch_up(url)
        finally:
            await self._loader.resume(url)

"""Runs one replica of vLLM and restarts it when it dies. Its URL changes with every start, so no episode outlives its
engine.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rollyard.records.errors import Failure, OperatorError, RollyardError, RunError
from rollyard.responses_api_models.local_vllm_model.engine_process import EngineProcess, make_folder
from rollyard.responses_api_models.local_vllm_model.settings import (
    LocalVllmModelSettings,
    engine_environment,
    serve_arguments,
)
from rollyard.services.backoff import Backoff
from rollyard.services.http.transport import Transport

log = logging.getLogger(__name__)
PORT_TAKEN = "another process took its port; try again"
HEALTH_S = 0.25
"""Interval between health checks. It is short so that calls to a dead engine are retried within a second."""


class Engine:
    """One vLLM replica. Calls `up` with its URL when it is ready, and `down` when it is no longer ready.

    `up` can reject an engine that fails to load the policy's weights by raising Failure.
    """

    def __init__(
        self,
        plan: StartPlan,
        *,
        up: Callable[[str], Awaitable[None]],
        down: Callable[[str], None],
        restarts: Backoff | None = None,
    ) -> None:
        self.plan = plan
        self.is_up = False
        self._up = up
        self._down = down
        self._restarts = restarts or Backoff(first_pause_s=1.0, longest_pause_s=60.0)
        self._start = EngineStart(plan)
        self._deaths = 0
        self._failure_reason = ""
        self._keep_task: asyncio.Task[None] | None = None

    @property
    def phase(self) -> str:
        return "" if self.is_up else self._start.phase

    @property
    def url(self) -> str:
        return self._start.url

    def give_up(self, why: str) -> None:
        self._failure_reason = why

    async def start(self) -> None:
        """Start the engine and keep it running.

        Raises RunError if it does not start, OperatorError if another start would fail again, or Failure from `up`.
        """
        process = await self._bring_up()
        self._keep_task = asyncio.create_task(self._keep_running(process))

    async def stop(self) -> None:
        if self._keep_task is not None:
            self._keep_task.cancel()
            await asyncio.wait([self._keep_task])
        self._close()
        await self._start.end()

    async def _keep_running(self, process: EngineProcess) -> None:
        while True:
            started = time.monotonic()
            why = await self._wait_for_death(process)
            self._close()
            uptime_s = time.monotonic() - started
            if uptime_s > self._restarts.reset_after_s:
                self._deaths = 0
            title, log_file = self.plan.title, self.plan.log_file
            log.error("%s %s after %.0f s; restarting it; log: %s", title, why, uptime_s, log_file)
            await process.stop()  # its GPU memory is needed
            process = await self._restart()

    async def _restart(self) -> EngineProcess:
        while True:
            self._deaths += 1
            await asyncio.sleep(self._restarts.pause_s(self._deaths))
            self._start = EngineStart(self.plan)
            try:
                return await self._bring_up()
            except (RollyardError, OSError) as error:
                log.error("%s: %s", self.plan.title, error)

    async def _bring_up(self) -> EngineProcess:
        process = await self._start.run()
        try:
            await self._up(self._start.url)
        except Failure:
            await process.stop()
            raise
        self._failure_reason = ""
        self.is_up = True
        return process

    async def _wait_for_death(self, process: EngineProcess) -> str:
        while not process.ended.done():
            await asyncio.wait([process.ended], timeout=HEALTH_S)
            if not process.ended.done() and (
                failure_cause := self._failure_reason or await self._start.failure_cause()
            ):
                return failure_cause
        return ending(process.ended.result())

    def _close(self) -> None:
        if self.is_up:
            self.is_up = False
            self._start.phase = "cleaning up after an engine that died"
            self._down(self._start.url)


POLL_S = 0.25
REPORT_INTERVAL_S = 15.0
HEALTH_TIMEOUT_S = 5.0
TAIL_LINES = 12
MAX_PORT_ATTEMPTS = 3


@dataclass(frozen=True)
class StartPlan:
    title: str
    settings: LocalVllmModelSettings
    gpus: Sequence[str]
    key: str
    environ: Mapping[str, str]
    log_file: Path
    transport: Transport


class EngineStart:
    def __init__(self, plan: StartPlan) -> None:
        self.phase = FIRST
        self.url = ""
        self._plan = plan
        self._launching: asyncio.Task[EngineProcess] | None = None
        self._started = time.monotonic()
        self._reported_at = self._started
        self._healthy_at = self._started
        self._late = False

    async def run(self) -> EngineProcess:
        """Start the engine and wait until it is ready at `url`.

        If it fails, raises RunError with the cause, or OperatorError if another start would fail again.
        """
        for attempt in range(1, MAX_PORT_ATTEMPTS + 1):
            with reserved_port(self._plan.settings) as port:
                host = self._plan.settings.engine_host
                host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
                self.url = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
                self._launching = asyncio.create_task(self._launch(port))
                process = await asyncio.shield(self._launching)  # `end` needs the task, so it must not be cancelled
                why = await self._until_ready(process)
            if not why:
                log.info("%s is up at %s after %.0f s", self._plan.title, self.url, time.monotonic() - self._started)
                return process
            printed = process.printed()
            await process.stop()
            fixed = self._plan.settings.engine_port is not None
            if cause_of(printed) != PORT_TAKEN or fixed or attempt == MAX_PORT_ATTEMPTS:
                break
        # A signal or a limit that was reached says nothing about the next start.
        exited = process.ended.result() >= 0 and not self._late
        may_pass = any(_TRANSIENT.search(line) for line in printed)
        tail = "\n".join(f"  | {line[:300]}" for line in printed[-TAIL_LINES:])
        happened = f"{self._plan.title} {why} while {self.phase} ({time.monotonic() - self._started:.0f} s)"
        cause = cause_of(printed) or error_of(printed) or "the log shows no known cause"
        detail = f"the last lines of its log:\n{tail}\n{happened}: {cause}\nLog: {self._plan.log_file}"
        raise (OperatorError if exited and not may_pass else RunError)(detail)

    async def end(self) -> None:
        if self._launching is not None:
            process = await self._launching
            await process.stop()

    async def failure_cause(self) -> str:
        """Return why an engine that was ready has failed; empty if it is healthy or merely busy.

        After its EngineCore has died, vLLM returns 503 for another five seconds, or has already closed its port.
        """
        status = await self._health()
        if status >= 500:
            return "has lost its EngineCore"
        if status == 0 and await self._refuses():
            return "no longer listens"
        limit_s, silent_s = self._plan.settings.health_timeout_s, time.monotonic() - self._healthy_at
        return f"has not answered GET /health for {silent_s:.0f} s" if limit_s and silent_s > limit_s else ""

    async def _health(self) -> int:
        try:
            url = self.url.removesuffix("/v1") + "/health"
            status = (await self._plan.transport.send("GET", url, b"", {}, HEALTH_TIMEOUT_S)).status
        except Failure:
            return 0
        if status == 200:
            self._healthy_at = time.monotonic()
        return status

    async def _refuses(self) -> bool:
        """Return True if the connection is refused. A busy engine does not refuse connections."""
        address = urlsplit(self.url)
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                _, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.close()
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            pass
        return False

    async def _launch(self, port: int) -> EngineProcess:
        plan, folder = self._plan, make_folder()
        environ = engine_environment(plan.settings, plan.environ, folder, plan.gpus, plan.key)
        return await EngineProcess.start(serve_arguments(plan.settings, port), environ, folder, plan.log_file)

    async def _until_ready(self, process: EngineProcess) -> str:
        limit_s = self._plan.settings.start_timeout_s
        while True:
            await asyncio.wait([process.ended], timeout=POLL_S)
            self._report_phase(process.news())
            if process.ended.done():
                return ending(process.ended.result())
            if await self._health() == 200:
                return ""
            if limit_s is not None and time.monotonic() - self._started > limit_s:
                self._late = True
                return f"was not ready within start_timeout_s={limit_s:g}"

    def _report_phase(self, lines: Sequence[str]) -> None:
        phase, now = phase_after(lines, self.phase), time.monotonic()
        if kind(phase) != kind(self.phase) or now - self._reported_at > REPORT_INTERVAL_S:
            log.info("%s: %s, %.0f s", self._plan.title, phase, now - self._started)
            self._reported_at = now
        self.phase = phase


def ending(status: int) -> str:
    return f"exited with status {status}" if status >= 0 else f"was killed by signal {-status}"


@contextmanager
def reserved_port(settings: LocalVllmModelSettings) -> Iterator[int]:
    """Reserve the engine's port, or a free port that vLLM can still bind to.

    Linux lets two sockets share an address while neither listens, if both set SO_REUSEADDR, as vLLM does.
    """
    host, port = settings.engine_host, settings.engine_port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port or 0))
        except OSError as error:
            raise RunError(
                f"engine_port: port {port or 0} of {host} cannot be used: {error.strerror}. If a model is already "
                "served there, use it as an endpoint (policy_base_url); otherwise choose another port, or none"
            ) from error
        yield sock.getsockname()[1]


# Determines the startup phase of vLLM from its log. The patterns match vLLM 0.32 and, for the most part, older
# versions.

FIRST = "importing vLLM"
_COUNT = r"\|\s*(\d+/\d+)"
_PHASES = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"non-default args:|Resolved architecture:", "reading the config"),
        (r"Initializing a V1 LLM engine", "starting the engine"),
        (r"Waiting for creating a placement group", "waiting for Ray to find the GPUs"),
        (r"Starting to load model", "loading weights"),
        (r"Loading (?:safetensors|pt) checkpoint shards:.*" + _COUNT, "loading weights {}"),
        (r"Multi-thread loading shards:.*" + _COUNT, "loading weights {}"),
        (r"Loading weights took|Model loading took", "profiling memory"),
        (r"Dynamo bytecode transform time|Compiling a graph for|Directly load the compiled graph", "compiling"),
        (r"torch\.compile (?:and initial profiling|took|takes)|Initial profiling/warmup run took", "profiling memory"),
        (r"Available KV cache memory|KV cache size:", "allocating the KV cache"),
        (r"JIT kernel warmup starting|[Aa]utotun\w+ ", "warming up kernels"),
        (r"Capturing CUDA graphs.*" + _COUNT, "capturing CUDA graphs {}"),
        (r"init engine \(profile, create kv cache, warmup model\) took", "starting the API server"),
        (r"Starting vLLM (?:API )?server", "starting the API server"),
    )
)


def phase_after(lines: Iterable[str], before: str = FIRST) -> str:
    phase = before
    for line in lines:
        for pattern, template in _PHASES:
            if found := pattern.search(line):
                phase = template.format(*found.groups())
                break
    return phase


def kind(phase: str) -> str:
    """Return the phase without its progress: `loading weights` for `loading weights 3/8`."""
    return phase.rstrip("0123456789/ ")


# Determines from vLLM's log why it did not start, and how to fix the problem. Only errors are examined, because vLLM's
# warnings contain many of the same phrases although nothing failed. The patterns match the log lines of vLLM 0.32.

_SMALLER = "lower max_model_len, raise gpu_memory_utilization, or use more GPUs (tensor_parallel_size)"
_GPU_USERS = "nvidia-smi shows what else is on the GPU"
_CAUSES = {
    re.compile(pattern): message
    for pattern, message in {
        r"^cannot start (\S+): (.+)": (
            "the command {0} cannot be started ({1}): install vLLM where this server runs, or set the path to vLLM in "
            "a different environment, vllm_command=[/path/to/bin/vllm]"
        ),
        r"unrecognized arguments: (.+)": (
            "this vLLM does not support {0}: it is too old, or the flag is misspelled. Remove the flag "
            "(enable_scale_out: false, logprobs_mode: null, extra_flags) or update vLLM"
        ),
        r"error: argument (\S+?):? (.+)": "vLLM rejects {0}: {1}",
        r"invalid tool call parser: (\S+) \(chose from \{ ?(.+?) ?\}\)": (
            "tool_call_parser {0} does not exist; available are {1}"
        ),
        r"invalid reasoning parser: (\S+) \(chose from \{ ?(.+?) ?\}\)"
        r"|Reasoning parser '(\S+)' not found. Available parsers: ([^\"]+)": (
            "reasoning_parser {0}{2} does not exist; available are {1}{3}"
        ),
        r"OSError: \[Errno 98\]|error while attempting to bind|DistNetworkError: .*EADDRINUSE": PORT_TAKEN,
        r"Failed to infer device type|No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver": (
            "vLLM finds no GPU: nvidia-smi shows whether the driver sees one, CUDA_VISIBLE_DEVICES whether it is "
            "hidden; without a GPU, install the CPU build of vLLM"
        ),
        r"NVIDIA driver on your system is too old \(found version (\d+)\)": "the GPU's driver ({0}) is too old",
        r"no kernel image is available": "this build of vLLM (or torch) does not support this type of GPU",
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)": (
            "it needs {0} GPUs but finds {1}: lower tensor_parallel_size, or connect hosts with Ray (ray_address)"
        ),
        r"Free memory on device (\S+) \((\S+?)/(\S+?) GiB\) on startup is less than desired GPU memory utilization "
        r"\((\S+?), (\S+?) GiB\)": (
            "{1} of {2} GiB are free on {0}, but gpu_memory_utilization={3} requires {4}: lower it, or end the "
            f"processes that use the rest ({_GPU_USERS})"
        ),
        r"Available memory on node \d+ \((\S+?)/(\S+?) GiB\) on startup is less than desired CPU memory utilization "
        r"\((\S+?), (\S+?) GiB\)": (
            "{0} of {1} GiB of memory are free, but gpu_memory_utilization={2} (on a CPU, a fraction of its memory) "
            "requires {3}: lower it, or set the KV cache size, extra_flags={{kv_cache_memory_bytes: 4294967296}}"
        ),
        r"max seq len \((\d+)\), \((\S+?) GiB KV cache is needed, which is larger than the available KV cache memory "
        r"\((\S+?) GiB\)": (
            "a conversation of max_model_len={0} needs {1} GiB of KV cache, but only {2} GiB are available: " + _SMALLER
        ),
        r"No available memory for the cache blocks": f"the model leaves no memory for a KV cache: {_SMALLER}",
        r"CUDA out of memory|OutOfMemoryError": f"the GPU ran out of memory: {_SMALLER}; {_GPU_USERS}",
        r"max_model_len \((\d+)\) is greater than the derived max_model_len \((.+?)\)": (
            "max_model_len={0} exceeds what the model supports ({1}): lower it"
        ),
        r"GatedRepoError|gated repo|Access to model .+ is restricted|40[13] Client Error": (
            "the hub denies access to the model: accept its licence on its page, and set HF_TOKEN (environment or "
            "`hf auth login`)"
        ),
        r"OfflineModeIsEnabled|LocalEntryNotFoundError|offline mode is enabled|couldn't connect to": (
            "the model is not on this disk and the hub cannot be reached (or HF_HUB_OFFLINE is set): download it "
            "first, or set model to its folder"
        ),
        r"RepositoryNotFoundError|404 Client Error|not a valid model identifier|Repo id must|HFValidationError"
        r"|Invalid repository ID or local directory": (
            "the model is neither a folder with a config.json nor the name of a hub model: check model (and HF_TOKEN, "
            "if it is private)"
        ),
        r"Cannot find any model weights with `(.+?)`": "{0} contains no weights (*.safetensors)",
        r"Model architectures \[(.+?)\] (?:are not supported|failed to be inspected)|model type `(.+?)` but": (
            "this vLLM does not support the model's architecture: try a newer vLLM"
        ),
        r"Can't load tokenizer|backend tokenizer|Tokenizer class .+ does not exist": (
            "the model's folder contains no readable tokenizer: copy its tokenizer files there, or set "
            "extra_flags={{tokenizer: FOLDER}}"
        ),
        r"chat template (?:string|path).*doesn't exist": "the chat template that extra_flags names does not exist",
        r"Failed to import Ray|No module named 'ray'": "ray_address requires the package ray in vLLM's environment",
        r"Cannot provide a placement group|has no GPU available|Current node has no": (
            "the Ray cluster does not have enough free GPUs (`ray status` shows them), or none on this host"
        ),
        r"Could not find any running Ray instance|Failed to connect to (?:the )?(?:Ray|GCS)|ray\.init.*failed": (
            "no Ray cluster responds at ray_address"
        ),
        r"ncclSystemError|ncclUnhandledCudaError|NCCL error": (
            "the GPUs cannot communicate with each other: environment={{NCCL_DEBUG: INFO}} shows more"
        ),
        r"Timed out waiting for engine core processes to start": (
            "loading takes longer than VLLM_ENGINE_READY_TIMEOUT_S: unset it, so that start_timeout_s applies"
        ),
        r"No space left on device": "a disk (or /dev/shm) is full",
        r"No module named '(.+?)'|No package metadata was found for (\S+)": "vLLM's environment lacks a package",
    }.items()
}
_TRANSIENT = re.compile(
    r"EADDRINUSE|Errno 98|error while attempting to bind|out of memory|OutOfMemoryError|Free memory on device"
    r"|Available memory on node|No space left on device|Timed out|[Tt]imeout|ConnectionError"
    r"|Connection (?:reset|refused)|Temporary failure in name resolution|(?:429|50[0234]) (?:Client|Server) Error"
    r"|NCCL|nccl|placement group"
)
"""Errors that may go away: a port or memory that another program uses, the network."""
_HARMLESS = re.compile(r"^(?:\([^)]*\) )?(?:INFO|WARNING|DEBUG) ")
_PREFIX = re.compile(r"^\([^)]*\) (?:ERROR [^\]]*\] ?)?")
_ERROR = re.compile(r"^\s*(?:\w+\.)*\w+(?:Error|Exception|Exit): .+")
_DERIVED = re.compile(r"[Ss]ee (?:root cause|stack trace)|initialization failed|EngineDeadError")


def cause_of(lines: Sequence[str]) -> str | None:
    errors = list(_errors(lines))
    for pattern, message in _CAUSES.items():
        for line in errors:
            if found := pattern.search(line):
                return message.format(*(group or "" for group in found.groups()))
    return None


def error_of(lines: Sequence[str]) -> str | None:
    """Return the last error that does not merely refer to an error in a different process; None if there is none."""
    own = [line for line in _errors(lines) if _ERROR.match(line) and not _DERIVED.search(line)]
    return own[-1].strip() if own else None


def _errors(lines: Sequence[str]) -> Iterator[str]:
    return (_PREFIX.sub("", line) for line in lines if not _HARMLESS.match(line))

"""The servers that a training run plays on: those of a running stack, or its own, which it starts and stops."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.errors import Failure, OperatorError, RunError, did_you_mean
from rollyard.records.gpus import present_gpus
from rollyard.records.run_types import HeadFile, Keys
from rollyard.services.config.overrides import title
from rollyard.services.head.registry_client import RegistryClient, run_id_of
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.transport import HttpResponse, HttpTransport, Transport
from rollyard.services.rollouts.collection import StackClients
from rollyard.services.runtime.program import Program, ended_badly, until_ready
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.server_configs import server_configs
from rollyard.training.train_config import TrainConfig
from rollyard.training.weight_publisher import PolicyClient


@dataclass(frozen=True, slots=True)
class TrainingStack:
    """A running stack whose policy server has `trainer_endpoints`."""

    clients: StackClients
    """Clients of its servers and of its head."""
    policy_url: str
    """Address of the policy's model server, without a path."""
    token: str | None
    """Run token; None if the stack has none."""
    policy_servers: frozenset[str]
    """Names of the model servers through which agents call the policy."""


TOKEN = "ROLLYARD_TOKEN"
STATUS_S = 30.0
FOLLOW_S = 0.5
_LEFT_OUT = ("run ", "logs in ", "All ")
"""Lines of `ng_run` that say what this module says itself."""


@asynccontextmanager
async def training_stack(
    config: TrainConfig,
    paths: TrainingPaths,
    environ: Mapping[str, str],
    model_folder: Path,
    *,
    print_line: Callable[[str], None],
) -> AsyncIterator[TrainingStack]:
    """Connect to the stack at `config.head`, or start one, whose engine loads `model_folder` first.

    A started stack is stopped at the end. If it ends earlier, every call to one of its servers raises RunError with
    the last lines of its log. Raises OperatorError or RunError if the stack cannot be used.
    """
    if config.head is not None:
        head = _named_head(config.head, environ)
        async with _connected(config, head, None) as stack:
            print_line(f"  servers    running at {head.url}")
            yield stack
        return
    here, token = Path.cwd(), environ.get(TOKEN) or secrets.token_urlsafe(32)
    configs = server_configs(config, str(model_folder), present_gpus(environ), environ, here)
    command = configs.command(config, paths.root / "policy_server.yaml", paths.logs)
    program = await Program.start(
        "ng_run", command, paths.logs / "ng_run.log", {**environ, TOKEN: token}, here, title(command)
    )
    try:
        print_line(f"  servers    starting, logs in {paths.logs}")
        messages = _Messages(print_line)
        head = await until_ready(program, here, messages.show)
        async with _connected(config, head.model_copy(update={"token": token}), program) as stack:
            print_line(f"  servers    ready, head at {head.url}")
            following = asyncio.create_task(messages.follow(program))
            try:
                yield stack
            finally:
                following.cancel()
    finally:
        await program.stop()


async def agents_of_head(config: TrainConfig, environ: Mapping[str, str]) -> list[str]:
    """Return the agents of the running stack at `config.head`. Raises OperatorError or RunError if it is unusable."""
    assert config.head is not None
    async with _connected(config, _named_head(config.head, environ), None) as stack:
        directory = await stack.clients.client.book.current()
    return sorted(name for name, family in directory.families.items() if family == "agents")


def _named_head(address: str, environ: Mapping[str, str]) -> HeadFile:
    url = (address if "://" in address else f"http://{address}").rstrip("/")
    return HeadFile(run_id="", url=url, pid=0, token=environ.get(TOKEN))


class _Messages:
    """Repeats what `ng_run` prints about its servers, such as that one has died and is started again."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._shown = 0

    def show(self, printed: str) -> None:
        """Repeat the lines that are new in the output so far."""
        lines = printed.splitlines(keepends=True)
        for line in lines[self._shown :]:
            if not line.endswith("\n"):
                break
            self._shown += 1
            if not line.startswith(_LEFT_OUT):
                self._print_line(f"    {line.strip()}")

    async def follow(self, program: Program) -> None:
        while program.running:
            self.show(program.printed())
            await asyncio.sleep(FOLLOW_S)


@asynccontextmanager
async def _connected(config: TrainConfig, head: HeadFile, program: Program | None) -> AsyncIterator[TrainingStack]:
    lag = LoopLag()
    http = HttpTransport(lag=lag)
    transport: Transport = http if program is None else ProgramTransport(http, program)
    try:
        if not head.run_id:
            head = await _identified(http, head)
        keys = Keys(run_id=head.run_id, secret="", token=head.token)
        registry = RegistryClient(transport, head.url, keys)
        client = ServerClient(transport, keys, AddressBook(registry.directory), clock=lag.now)
        url = await _policy_url(config, client)
        await _check_trainer_endpoints(config, PolicyClient(transport, url, head.token))
        yield TrainingStack(
            clients=StackClients(client, registry),
            policy_url=url,
            token=head.token,
            policy_servers=frozenset({config.policy_server}),
        )
    except (Failure, RunError) as error:
        if program is not None and not program.running:
            raise RunError(ended_badly(program)) from error
        raise
    finally:
        await http.close()


async def _identified(transport: HttpTransport, head: HeadFile) -> HeadFile:
    try:
        return head.model_copy(update={"run_id": await run_id_of(transport, head)})
    except Failure as failure:
        raise OperatorError(f"head={head.url} cannot be used: {failure.problem.detail}") from failure


async def _policy_url(config: TrainConfig, client: ServerClient) -> str:
    directory = await client.book.refresh()
    name = config.policy_server
    if directory.families.get(name) != "responses_api_models":
        models = sorted(one for one, family in directory.families.items() if family == "responses_api_models")
        raise OperatorError(
            f"policy_server={name} is not a model server of the stack{did_you_mean(name, models)} "
            f"(available: {', '.join(models) or 'none'})"
        )
    if not directory.servers[name]:
        raise RunError(f"{name} has no ready instance at the moment")
    return directory.servers[name][0]


async def _check_trainer_endpoints(config: TrainConfig, client: PolicyClient) -> None:
    """Raise OperatorError if the policy's weights cannot be updated."""
    try:
        await client.status(STATUS_S)
    except Failure as failure:
        raise OperatorError(f"{config.policy_server} cannot be trained: {failure.problem.detail}") from failure


class ProgramTransport:
    """Sends requests until the program has ended, and then raises RunError with the last lines of its log.

    Otherwise, every episode would be retried on servers that no longer exist.
    """

    def __init__(self, transport: Transport, program: Program) -> None:
        self._transport = transport
        self._program = program

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpResponse:
        self._check()
        try:
            return await self._transport.send(method, url, body, headers, timeout_s)
        except Failure:
            self._check()
            raise

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        self._check()
        return await self._transport.stream(method, url, body, headers, timeout_s)

    async def close(self) -> None:
        await self._transport.close()

    def _check(self) -> None:
        if not self._program.running:
            raise RunError(f"the servers are gone: {ended_badly(self._program)}")

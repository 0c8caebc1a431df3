"""NeMo Gym's stacks under Rollyard's commands: NemoGymHead reads the servers of a stack from its head.

NeMo Gym's head serves its merged config and the list of the processes that it started. It has no run id, does not know
whether a server is ready or which code it runs, and accepts no reports.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from rollyard.records.activity import Collection
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import Directory, HeadFile, Keys, ServerCode, ServerInstance
from rollyard.records.types import Json, Record
from rollyard.services.config.nemo_gym import ENVIRONMENT_SERVERS, fronted_agent
from rollyard.services.config.plugins import FAMILIES, FAMILY_ALIASES
from rollyard.services.config.run_config import servers_named
from rollyard.services.head.registry_client import Registry, RegistryClient, RunSnapshot, StackClients, run_id_of
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.request import raise_for_status, with_server
from rollyard.services.http.transport import HttpTransport, Transport

if TYPE_CHECKING:
    from rollyard.services.http.otel import Telemetry
from rollyard.services.server.settings import is_secret, redacted, without_credentials, without_secrets

DEADLINE_S = 10.0
NOTE = (
    "note: the head at {url} is NeMo Gym's, which does not report the code of its servers: a resumed collection is "
    "refused if their settings have changed, but not if their code has"
)
_NOT_IDENTITY = frozenset({"host", "port", "url", "num_workers", "datasets", "entrypoint"})
"""Settings that do not affect rollouts. Ports change with every start."""
_ANY_ADDRESS = ("0.0.0.0", "::", "")


class NemoGymProcess(Record):
    """An entry of `/server_instances`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    process_name: str
    server_type: str
    name: str
    dir_path: str | None = None
    entrypoint: str | None = None
    host: str | None = None
    port: int | None = None
    url: str | None = None
    pid: int | None = None
    start_time: float | None = None


_PROCESSES = TypeAdapter(list[NemoGymProcess])


class NemoGymHead:
    """Reads from the head at `url`. The methods raise Failure if it does not respond as NeMo Gym's head does."""

    def __init__(self, transport: Transport, url: str, token: str | None = None) -> None:
        """`token`: the run token of a Rollyard head, which serves the same two endpoints."""
        self._transport = transport
        self._url = url
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    async def directory(self) -> Directory:
        """Return the servers in the head's config. Each counts as ready: a call to one that is not waits for it."""
        tree = await self.config()
        found = {str(name): server for name, node in tree.items() if (server := _server_of(node))}
        urls = {name: self._url_of(raw) for name, (_, _, raw) in found.items()}
        urls |= {name: self._url_of(raw) for name, raw in _environment_servers(tree, found)}
        return Directory(
            run_id="",
            servers={name: [url] for name, url in urls.items()},
            foreign={url: name for name, url in urls.items()},
            families={name: family for name, (family, _, _) in found.items()},
            settings=without_secrets(
                {
                    name: {"implementation": f"{family}/{implementation}", **_identity(raw)}
                    for name, (family, implementation, raw) in found.items()
                },
                of=tree,
            ),
            references={name: servers_named(raw, found) for name, (_, _, raw) in found.items()},
        )

    async def code(self) -> dict[str, ServerCode]:
        """Return {}: the servers' code is unknown."""
        return {}

    async def report_collection(self, collection: Collection) -> None:
        """Do nothing: the head accepts no reports. `X_status.json` shows the status of the collection."""

    async def processes(self) -> list[NemoGymProcess]:
        """Return the processes that the stack started, whether or not they still run."""
        body = await self._get("/server_instances")
        try:
            return _PROCESSES.validate_json(body)
        except ValidationError as error:
            raise self._malformed("/server_instances", body) from error

    async def config(self) -> Json:
        """Return the merged config, with references resolved where possible."""
        body = await self._get("/global_config_dict_yaml")
        # Commands read a NeMo Gym head rarely, and these two take a tenth of their start.
        from omegaconf import DictConfig, OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError

        try:
            tree = OmegaConf.create(orjson.loads(body))
        except (ValueError, TypeError, YAMLError, OmegaConfBaseException, AssertionError) as error:
            raise self._malformed("/global_config_dict_yaml", body) from error
        if not isinstance(tree, DictConfig):
            raise self._malformed("/global_config_dict_yaml", body)
        try:
            plain = OmegaConf.to_container(tree, resolve=True)
        except OmegaConfBaseException:  # a value that only their process can resolve
            plain = OmegaConf.to_container(tree, resolve=False)
        assert isinstance(plain, dict)
        return {str(key): value for key, value in plain.items()}

    def _url_of(self, raw: Json) -> str:
        if isinstance(url := raw.get("url"), str):
            return url
        host = str(raw["host"])
        if host in _ANY_ADDRESS:
            host = urlsplit(self._url).hostname or "127.0.0.1"
        return f"http://[{host}]:{raw['port']}" if ":" in host else f"http://{host}:{raw['port']}"

    async def _get(self, path: str) -> bytes:
        try:
            response = await self._transport.send("GET", self._url + path, b"", self._headers, DEADLINE_S)
            return raise_for_status(response, "head").body
        except Failure as failure:
            raise with_server(failure, "head") from failure

    def _malformed(self, path: str, body: bytes) -> Failure:
        excerpt = without_credentials(body[:200].decode("utf-8", "replace"))
        detail = f"the response of {self._url}{path} is not that of a NeMo Gym head: {excerpt!r}"
        return Failure(FailureKind.MALFORMED_ANSWER, detail, server="head")


def _server_of(node: Any) -> tuple[str, str, Json] | None:
    """Return the family, implementation and settings of a server instance; None for any other entry of the config."""
    if not isinstance(node, dict):
        return None
    for key, implementations in node.items():
        family = FAMILY_ALIASES.get(key, key)
        if family not in FAMILIES or not isinstance(implementations, dict):
            continue
        for implementation, raw in implementations.items():
            if isinstance(raw, dict) and raw.get("host") is not None and raw.get("port"):
                return family, str(implementation), raw
    return None


def _environment_servers(tree: Json, servers: Container[str]) -> Iterator[tuple[str, Json]]:
    """Yield each agent whose episodes an environment server plays, and the settings of that server.

    `legacy_agent` only passes requests on to its agent, which is called without it.
    """
    for node in tree.values():
        below = node.get(ENVIRONMENT_SERVERS) if isinstance(node, dict) else None
        for implementation, raw in below.items() if isinstance(below, dict) else ():
            if (
                implementation == "legacy_agent"
                or not isinstance(raw, dict)
                or not (raw.get("host") and raw.get("port"))
            ):
                continue
            if (agent := fronted_agent(raw)) in servers:
                yield agent, raw


def _identity(raw: Json) -> Json:
    return {
        key: redacted(value)
        for key, value in raw.items()
        if key not in _NOT_IDENTITY and not key.endswith("base_url") and not is_secret(key)
    }


PROBE_DEADLINE_S = 2.0


async def fetch_nemo_gym_snapshot(transport: Transport, head: HeadFile) -> RunSnapshot:
    """Fetch the list of servers and probe each one. Raises Failure if the head does not respond.

    A server is ready if it responds to `GET /` with any status, because only liveness can be read from it.
    """
    processes = await NemoGymHead(transport, head.url).processes()
    servers = await asyncio.gather(*(_instance(transport, process) for process in processes))
    return RunSnapshot(stack="nemo_gym", head=head.url, time=time.time(), servers=list(servers))


async def _instance(transport: Transport, process: NemoGymProcess) -> ServerInstance:
    ready, timed_out = False, False
    if process.url is not None:
        try:
            await transport.send("GET", f"{process.url}/", b"", {}, PROBE_DEADLINE_S)
            ready = True
        except Failure as failure:
            timed_out = failure.kind is FailureKind.TIMEOUT
    return ServerInstance(
        process_name=process.process_name,
        server_type=FAMILY_ALIASES.get(process.server_type, process.server_type),
        name=process.name,
        server_name=process.process_name,
        dir_path=process.dir_path or "",
        entrypoint=process.entrypoint or "",
        host=process.host,
        port=process.port,
        pid=process.pid,
        config_path=process.process_name,
        url=process.url,
        status="success" if ready else "timeout" if timed_out else "connection_error",
        start_time=process.start_time or 0.0,
        uptime_seconds=time.time() - process.start_time if process.start_time and ready else 0.0,
        ready=ready,
        requests=0,
        in_flight=0,
        sessions=0,
        restarts=0,
    )


def clients_of(
    head: HeadFile,
    transport: HttpTransport,
    lag: LoopLag,
    on_directory: Callable[[Directory], None] = lambda directory: None,
    telemetry: Telemetry | None = None,
) -> StackClients:
    """Return clients for the stack of `head`. `on_directory` is called with each directory that they fetch."""
    keys = Keys(run_id=head.run_id, secret="", token=head.token)
    is_foreign = head.stack == "nemo_gym"
    registry: Registry = NemoGymHead(transport, head.url) if is_foreign else RegistryClient(transport, head.url, keys)

    async def fetch() -> Directory:
        directory = await registry.directory()
        on_directory(directory)
        return directory

    traced = telemetry.transport(transport) if telemetry else transport
    return StackClients(ServerClient(traced, keys, AddressBook(fetch), clock=lag.now), registry)


async def identify_head(transport: HttpTransport, head: HeadFile, *, nemo_gym: bool) -> HeadFile:
    """Return `head` with the id of its run, or as the head of a NeMo Gym stack. Raises Failure if it is neither."""
    try:
        return head.model_copy(update={"run_id": await run_id_of(transport, head)})
    except Failure as failure:
        if not nemo_gym or failure.kind is not FailureKind.WRONG_RUN:
            raise
        foreign = NemoGymHead(transport, head.url)
        try:
            await foreign.directory()
            await foreign.processes()
        except Failure:
            raise failure from None
        return head.model_copy(update={"stack": "nemo_gym", "token": None})

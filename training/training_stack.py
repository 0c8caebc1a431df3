"""The servers that a training run plays on: those of a running stack, or its own, which it starts and stops."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rollyard.records.errors import Failure, OperatorError, RunError, did_you_mean
from rollyard.records.gpus import present_gpus
from rollyard.records.jsonl import replace
from rollyard.records.run_types import HeadFile, Keys
from rollyard.records.script import own_command
from rollyard.records.types import Json
from rollyard.records.variables import variable
from rollyard.services.config.load import find_config, load, read_yaml
from rollyard.services.config.overrides import as_override, parse_overrides, title
from rollyard.services.config.plugins import search_roots
from rollyard.services.config.run_config import RunConfig
from rollyard.services.head.registry_client import RegistryClient, StackClients, run_id_of
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.program import ServerProgram, ended_badly, until_ready
from rollyard.training.run_folder import TrainingPaths
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
    """Connect to the stack at `config.head`, or start one, whose engine loads `model_folder` first, and stop it at the
    end. If it ends earlier, every call to one of its servers raises RunError with the last lines of its log.

    Raises OperatorError or RunError if the stack cannot be used.
    """
    if config.head is not None:
        head = HeadFile.at(config.head, variable(environ, TOKEN))
        async with _connected(config, head, None) as stack:
            print_line(f"  servers    running at {head.url}")
            yield stack
        return
    here, token = Path.cwd(), variable(environ, TOKEN) or secrets.token_urlsafe(32)
    configs = server_configs(config, str(model_folder), present_gpus(environ), environ, here)
    command = configs.command(config, paths.root / "policy_server.yaml", paths.logs)
    program = await ServerProgram.start(
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
    async with _connected(config, HeadFile.at(config.head, variable(environ, TOKEN)), None) as stack:
        directory = await stack.clients.client.book.current()
    return sorted(name for name, family in directory.families.items() if family == "agents")


class _Messages:
    """Repeats what `ng_run` prints about its servers, such as that one has died and is started again."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._shown = 0

    def show(self, printed: str) -> None:
        """Repeat the lines that are new in the output so far, except one that is not complete."""
        for line in printed[: printed.rfind("\n") + 1].splitlines()[self._shown :]:
            self._shown += 1
            if not line.startswith(_LEFT_OUT):
                self._print_line(f"    {line.strip()}")

    async def follow(self, program: ServerProgram) -> None:
        while program.running:
            self.show(program.printed())
            await asyncio.sleep(FOLLOW_S)


@asynccontextmanager
async def _connected(
    config: TrainConfig, head: HeadFile, program: ServerProgram | None
) -> AsyncIterator[TrainingStack]:
    lag = LoopLag()
    transport = HttpTransport(lag=lag) if program is None else ProgramTransport(program, lag)
    try:
        if not head.run_id:
            try:
                head = head.model_copy(update={"run_id": await run_id_of(transport, head)})
            except Failure as failure:
                raise OperatorError(f"head={head.url} cannot be used: {failure.problem.detail}") from failure
        keys = Keys(run_id=head.run_id, secret="", token=head.token)
        registry = RegistryClient(transport, head.url, keys)
        client = ServerClient(transport, keys, AddressBook(registry.directory), clock=lag.now)
        url = await _policy_url(config, client)
        try:
            await PolicyClient(transport, url, head.token).status(STATUS_S)
        except Failure as failure:
            raise OperatorError(f"{config.policy_server} cannot be trained: {failure.problem.detail}") from failure
        yield TrainingStack(StackClients(client, registry), url, head.token, frozenset({config.policy_server}))
    except (Failure, RunError) as error:
        if program is not None and not program.running:
            raise RunError(ended_badly(program)) from error
        raise
    finally:
        await transport.close()


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


class ProgramTransport(HttpTransport):
    """Sends requests until the program has ended, and then raises RunError with the last lines of its log.

    Otherwise, every episode would be retried on servers that no longer exist.
    """

    def __init__(self, program: ServerProgram, lag: LoopLag) -> None:
        super().__init__(lag=lag)
        self._program = program

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, channel: bool = False
    ) -> HttpResponse:
        self._check()
        try:
            return await super().send(method, url, body, headers, timeout_s, channel)
        except Failure:
            self._check()
            raise

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        self._check()
        return await super().stream(method, url, body, headers, timeout_s)

    def _check(self) -> None:
        if not self._program.running:
            raise RunError(f"the servers are gone: {ended_badly(self._program)}")


_HEADER = "# Written by ng_train: the policy's model server. The run's config_paths and overrides take precedence.\n"


@dataclass(frozen=True)
class ServerConfigs:
    policy: Json | None
    """The model server of the policy; None if the user's configs define it."""
    paths: tuple[str, ...]
    """Config files of the environments, and the user's."""
    overrides: tuple[str, ...]
    run_config: RunConfig

    def command(self, config: TrainConfig, policy_file: Path, logs: Path) -> list[str]:
        """Return the `ng_run` of these servers, after writing the config of the policy."""
        paths = list(self.paths)
        if self.policy is not None:
            policy_file.parent.mkdir(parents=True, exist_ok=True)
            replace(policy_file, (_HEADER + yaml.safe_dump(self.policy, sort_keys=False)).encode())
            paths.insert(0, str(policy_file.absolute()))
        options = {
            "config_paths": paths,
            "head_port": 0,
            "private": True,
            "log_folder": str(logs.absolute()),
            "ready_timeout_s": config.ready_timeout_s,
        }
        if config.ray_head_node_address is not None:
            options["ray_head_node_address"] = config.ray_head_node_address
        given = [as_override(key, value) for key, value in options.items()]
        return own_command("ng_run", *given, *self.overrides)


def server_configs(
    config: TrainConfig, model: str, gpus: Sequence[str] | None, environ: Mapping[str, str], here: Path
) -> ServerConfigs:
    """Return the configs of the servers that `config` names. Raises OperatorError if they are invalid.

    `model`: the folder or hub name that the engine starts with. `gpus`: the GPUs of this host, None if it has none.
    """
    roots = search_roots(here)
    environments = [f"resources_servers/{name}/configs/{name}.yaml" for name in config.environments]
    paths = tuple(dict.fromkeys([*environments, *config.config_paths]))
    if not paths:
        raise OperatorError("no environment given; expected --environments gsm8k or --config-paths [...]")
    files = [read_yaml(find_config(path, roots)) for path in paths]
    families = [file.get(config.policy_server, {}).get("responses_api_models", {}) for file in files]
    policy = None
    # A file that only changes settings of the policy's server has no entrypoint.
    if not any("entrypoint" in settings for family in families for settings in family.values()):
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            port = int(listener.getsockname()[1])
        policy = policy_config(config, model, gpus, port=port, trainers=trainer_processes(config))
    given: list[str | Json] = [*([] if policy is None else [policy]), *paths]
    run_config = load(given, parse_overrides(config.overrides), roots, environ)
    overrides = (*config.overrides, *trainer_overrides(run_config, config.policy_server))
    run_config = load(given, parse_overrides(overrides), roots, environ)
    return ServerConfigs(policy, paths, overrides, run_config)


def trainer_processes(config: TrainConfig) -> int:
    """Return the number of processes that accelerate's config file starts on this host; 1 without such a file."""
    path = config.optimizer.accelerate_config
    return 1 if path is None else int(read_yaml(path).get("num_processes") or 1)


IMPLEMENTATIONS = ("local_vllm_model", "vllm_model")
"""Model servers whose weights a trainer can update."""
_SHARED_GPU = 0.4
"""Share of a GPU's memory for the engine if the trainer uses the same GPU."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM (0.32) accepts as --max-lora-rank."""
_CPU_CACHE_BYTES = 1 << 30
"""Otherwise, vLLM takes most of the host's memory for its KV cache."""
_CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # vLLM would pin its threads to cores that the trainer uses, too
    "TORCHDYNAMO_DISABLE": "1",  # otherwise the first log-probabilities compile for half a minute
}


def policy_config(config: TrainConfig, model: str, gpus: Sequence[str] | None, *, port: int, trainers: int = 1) -> Json:
    """Return the config of a `local_vllm_model` that serves `model`, a folder or a hub name.

    `gpus`: the GPUs of this host; None if there are none. The first `trainers` of them are left to the trainer's
    processes, except on a Ray cluster. The port is fixed, because the trainer calls a model server that restarts at the
    same address.
    """
    settings: dict[str, Any] = {
        "entrypoint": "app.py",
        "port": port,
        "model": model,
        "served_model_name": "policy",
        "dtype": config.optimizer.dtype,
        "tool_call_parser": "hermes",
        "uses_reasoning_parser": False,
        # The grammar of a strict tool changes the distribution that tokens are sampled from.
        "strict_tools": False,
        "trainer_endpoints": True,
        "return_token_id_information": True,
    }
    beside = Path(sys.executable).with_name("vllm")
    if beside.is_file():  # an environment that is not activated is not on the PATH
        settings["vllm_command"] = [str(beside)]
    flags: dict[str, Any] = {}
    if (lora := config.optimizer.lora) is not None:
        flags |= {"enable_lora": True, "max_lora_rank": next(rank for rank in _RANKS if rank >= lora.rank)}
    if gpus is None:
        settings |= {"environment": _CPU_ENVIRONMENT, "resources": {"num_gpus": 0}}
        flags |= {"enforce_eager": True, "kv_cache_memory_bytes": _CPU_CACHE_BYTES}
    elif config.ray_head_node_address is not None:
        pass  # the engine reserves GPUs of the cluster, perhaps on another host
    elif len(gpus) <= trainers:
        settings |= {"gpus": [gpus[-1]], "gpu_memory_utilization": _SHARED_GPU}
    else:
        settings |= {"gpus": list(gpus[trainers:]), "engine_replicas": len(gpus) - trainers}
    if flags:
        settings["extra_flags"] = flags
    return {config.policy_server: {"responses_api_models": {"local_vllm_model": settings}}}


def trainer_overrides(run_config: RunConfig, policy_server: str) -> tuple[str, ...]:
    """Return the overrides with which a model server of the user's own configs can be trained.

    Raises OperatorError if it cannot.
    """
    models = [spec for spec in run_config.servers if spec.family == "responses_api_models"]
    spec = next((one for one in models if one.name == policy_server), None)
    if spec is None:
        names = [one.name for one in models]
        raise OperatorError(
            f"policy_server={policy_server} is not a model server of the configs{did_you_mean(policy_server, names)} "
            f"(available: {', '.join(names) or 'none'})"
        )
    if spec.implementation not in IMPLEMENTATIONS:
        raise OperatorError(
            f"{policy_server} is a {spec.implementation}, whose weights cannot be updated; expected one of "
            f"{', '.join(IMPLEMENTATIONS)}. Without a model server in config_paths, ng_train starts one"
        )
    prefix = f"{policy_server}.responses_api_models.{spec.implementation}"
    return tuple(
        f"+{as_override(f'{prefix}.{name}', True)}" for name in ("trainer_endpoints", "return_token_id_information")
    )

"""RunHelper: starts the servers of a trainer's environments, watches them and stops them.

trainer_config merges the config of such a run, and get_global_config_dict returns it in NeMo Gym's form.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from rollyard.interop.nemo_gym.collection_helper import (
    HEAD_SERVER_KEY_NAME,
    BaseServerConfig,
    CollectionSettings,
    GlobalConfigDictParserConfig,
)
from rollyard.interop.nemo_gym.path_entry import path_entry
from rollyard.records.errors import Failure, OperatorError, RunError
from rollyard.records.run_types import ServerInstance
from rollyard.records.types import Json
from rollyard.records.variables import variable
from rollyard.services.config.load import config_files, load, read_yaml
from rollyard.services.config.plugins import FAMILIES, FAMILY_ALIASES, search_roots
from rollyard.services.config.run_config import RunConfig
from rollyard.services.head.registry_client import fetch_instances
from rollyard.services.runtime.run_dir import running_heads
from rollyard.services.runtime.running_stack import RunningStack, StackAccess, started
from rollyard.training.trl.stack_session import LoopThread

READY_TIMEOUT_S = 1800.0
"""An engine may load its model while the servers start."""
_MAX_LINES = 20


class RunHelper:
    """The servers of a run, for programs that are not asynchronous. The head runs in a thread of this process."""

    def __init__(self, *, server_roots: Sequence[str | Path] = (), ready_timeout_s: float = READY_TIMEOUT_S) -> None:
        """`server_roots`: folders in which servers are looked for, besides the working directory and Rollyard's."""
        self._roots = server_roots
        self._ready_timeout_s = ready_timeout_s
        self._loop: LoopThread | None = None
        self._stack: RunningStack | None = None
        self._restarts: dict[str, int] = {}
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        """The latest lines about servers that exited."""

    def start(self, global_config_dict_parser_config: GlobalConfigDictParserConfig) -> None:
        """Start all servers and return once they are ready.

        Raises OperatorError if the config is invalid, and RunError if a server does not start. Nothing is left running.
        """
        if self._loop is not None:
            raise RunError("this RunHelper is already running: call shutdown first")
        here = Path.cwd()
        roots = search_roots(here, self._roots)
        config = trainer_config(global_config_dict_parser_config, roots, os.environ)
        self._stack = RunningStack(lambda: self._started(config, here))
        self._loop = LoopThread("rollyard-run-helper")
        try:
            self._loop.run(self._stack.start())
            port = int(self._stack.head_url.rpartition(":")[2])
            if config.head_port not in (0, port):
                raise RunError(
                    f"port {config.head_port} of head_server is taken, and the trainer expects the head there: "
                    "set head_server.port to a free port"
                )
        except BaseException:
            self.shutdown()
            raise

    def poll(self) -> None:
        """Raise RuntimeError if a server is not running, or has been restarted since the last call.

        Rollyard restarts a server that exits, and repeats the rollouts that it interrupted: only the first call after
        such a death raises, and later ones while the server is not ready.
        """
        if self._loop is None or self._stack is None:
            raise RuntimeError("the servers are not running: call start first")
        try:
            instances = self._loop.run(self._instances())
        except (Failure, RunError) as error:
            raise RuntimeError(f"the head does not respond: {error}") from None
        dead = [f"{one.process_name} is not ready ({one.status})" for one in instances if not one.ready]
        restarts = {one.server_name: one.restarts for one in instances}
        again = [name for name, count in restarts.items() if count > self._restarts.get(name, 0)]
        self._restarts = restarts
        dead += [f"{name} exited and was restarted" for name in again]
        if dead:
            raise RuntimeError("; ".join([*dead, *self._lines]))
        self._lines.clear()

    def shutdown(self) -> None:
        """Stop all servers. Idempotent."""
        loop, stack = self._loop, self._stack
        self._loop = self._stack = None
        self._restarts = {}
        if loop is not None and stack is not None:
            try:
                loop.run(stack.stop())
            finally:
                loop.close()

    async def _instances(self) -> list[ServerInstance]:
        assert self._stack is not None
        access = self._stack.access
        return await fetch_instances(access.clients.client.transport, access.head)

    def _started(self, config: TrainerConfig, here: Path) -> AbstractAsyncContextManager[StackAccess]:
        return started(
            config.run,
            colocate=False,
            folder=here,
            token=variable(os.environ, "ROLLYARD_TOKEN"),
            head_port=config.head_port,
            ready_timeout_s=self._ready_timeout_s,
            environ=_without_path_entry(os.environ),
            print_line=self._print_line,
        )

    def _print_line(self, text: str) -> None:
        if " exited (" in text or "cannot be started" in text:
            self._lines.append(text)
        print(text, flush=True)


def _without_path_entry(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for servers, in which `nemo_gym` is NVIDIA's package if it is installed."""
    entries = environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in entries if entry and Path(entry).resolve() != Path(path_entry())]
    others = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    return {**others, "PYTHONPATH": os.pathsep.join(kept)} if kept else others


PATHS_KEY = "config_paths"
DEFAULT_HEAD_PORT = 11000


@dataclass(frozen=True)
class TrainerConfig:
    run: RunConfig
    head_port: int
    settings: CollectionSettings


def trainer_config(
    given: GlobalConfigDictParserConfig, roots: Sequence[Path], environ: Mapping[str, str]
) -> TrainerConfig:
    """Merge and check the config. Raises OperatorError if it is invalid, or needs what Rollyard does not have.

    Settings of how NeMo Gym places and connects its servers, such as `default_host` and `uv_venv_dir`, have no effect:
    the servers listen on free ports of 127.0.0.1.
    """
    if not given.skip_load_from_cli:
        raise OperatorError(
            "skip_load_from_cli is false, but the command line belongs to the trainer: pass the settings in "
            "initial_global_config_dict with skip_load_from_cli=True, or start the servers with ng_run"
        )
    initial = _initial(given.initial_global_config_dict)
    if (capture := initial.get("token_id_capture")) and (not isinstance(capture, dict) or capture.get("enabled")):
        raise OperatorError(
            "token_id_capture is enabled, but Rollyard returns tokens on the output items only: set "
            "token_capture.enabled to false in the trainer's config"
        )
    env_file = None if given.skip_load_from_dotenv else given.dotenv_path or roots[0] / "env.yaml"
    from_env: Json = {}
    if env_file is not None and env_file.is_file():
        from_env = _plain(read_yaml(env_file))
    # Listed before `initial`, so that the files that others list do not override it.
    files = config_files(_config_paths(initial.get(PATHS_KEY) or from_env.get(PATHS_KEY)), roots)
    layers: list[str | Mapping[str, Any]] = [*map(str, files), *([from_env] if from_env else []), initial]
    run = load(layers, [], roots, environ, env_file=None)
    return TrainerConfig(run, _head_port(run.tree.get(HEAD_SERVER_KEY_NAME)), CollectionSettings.of_config(run.tree))


def _initial(given: Any) -> Json:
    if given is None or isinstance(given, DictConfig | Mapping):
        return _plain(given if isinstance(given, DictConfig) else OmegaConf.create(dict(given or {})))
    kind = type(given).__name__
    raise OperatorError(f"initial_global_config_dict is a {kind}; expected a mapping or an OmegaConf DictConfig")


def _plain(config: DictConfig) -> Json:
    """Return the content without resolving references, which may refer to other files."""
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _config_paths(given: Any) -> list[str]:
    paths = [] if given is None else given
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise OperatorError(f"{PATHS_KEY} is {given!r}; expected a list of file names")
    return paths


def _head_port(given: Any) -> int:
    try:
        return BaseServerConfig.model_validate(
            {"host": "127.0.0.1", "port": DEFAULT_HEAD_PORT, **({} if given is None else given)}
        ).port
    except (ValidationError, TypeError) as error:
        raise OperatorError(f"{HEAD_SERVER_KEY_NAME} is {given!r}; expected {{host: ..., port: ...}}") from error


_THEIRS = {name: alias for alias, name in FAMILY_ALIASES.items()}
_DEADLINE_S = 10.0


def get_global_config_dict() -> DictConfig:
    """Return the config that the head of this process's run serves, with addresses and without secrets.

    Raises RunError if this process has started no run in the working directory.
    """
    head = next((head for head in running_heads(Path.cwd()) if head.pid == os.getpid()), None)
    if head is None:
        raise RunError("this process has started no run in the working directory: call RunHelper().start first")
    headers = {"Authorization": f"Bearer {head.token}"} if head.token else {}
    request = urllib.request.Request(f"{head.url}/global_config_dict_yaml", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_DEADLINE_S) as response:
        tree = OmegaConf.to_container(OmegaConf.create(json.loads(response.read())), resolve=True)
    assert isinstance(tree, dict)
    return OmegaConf.create({str(name): _in_their_form(node) for name, node in tree.items()})


def _in_their_form(node: Any) -> Any:
    """Return a server's entry with NeMo Gym's name of its family and its entrypoint; anything else unchanged."""
    if not isinstance(node, dict) or not {FAMILY_ALIASES.get(str(key), key) for key in node} & set(FAMILIES):
        return node
    return {
        _THEIRS.get(family, family): {
            name: {"entrypoint": "app.py", **(settings or {})} for name, settings in (implementations or {}).items()
        }
        for family, implementations in node.items()
    }

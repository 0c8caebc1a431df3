"""RunHelper: starts the servers of a trainer's environments, watches them and stops them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from rollyard.records.errors import Failure, RunError
from rollyard.records.run_types import ServerInstance
from rollyard.services.config.server_folders import search_roots
from rollyard.services.head.run_snapshot import fetch_instances
from rollyard.services.interop.nemo_gym.path_entry import path_entry
from rollyard.services.interop.nemo_gym.trainer.names import GlobalConfigDictParserConfig
from rollyard.services.interop.nemo_gym.trainer.trainer_config import TrainerConfig, trainer_config
from rollyard.services.runtime.running_stack import RunningStack, StackAccess, started
from rollyard.training.trl.loop_thread import LoopThread

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

        Rollyard restarts a server that exits, and repeats the rollouts that it interrupted. The first call after such a
        death raises, later ones do so only while the server is not ready.
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
            token=os.environ.get("ROLLYARD_TOKEN"),
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

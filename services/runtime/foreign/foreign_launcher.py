"""ForeignLauncher: starts NeMo Gym's programs as its own launcher does, and registers them when they respond."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from rollyard.records.errors import Failure, RunError
from rollyard.records.io.search_path import IMPORT_ROOT, INSTALLED
from rollyard.records.run_types import Heartbeat, Launch, Registration
from rollyard.services.config.nemo_gym.folders import is_installed
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.config.server_code.code_version import foreign_code
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.http.transport import Transport
from rollyard.services.runtime.foreign import bootstrap, uv_environment
from rollyard.services.runtime.foreign.foreign_process import ForeignProcess
from rollyard.services.runtime.foreign.health_probe import HealthProbe
from rollyard.services.runtime.foreign.launch_config import CONFIG_VARIABLE, MAX_BYTES, NAME_VARIABLE
from rollyard.services.runtime.launcher import Launcher, Process
from rollyard.services.runtime.programs.program import Program

log = logging.getLogger(__name__)

PROBE_S = 0.5
HEARTBEAT_S = 2.0


class ForeignLauncher:
    """Starts the programs of NeMo Gym's servers; all other servers are left to `own`."""

    def __init__(
        self,
        specs: Mapping[str, ServerSpec],
        config: str,
        registry: ServerRegistry,
        transport: Transport,
        own: Launcher | None,
        *,
        cache: Path,
        folder: Path,
        environ: Mapping[str, str],
    ) -> None:
        """`specs`: the servers that are programs. `config`: see `launch_config`.

        `folder`: the working directory in which the run was started.
        """
        self._specs = specs
        self._config = config
        self._registry = registry
        self._transport = transport
        self._own = own
        self._cache = cache
        self._folder = folder
        self._environ = environ
        self._watches: set[asyncio.Task[None]] = set()

    async def launch(self, launch: Launch, log: Path) -> Process:
        spec = self._specs.get(launch.name)
        if spec is None or spec.program is None:
            assert self._own is not None
            return await self._own.launch(launch, log)
        python = spec.program.python
        if spec.program.install:
            python = await asyncio.to_thread(
                uv_environment.install, spec.folder, spec.program, self._cache, self._environ
            )
        assert python is not None
        if (size := len(self._config.encode())) > MAX_BYTES:
            raise RunError(
                f"{spec.name}: the config of this run has {size} bytes, and NeMo Gym's servers read it from an "
                f"environment variable, which holds {MAX_BYTES}: leave out what the servers do not need"
            )
        program = await Program.start(
            spec.name,
            [str(python), *_script(spec)],
            log,
            self._environment(spec, python),
            spec.folder,
            f"{spec.family}/{spec.implementation} of NeMo Gym in {python}",
        )
        process = ForeignProcess(program)
        phase = f"waiting for {url_of(spec)}"  # shown while the program starts, which may take a minute
        self._registry.register(
            Registration(name=spec.name, instance=launch.instance, url=url_of(spec), pid=process.pid, phase=phase)
        )
        watch = asyncio.create_task(self._watch(spec, launch.instance, process))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return process

    async def close(self) -> None:
        """Stop watching the programs. Their processes are the supervisor's."""
        for watch in self._watches:
            watch.cancel()

    def _environment(self, spec: ServerSpec, python: Path) -> dict[str, str]:
        own = {str(INSTALLED), str(IMPORT_ROOT)}
        paths = [path for path in self._environ.get("PYTHONPATH", "").split(":") if path and path not in own]
        if spec.program is not None and not is_installed(spec.program.root):
            paths.insert(0, str(spec.program.root))  # the checkout's package, even if another version is installed
        cache = self._folder / "cache" / "huggingface"  # where NeMo Gym's launcher keeps it
        environment = {
            "HF_HOME": str(cache),
            "HF_DATASETS_CACHE": str(cache),
            **self._environ,
            # Programs may start `python` or tools of their environment by name.
            "PATH": f"{python.parent}:{self._environ.get('PATH', os.defpath)}",
            "PYTHONPATH": ":".join([str(spec.folder), *paths]),
            CONFIG_VARIABLE: self._config,
            NAME_VARIABLE: spec.name,
        }
        environment.pop("PYTHONHOME", None)
        if (python.parent.parent / "pyvenv.cfg").is_file():
            environment["VIRTUAL_ENV"] = str(python.parent.parent)
        return environment

    async def _watch(self, spec: ServerSpec, instance: str, process: ForeignProcess) -> None:
        """Register the instance when it responds, and send its heartbeats while it does."""
        ended = asyncio.create_task(process.wait())
        probe = HealthProbe(self._transport, url_of(spec))
        registered = False
        try:
            while not ended.done():
                try:
                    if (await probe.probe()).up and not ended.done():
                        if not registered:
                            await self._register(spec, instance, process)
                            registered = True
                        self._registry.record_heartbeat(
                            Heartbeat(instance=instance, requests=0, in_flight=0, sessions=0)
                        )
                except Failure as failure:  # its code differs from that of the run, or it has been removed
                    log.warning("%s: %s", spec.name, failure.problem.detail)
                    if not registered:
                        process.kill()
                except Exception as error:  # the watch must not end while the program runs
                    log.warning("%s cannot be watched", spec.name, exc_info=error)
                await asyncio.wait({ended}, timeout=HEARTBEAT_S if registered else PROBE_S)
        finally:
            ended.cancel()

    async def _register(self, spec: ServerSpec, instance: str, process: ForeignProcess) -> None:
        assert spec.program is not None
        code = await asyncio.to_thread(foreign_code, spec.folder, spec.settings.entrypoint, spec.program.root)
        registration = Registration(
            name=spec.name, instance=instance, url=url_of(spec), pid=process.pid, ready=True, code=code
        )
        self._registry.register(registration)


def url_of(spec: ServerSpec) -> str:
    """Return the base URL of a server whose port has been chosen before the start."""
    host = spec.settings.host
    return f"http://[{host}]:{spec.settings.port}" if ":" in host else f"http://{host}:{spec.settings.port}"


def _script(spec: ServerSpec) -> list[str]:
    """Return the interpreter's arguments. A program with its own Ray cluster or several workers starts unchanged."""
    if spec.raw.get("ray_head_node_address") or (spec.raw.get("num_workers") or 1) > 1:
        return [spec.settings.entrypoint]
    return [bootstrap.__file__, spec.settings.entrypoint]

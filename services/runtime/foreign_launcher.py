"""ForeignLauncher: starts NeMo Gym's programs as its own launcher does, and registers them when they respond."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from omegaconf import OmegaConf

from rollyard.records.data_files import IMPORT_ROOT, INSTALLED
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.run_types import Heartbeat, Launch, Registration
from rollyard.records.types import Json
from rollyard.services.config.nemo_gym import LAUNCH_KEYS, installed_version, is_installed
from rollyard.services.config.plugins import FAMILY_ALIASES
from rollyard.services.config.run_config import ForeignProgram, RunConfig, ServerSpec
from rollyard.services.config.server_code import server_code
from rollyard.services.config.venv import built_once, cache_folder, run_or_refuse
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.server import escape_references
from rollyard.services.http.transport import Transport
from rollyard.services.runtime import foreign_bootstrap as bootstrap
from rollyard.services.runtime.launcher import Launcher, Process
from rollyard.services.runtime.program import ServerProgram

log = logging.getLogger(__name__)
CONFIG_VARIABLE = "NEMO_GYM_CONFIG_DICT"
NAME_VARIABLE = "NEMO_GYM_CONFIG_PATH"
MAX_BYTES = 128 * 1024 - 64
"""Linux limits each environment variable to 128 KiB, with its name."""
_OWN_KEYS = frozenset({*LAUNCH_KEYS, "start_timeout_s", "replicas", "url"})
_THEIR_FAMILIES = {own: theirs for theirs, own in FAMILY_ALIASES.items()}
_DEFAULTS: Json = {
    "use_absolute_ip": False,
    "port_range_low": 10_001,
    "port_range_high": 20_000,
    "dry_run": False,
    "skip_venv_if_present": False,
}
"""Top-level settings that NeMo Gym's launcher adds, and that its programs expect."""
PATHS = ("/health", "/openapi.json", "/")
"""What servers have, the most telling first. NeMo Gym's have only the second and third."""
TIMEOUT_S = 5.0
_ABSENT = (404, 405)
PROBE_S = 0.5
HEARTBEAT_S = 2.0
DEFAULT_PYTHON = "3.12"
_RELATIVE = re.compile(r"(?:^|[\s@=])(?:file:)?\.\.?/|^-e\s+\.", re.IGNORECASE)
"""A path relative to the requirements file, as in `-e nemo-gym[dev] @ ../../`."""
_ROOT = re.compile(r"(?:(?:-e|--editable)[\s=]\s*)?(?:file:)?\.\./\.\./?(?:\[[^\]]*\])?(?:\s+#.*)?")
"""The root of the checkout, seen from the server's folder."""
_ITSELF = re.compile(r"^(?:-e\s+|--editable[\s=])?nemo[-_]gym(?:\[[^\]]*\])?\s*(?:@|$|[=<>!~;])", re.IGNORECASE)


class ForeignLauncher:
    """Starts the programs of NeMo Gym's servers; all other servers are left to `own`."""

    def __init__(
        self,
        config: RunConfig,
        registry: ServerRegistry,
        transport: Transport,
        own: Launcher | None,
        *,
        head_url: str,
        folder: Path,
        environ: Mapping[str, str],
    ) -> None:
        """`folder`: the working directory in which the run was started."""
        self._specs = {spec.name: spec for spec in config.servers if spec.program is not None}
        self._config = launch_config(config, head_url)
        self._registry = registry
        self._transport = transport
        self._own = own
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
                install, spec.folder, spec.program, cache_folder(self._environ), self._environ
            )
        assert python is not None
        if (size := len(self._config.encode())) > MAX_BYTES:
            raise RunError(
                f"{spec.name}: the config of this run has {size} bytes, and NeMo Gym's servers read it from an "
                f"environment variable, which holds {MAX_BYTES}: leave out what the servers do not need"
            )
        process = await ServerProgram.start(
            spec.name,
            [str(python), *_script(spec)],
            log,
            self._environment(spec, python),
            spec.folder,
            f"{spec.family}/{spec.implementation} of NeMo Gym in {python}",
        )
        phase = f"waiting for {url_of(spec)}"  # shown while the program starts, which may take a minute
        self._registry.register_for(
            Registration(name=spec.name, instance=launch.instance, url=url_of(spec), pid=_pid_of(process), phase=phase)
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

    async def _watch(self, spec: ServerSpec, instance: str, process: ServerProgram) -> None:
        """Register the instance when it responds, and send its heartbeats while it does."""
        ended = asyncio.create_task(process.wait())
        probe = HealthProbe(self._transport, url_of(spec))
        registered = False
        try:
            while not ended.done():
                try:
                    if (await probe.probe()).up and not ended.done():
                        if not registered:
                            code = await asyncio.to_thread(server_code, spec.folder)
                            where: Json = {"url": url_of(spec), "pid": _pid_of(process)}
                            registration = Registration(
                                name=spec.name, instance=instance, ready=True, code=code, **where
                            )
                            self._registry.register_for(registration)
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


def _pid_of(process: ServerProgram) -> int:
    """Return the id of the program itself; of its guard if it has not started yet, or has ended."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    except OSError:
        children = []
    return int(children[0]) if children else process.pid


def url_of(spec: ServerSpec) -> str:
    """Return the base URL of a server whose port has been chosen before the start."""
    host = spec.settings.host
    return f"http://[{host}]:{spec.settings.port}" if ":" in host else f"http://{host}:{spec.settings.port}"


def _script(spec: ServerSpec) -> list[str]:
    """Return the interpreter's arguments. A program with its own Ray cluster or several workers starts unchanged."""
    if spec.raw.get("ray_head_node_address") or (spec.raw.get("num_workers") or 1) > 1:
        return [spec.settings.entrypoint]
    return [bootstrap.__file__, spec.settings.entrypoint]


@dataclass(frozen=True)
class Health:
    up: bool
    detail: str = ""
    """Why it is not up, or what is unusual about it."""
    silent: bool = False
    """It accepts connections but does not respond in time: it may be busy."""


class HealthProbe:
    """Probes one server. It remembers which path the server has, so that later probes take one request."""

    def __init__(self, transport: Transport, url: str) -> None:
        self.url = url
        self._transport = transport
        self._paths: tuple[str, ...] = PATHS

    async def probe(self) -> Health:
        """Ask the server. Never raises a Failure."""
        for path in self._paths:
            try:
                response = await self._transport.send("GET", self.url + path, b"", {}, TIMEOUT_S)
            except Failure as failure:
                return Health(False, failure.problem.detail, silent=failure.kind is FailureKind.TIMEOUT)
            if response.status in _ABSENT:
                continue
            if response.status >= 500:
                return Health(False, f"status {response.status} at {self.url}{path}")
            self._paths = (path,)
            if response.status >= 400:
                return Health(True, f"reachable, but {path} responds with status {response.status}")
            return Health(True)
        if len(self._paths) == 1:  # another program may listen there now
            self._paths = PATHS
            return await self.probe()
        return Health(True, f"reachable, but its state is unknown: it has none of {', '.join(PATHS)}")


def launch_config(config: RunConfig, head_url: str) -> str:
    """Return the YAML of the run's config as NeMo Gym's programs expect it. It contains the config's secrets."""
    head = urlsplit(head_url)
    tree = {
        key: copy.deepcopy(value) for key, value in config.tree.items() if key not in (*LAUNCH_KEYS, "config_paths")
    }
    for spec in config.servers:
        family = _THEIR_FAMILIES.get(spec.family, spec.family)
        tree[spec.name] = {family: {spec.implementation: _entry(spec)}}
    ports = [spec.settings.port for spec in config.servers if spec.external_url is None]
    tree |= {key: tree.get(key, value) for key, value in _DEFAULTS.items()}
    tree["head_server"] = {"host": head.hostname, "port": head.port}
    tree["disallowed_ports"] = [head.port, *ports]
    return OmegaConf.to_yaml(OmegaConf.create(escape_references(tree)))


def _entry(spec: ServerSpec) -> Json:
    own = {key: value for key, value in spec.raw.items() if key not in _OWN_KEYS}
    host, port = spec.settings.host, spec.settings.port
    if spec.external_url is not None:
        address = urlsplit(spec.external_url)
        host, port = address.hostname or host, address.port or (443 if address.scheme == "https" else 80)
    else:
        own = {"entrypoint": spec.settings.entrypoint, **own}
    return {**own, "host": {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), "port": port}


def requirement_lines(text: str) -> list[str]:
    """Return the lines of a requirements file except those that refer to NeMo Gym itself by a relative path.

    Some of NeMo Gym's files lack a line break after a package, so that this reference follows it on the same line.
    """
    text = re.sub(r"(?<=[\w\]])\s*-e nemo-gym\[", "\n-e nemo-gym[", text.removeprefix("\ufeff"))
    return [
        line
        for line in map(str.strip, text.splitlines())
        if line and not ((_ITSELF.match(line) or _ROOT.fullmatch(line)) and _RELATIVE.search(line))
    ]


def install(folder: Path, program: ForeignProgram, cache: Path, environ: Mapping[str, str]) -> Path:
    """Return the interpreter of the server's environment, which is built if needed. Raises OperatorError."""
    uv = shutil.which("uv", path=environ.get("PATH"))
    if uv is None:
        raise OperatorError(f"install: uv needs the program uv for {folder}, and it is not on PATH; pip install uv")
    arguments, listed = _arguments(folder, program.root)
    base = str(program.python or DEFAULT_PYTHON)
    key = hashlib.sha256("\0".join([base, str(folder), *arguments, listed]).encode()).hexdigest()[:16]
    home = cache / "environments" / f"nemo-gym-{folder.name}-{key}"

    def build(building: Path) -> None:
        log.warning("uv installs the requirements of %s into %s, which may take minutes", folder, home)
        problem = f"uv cannot install the requirements of {folder}"
        venv = [uv, "venv", "--quiet", "--relocatable", "--python", base, str(building)]
        run_or_refuse(venv, folder, problem, environ=environ)
        command = [uv, "pip", "install", "--quiet", "--python", str(building / "bin" / "python"), *arguments]
        run_or_refuse(command, folder, problem, listed, environ)

    return built_once(home, build)


def _arguments(folder: Path, root: Path) -> tuple[list[str], str]:
    """Return the arguments of `uv pip install`, and the requirements that it reads from standard input."""
    if (root / "pyproject.toml").is_file():
        itself = [f"-e {root}"]
    else:
        version = installed_version(root)
        itself = [f"nemo-gym=={version}" if version else "nemo-gym"]
    project, requirements = folder / "pyproject.toml", folder / "requirements.txt"
    if requirements.is_file():
        lines = requirement_lines(requirements.read_text("utf-8", "replace"))
        return ["-r", "-"], "\n".join([*itself, *lines, ""])
    if project.is_file():
        return ["--no-sources", "-r", str(project), "-r", "-"], "\n".join([*itself, ""])
    return ["-r", "-"], "\n".join([*itself, ""])

"""RayLauncher: starts servers on the nodes of an existing Ray cluster, each as a child of a small actor.

Each server has one actor with `num_cpus=0`, so that a busy cluster does not delay it. The actor starts
`services/runtime/serve.py` as a child process. The child dies with the actor (`die_with_parent`), and Ray kills the
actor when ng_run exits or the node fails. The Supervisor restarts servers; Ray's own restarts are disabled. Rollyard
connects to clusters but never starts or stops one.

On a single host, servers listen on loopback. On several hosts, they are spread across the nodes and listen on their
node's address, and the run needs a token. The launch message, which includes the token, is sent through Ray, which by
default trusts its network.

Every node needs the same installation at the same path, and the same server folders and working directory. A server
gets its node's environment variables, plus those of ng_run that the node does not set.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.locked_files import open_private
from rollyard.records.optional import require
from rollyard.records.process_group import guarded
from rollyard.records.run_types import Launch
from rollyard.services.config.venv import needs_isolation
from rollyard.services.http.access import is_loopback
from rollyard.services.http.ray_address import check_ray_address, connect
from rollyard.services.runtime import ray_actor
from rollyard.services.runtime.launcher import Process

T = TypeVar("T")

CONNECT_S = 15.0
IMPORT_S = 10.0
"""Importing Ray takes seconds on a busy host."""
START_S = 45.0
"""A start takes about a second. Ray ends ng_run 60 s after losing the cluster; the cause must come earlier."""
BUILD_S = 900.0
"""Start timeout if the node may first have to build the Python environment that the server's folder requires."""
SILENCE_S = 30.0
"""An actor that is silent for so long is dead. Ray's ActorUnavailableError may pass: a cut network returns."""
REACH_S = 2.0
"""Timeout of a connection to a node. Ray counts a node that cannot be reached as alive for up to a minute."""
CHUNK = 1 << 20
"""Maximum number of log bytes per response."""
_HINT = "Start one with `ray start --head --port=6379` (other hosts join it with `ray start --address=HOST:6379`)"


class _RayProcess:
    def __init__(
        self, ray: Any, actor: Any, pid: int, write: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        """`write` receives the output."""
        self._ray = ray
        self._actor = actor
        self.pid = pid
        self._follow_task = asyncio.create_task(self._follow(write))
        self._follow_task.add_done_callback(lambda _: on_end())

    async def wait(self) -> int:
        return await self._follow_task

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, not to those that it has started."""
        if not self._follow_task.done():
            self._actor.send_to_leader.remote(int(number))

    def _signal(self, number: signal.Signals) -> None:
        if not self._follow_task.done():
            self._actor.send.remote(int(number))

    async def _follow(self, write: Callable[[bytes], None]) -> int:
        offset = 0
        responded = time.monotonic()
        try:
            while True:
                left_s = responded + SILENCE_S - time.monotonic()
                try:
                    text, status = await asyncio.wait_for(self._actor.follow.remote(offset, CHUNK), left_s)
                except self._ray.exceptions.ActorUnavailableError:
                    await asyncio.sleep(min(1.0, max(left_s, 0.0)))
                    continue
                responded = time.monotonic()
                write(text)
                offset += len(text)
                if status is not None:
                    return int(status)
        except TimeoutError:
            write(f"its Ray actor has not responded for {SILENCE_S:g} s\n".encode())
        except self._ray.exceptions.RayError as error:
            write(f"its Ray actor has died: {_first_line(error)}\n".encode())
        finally:
            # In a thread, because `ray.kill` blocks while the cluster's head is unreachable.
            threading.Thread(target=self._end_actor, daemon=True).start()
        return -signal.SIGKILL

    def _end_actor(self) -> None:
        with contextlib.suppress(Exception):  # Ray raises if the actor or the cluster no longer exists
            self._ray.kill(self._actor)


class RayLauncher:
    """Starts servers on the nodes of a cluster. Create it with `on_cluster`."""

    def __init__(self, ray: Any, cache: Path) -> None:
        self._ray = ray
        self._cache = cache
        self.node_ip: str = ray.util.get_node_ip_address()
        """This host's address in the cluster."""
        self.hosts = _live_hosts(ray)
        self.cores: float = ray.cluster_resources().get("CPU", 1.0)
        self.on_network = self.hosts != {self.node_ip}
        """True if the servers run on several hosts, so the head must listen on `node_ip` and a token is required."""
        ray.cloudpickle.register_pickle_by_value(ray_actor)
        self._placed: list[tuple[str, str]] = []
        """(host, server name) of every running or starting process."""
        self._kind = ray.remote(num_cpus=0, max_restarts=0)(ray_actor.ServerHost)

    def disconnect(self) -> None:
        self._ray.shutdown()

    async def launch(self, launch: Launch, log: Path) -> Process:
        """Start the process on a node. Raises OperatorError, or ConnectionError if Ray does not start the actor."""
        errors = self._ray.exceptions
        isolated = needs_isolation(Path(launch.folder))
        limit_s = BUILD_S if isolated else START_S
        placement: tuple[str, str] | None = None
        try:
            hosts = await self._reachable(await self._candidates())
            placement = self._least_loaded(hosts, launch.name), launch.name
            self._placed.append(placement)
            # Every Ray node has a resource `node:IP`; requesting a fraction of it places the actor there.
            actor = self._kind.options(resources={f"node:{placement[0]}": 0.001}).remote()
            pid = await self._wait_for_pid(self._start(actor, launch, isolated), placement[0], limit_s)
        except BaseException as error:
            if placement is not None:
                self._placed.remove(placement)
            if isinstance(error, errors.RayTaskError):
                raise OperatorError(f"{launch.name} cannot be started on its Ray node: {error.cause}") from None
            if isinstance(error, errors.RayError | TimeoutError):
                why = _first_line(error) or f"no response from the cluster for {limit_s:g} s"
                raise ConnectionError(f"Ray did not start {launch.instance}: {why}") from error
            raise
        return _RayProcess(self._ray, actor, pid, partial(_append, log), partial(self._placed.remove, placement))

    async def run(
        self, name: str, command: Sequence[str], environ: Mapping[str, str], write: Callable[[bytes], None]
    ) -> _RayProcess:
        """Run a command on the host with the fewest of this name. Raises RunError if Ray does not start it."""
        placement: tuple[str, str] | None = None
        try:
            placement = self._least_loaded(await self._reachable(await self._candidates()), name), name
            self._placed.append(placement)
            kind = self._ray.remote(num_cpus=0, max_restarts=0)(ray_actor.ProgramHost)
            actor = kind.options(resources={f"node:{placement[0]}": 0.001}).remote()
            # The guard ends everything that the command has started, also if the actor is killed.
            starting = actor.run.remote(guarded(command), str(Path.cwd()), dict(environ), None)
            pid = await self._wait_for_pid(starting, placement[0], START_S)
        except (self._ray.exceptions.RayError, ConnectionError, TimeoutError) as error:
            if placement is not None:
                self._placed.remove(placement)
            raise RunError(f"Ray did not start {name}: {_first_line(error) or 'no response'}") from error
        return _RayProcess(self._ray, actor, pid, write, partial(self._placed.remove, placement))

    def _start(self, actor: Any, launch: Launch, isolated: bool) -> Any:
        if self.on_network and is_loopback(str(launch.settings.get("host", "127.0.0.1"))):
            # ServerHost fills in its node's address.
            settings = {key: value for key, value in launch.settings.items() if key != "host"}
            launch = launch.model_copy(update={"settings": settings})
        return actor.start.remote(
            launch.model_dump(mode="json"),
            sys.executable,
            str(Path.cwd()),
            dict(os.environ),
            str(self._cache) if isolated else None,
            self.on_network,
        )

    async def _wait_for_pid(self, starting: Any, host: str, limit_s: float) -> int:
        """Return the process id. Raises ConnectionError if the host leaves the cluster; Ray would keep waiting."""
        task = asyncio.ensure_future(starting)
        deadline = time.monotonic() + limit_s
        try:
            while not (await asyncio.wait({task}, timeout=2.0))[0]:
                if host not in await self._candidates():
                    raise ConnectionError(f"{host} left the Ray cluster")
                if time.monotonic() > deadline:
                    raise TimeoutError
            return int(task.result())
        finally:
            task.cancel()

    async def _candidates(self) -> set[str]:
        """Return the hosts that can run a server. If the run uses loopback, hosts that join later cannot reach it."""
        if not self.on_network:
            return {self.node_ip}
        return await _in_thread(partial(_live_hosts, self._ray), START_S)

    async def _reachable(self, hosts: set[str]) -> set[str]:
        if not self.on_network:
            return hosts
        nodes = await _in_thread(self._ray.nodes, START_S)
        ports = {node["NodeManagerAddress"]: node["NodeManagerPort"] for node in nodes if node["Alive"]}
        found = await asyncio.gather(*(_accepts_connections(host, ports.get(host, 0)) for host in sorted(hosts)))
        return {host for host, accepts in zip(sorted(hosts), found, strict=True) if accepts}

    def _least_loaded(self, hosts: set[str], name: str) -> str:
        """Return the host with the fewest replicas of the server `name`. Ties go to the host with the fewest servers.

        Ray's SPREAD strategy does not spread actors that request no resources: in a test, all five were placed on
        one of two nodes.
        """
        if not hosts:
            raise ConnectionError("no node of the Ray cluster can be reached")
        servers = Counter(host for host, _ in self._placed)
        return min(sorted(hosts), key=lambda host: (self._placed.count((host, name)), servers[host]))


@contextlib.asynccontextmanager
async def on_cluster(address: str, cache: Path) -> AsyncIterator[RayLauncher]:
    """Connect to the cluster at `address` (HOST:PORT or auto). Raises OperatorError or RunError on failure."""
    await check_cluster(address)

    def connected() -> RayLauncher:
        return RayLauncher(connect(address, "--ray-head-node-address", f"rollyard-{os.getpid()}"), cache)

    try:
        launcher = await _in_thread(connected, CONNECT_S + IMPORT_S)
    except TimeoutError:
        raise RunError(
            f"no Ray cluster at {address}: no response within {CONNECT_S:g} s. {_HINT}. A cluster that requires a "
            "token accepts clients with RAY_AUTH_MODE=token and the token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
        ) from None
    except Exception as error:
        raise RunError(f"no usable Ray cluster at {address}: {_first_line(error)}. {_HINT}") from error
    try:
        yield launcher
    finally:
        with contextlib.suppress(TimeoutError):
            await _in_thread(launcher.disconnect, CONNECT_S)


async def check_cluster(address: str) -> None:
    """Raise OperatorError or RunError if the cluster is unreachable. Ray itself would wait for minutes."""
    require("ray", "ray", "--ray-head-node-address")
    await check_ray_address(address, "--ray-head-node-address ", CONNECT_S / 3, _HINT)


async def _in_thread(call: Callable[[], T], limit_s: float) -> T:
    """Run `call` in a daemon thread, for which an exiting process does not wait. Raises TimeoutError."""
    done: Future[T] = Future()

    def run() -> None:
        with contextlib.suppress(InvalidStateError):  # the caller has timed out
            try:
                done.set_result(call())
            except Exception as error:
                done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wait_for(asyncio.wrap_future(done), limit_s)


async def _accepts_connections(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), REACH_S)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _live_hosts(ray: Any) -> set[str]:
    return {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def _append(log: Path, text: bytes) -> None:
    # A full disk must not stop the monitoring of the server.
    with contextlib.suppress(OSError), open_private(log) as file:
        file.write(text)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")

"""RayLauncher: servers as children of small actors on the nodes of a Ray cluster that runs already.

Per server one actor that asks for no CPU, so a busy cluster never makes it wait. It starts `services/runtime/serve.py`
as its child; the child dies with it (`die_with_parent`), and Ray ends it with its node or with ng_run, whatever those
died of. The Supervisor restarts servers, Ray restarts nothing. A cluster is only joined, never started or stopped.

On one machine servers stay on loopback. On several they spread, listen on their node's address, and the run needs a
token. What a server is told, token included, travels through Ray, which by default trusts its whole network.

Every node needs the same installation at the same path, the servers' folders and the working directory too. A server
sees its node's environment, and of ng_run's what the node does not set.
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
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rollyard.services.config.venv import needs_isolation
from rollyard.services.errors import OperatorError, RunError
from rollyard.services.http.access.hosts import is_loopback
from rollyard.services.http.ray_address import check_ray_address
from rollyard.services.io.optional import require
from rollyard.services.runtime import ray_actor
from rollyard.services.runtime.launcher import Process
from rollyard.services.types import Launch

T = TypeVar("T")

CONNECT_S = 15.0
START_S = 45.0
"""A start takes about a second. Ray itself gives a lost cluster 60 s and then ends ng_run: say why before."""
BUILD_S = 900.0
"""The same, where a folder's own environment may have to be installed on the node first."""
SILENCE_S = 30.0
"""An actor that says nothing for so long counts as dead: it answers every second."""
CHUNK = 1 << 20
"""Bytes of log in one answer."""
_HINT = "Start one with `ray start --head --port=6379` (further machines join it with `ray start --address=HOST:6379`)"


class _RayProcess:
    def __init__(self, ray: Any, actor: Any, pid: int, log: Path, leave: Callable[[], None]) -> None:
        self._ray = ray
        self._actor = actor
        self.pid = pid
        self._following = asyncio.create_task(self._follow(log))
        self._following.add_done_callback(lambda _: leave())

    async def wait(self) -> int:
        return await self._following

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if not self._following.done():
            self._actor.send.remote(int(number))

    async def _follow(self, log: Path) -> int:
        offset = 0
        try:
            while True:
                text, status = await asyncio.wait_for(self._actor.follow.remote(offset, CHUNK), SILENCE_S)
                _append(log, text)
                offset += len(text)
                if status is not None:
                    return int(status)
        except TimeoutError:
            _append(log, f"its Ray actor said nothing for {SILENCE_S:g} s\n".encode())
        except self._ray.exceptions.RayError as error:
            _append(log, f"its Ray actor is gone: {_first_line(error)}\n".encode())
        finally:
            # Waits for the cluster's head, which may be gone.
            threading.Thread(target=self._end_actor, daemon=True).start()
        return -signal.SIGKILL

    def _end_actor(self) -> None:
        with contextlib.suppress(Exception):  # of Ray, when the actor or the cluster is gone already
            self._ray.kill(self._actor)


class RayLauncher:
    """Starts servers on the nodes of a cluster; see `on_cluster`."""

    def __init__(self, ray: Any, cache: Path) -> None:
        self._ray = ray
        self._cache = cache
        self.node_ip: str = ray.util.get_node_ip_address()
        """This machine, as the cluster knows it."""
        self.machines = _alive(ray)
        self.on_network = self.machines != {self.node_ip}
        """Servers live on several machines: the head must listen on `node_ip`, and a token is needed."""
        ray.cloudpickle.register_pickle_by_value(ray_actor)
        self._placed: list[tuple[str, str]] = []
        """(machine, server's name) of every process that lives or starts."""
        self._kind = ray.remote(num_cpus=0, max_restarts=0)(ray_actor.ServerHost)

    async def launch(self, launch: Launch, log: Path) -> Process:
        """See `Launcher.launch`. Raises OperatorError, or ConnectionError when the cluster starts nothing."""
        errors = self._ray.exceptions
        isolated = needs_isolation(Path(launch.folder))
        limit_s = BUILD_S if isolated else START_S
        place: tuple[str, str] | None = None
        try:
            machines = await self._candidates()
            place = self._roomiest(machines, launch.name), launch.name
            self._placed.append(place)
            # Every Ray node offers one `node:IP`; a grain of it holds the actor there.
            actor = self._kind.options(resources={f"node:{place[0]}": 0.001}).remote()
            pid = await self._started(self._start(actor, launch, isolated), place[0], limit_s)
        except BaseException as error:
            if place is not None:
                self._placed.remove(place)
            if isinstance(error, errors.RayTaskError):
                raise OperatorError(f"{launch.name} cannot be started on its Ray node: {error.cause}") from None
            if isinstance(error, errors.RayError | TimeoutError):
                why = _first_line(error) or f"nothing heard from the cluster for {limit_s:g} s"
                raise ConnectionError(f"Ray did not start {launch.instance}: {why}") from error
            raise
        return _RayProcess(self._ray, actor, pid, log, partial(self._placed.remove, place))

    def _start(self, actor: Any, launch: Launch, isolated: bool) -> Any:
        if self.on_network and is_loopback(str(launch.settings.get("host", "127.0.0.1"))):
            # The node fills in its own address.
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

    async def _started(self, starting: Any, machine: str, limit_s: float) -> int:
        """The process id, unless the machine is lost meanwhile: Ray would wait for its return."""
        task = asyncio.ensure_future(starting)
        deadline = time.monotonic() + limit_s
        try:
            while not (await asyncio.wait({task}, timeout=2.0))[0]:
                if machine not in await self._candidates():
                    raise ConnectionError(f"{machine} left the Ray cluster")
                if time.monotonic() > deadline:
                    raise TimeoutError
            return int(task.result())
        finally:
            task.cancel()

    async def _candidates(self) -> set[str]:
        """Where a server may go. A machine that joins a loopback run later could not reach it: it stays here."""
        if not self.on_network:
            return {self.node_ip}
        return await _in_thread(partial(_alive, self._ray), START_S)

    def _roomiest(self, machines: set[str], name: str) -> str:
        """The one with the fewest replicas of that server, then with the fewest servers.

        Ray's own SPREAD does not spread actors that ask for nothing: all five of a test landed on one of two nodes.
        """
        if not machines:
            raise ConnectionError("no machine of the Ray cluster is alive")
        servers = Counter(machine for machine, _ in self._placed)
        return min(sorted(machines), key=lambda machine: (self._placed.count((machine, name)), servers[machine]))


@contextlib.asynccontextmanager
async def on_cluster(address: str, cache: Path) -> AsyncIterator[RayLauncher]:
    """A launcher on the cluster at `address` (HOST:PORT or auto). Raises OperatorError, RunError within seconds."""
    await check_cluster(address)
    import ray

    def connect() -> RayLauncher:
        ray.init(
            address=address,
            namespace=f"rollyard-{os.getpid()}",
            log_to_driver=False,
            logging_level="ERROR",
        )
        return RayLauncher(ray, cache)

    try:
        launcher = await _in_thread(connect, CONNECT_S)
    except TimeoutError:
        raise RunError(f"no Ray cluster at {address}: no answer within {CONNECT_S:g} s. {_HINT}") from None
    except Exception as error:
        raise RunError(
            f"no Ray cluster at {address} that this machine can use: {_first_line(error)}. {_HINT}"
        ) from error
    try:
        yield launcher
    finally:
        with contextlib.suppress(TimeoutError):
            await _in_thread(ray.shutdown, CONNECT_S)


async def check_cluster(address: str) -> None:
    """Refuse at once what Ray would wait minutes for. Raises OperatorError, RunError."""
    require("ray", "ray", "+ray_head_node_address")
    await check_ray_address(address, "+ray_head_node_address=", CONNECT_S / 3, _HINT)


async def _in_thread(call: Callable[[], T], limit_s: float) -> T:
    """`call` in a thread that the program's exit does not wait for, unlike asyncio.to_thread. Raises TimeoutError."""
    done: Future[T] = Future()

    def run() -> None:
        with contextlib.suppress(InvalidStateError):  # nobody waits any more
            try:
                done.set_result(call())
            except Exception as error:
                done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wait_for(asyncio.wrap_future(done), limit_s)


def _alive(ray: Any) -> set[str]:
    return {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def _append(log: Path, text: bytes) -> None:
    # A full disk costs log lines, not the watch over the server.
    with contextlib.suppress(OSError), log.open("ab") as file:
        file.write(text)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")

"""RayLauncher: starts servers on the nodes of an existing Ray cluster, each as a child of a small actor.

Each replica has one actor, which starts `services/runtime/serve.py` as a child process. The child dies with the actor
(`die_with_parent`), and Ray kills the actor when ng_run exits or the node fails. The Supervisor restarts servers; Ray's
own restarts are disabled. Rollyard connects to clusters but never starts or stops one.

A server whose settings reserve something (`resources`, or the GPUs of its engines) has a placement group with a bundle
for each replica: Ray places it, lets the cluster grow for it if it can, and moves the bundles of a lost node. All other
servers reserve nothing, so that a busy cluster does not delay them. Ray would pile these up on one node.

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.locked_files import open_private
from rollyard.records.optional import require
from rollyard.records.process_group import guarded
from rollyard.records.run_types import Launch
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.config.venv import needs_isolation
from rollyard.services.http.access import is_loopback
from rollyard.services.http.ray_address import check_ray_address, connect
from rollyard.services.runtime import ray_actor
from rollyard.services.runtime.launcher import Process
from rollyard.services.runtime.supervisor import REPORT_EVERY_S
from rollyard.services.server.settings import ServerSettings

T = TypeVar("T")

CONNECT_S = 15.0
IMPORT_S = 10.0
"""Importing Ray takes seconds on a busy host."""
START_S = 45.0
"""A start takes about a second. Ray ends ng_run 60 s after losing the cluster; the cause must come earlier."""
BUILD_S = 900.0
"""Start timeout if the node may first have to build the Python environment that the server's folder requires."""
SILENCE_S = 300.0
"""An actor that is silent for so long hangs. Ray decides whether a host is lost: a cut network may return, and after a
cut of 30 s, Ray's own connections take as long again to recover."""
REPORT_FIRST_S = 2.0
"""A cluster that has room places a server within a fraction of a second."""
REACH_S = 2.0
"""Timeout of a connection to a node. Ray counts a node that cannot be reached as alive for up to a minute."""
CHUNK = 1 << 20
"""Maximum number of log bytes per response."""
_STRICT = {"STRICT_PACK": " on one host (STRICT_PACK)", "STRICT_SPREAD": " on different hosts (STRICT_SPREAD)"}
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
                except self._ray.exceptions.ActorUnavailableError:  # it may pass
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
            lines = str(error).splitlines()
            why = next((line.strip() for line in lines if "because" in line), _first_line(error))
            write(f"its Ray actor has died: {why}\n".encode())
        finally:
            # In a thread, because `ray.kill` blocks while the cluster's head is unreachable.
            threading.Thread(target=self._end_actor, daemon=True).start()
        return -signal.SIGKILL

    def _end_actor(self) -> None:
        with contextlib.suppress(Exception):  # Ray raises if the actor or the cluster no longer exists
            self._ray.kill(self._actor)


@dataclass(frozen=True)
class _Reservation:
    """What the replicas of one server reserve."""

    name: str
    bundle: Mapping[str, float]
    """What each replica reserves; resource names are Ray's: CPU, GPU, memory in bytes, and custom ones."""
    replicas: int
    strategy: str
    group: Any
    """Ray's placement group."""
    limit_s: float

    def options(self, ray: Any) -> dict[str, Any]:
        """Return the options of an actor that takes any free bundle of the group."""
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self.group)
        custom = {name: amount for name, amount in self.bundle.items() if name not in ("CPU", "GPU", "memory")}
        amounts = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
        own = {option: self.bundle[name] for option, name in amounts.items() if name in self.bundle}
        return {**own, "resources": custom, "scheduling_strategy": strategy}

    def wait_reason(self, ray: Any) -> str:
        """Return what the replicas need and what the cluster has, as a clause."""
        times = f"{self.replicas} x " if self.replicas > 1 else ""
        needed = ", ".join(f"{_amount(name, amount)} {_unit(name)}" for name, amount in self.bundle.items())
        hosts = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        free, total = ray.available_resources(), ray.cluster_resources()
        found = ", ".join(
            f"{_amount(name, free.get(name, 0.0))} of {_amount(name, total.get(name, 0.0))} {_unit(name)}"
            for name in self.bundle
        )
        too_small = all(any(host.get(name, 0.0) < amount for name, amount in self.bundle.items()) for host in hosts)
        largest = " (no host has that much)" if too_small else _STRICT.get(self.strategy, "")
        on = "1 host" if len(hosts) == 1 else f"{len(hosts)} hosts"
        return f"{times}{needed}{largest}; free on the cluster's {on}: {found}"


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.3g}" if name == "memory" else f"{amount:g}"


def _unit(name: str) -> str:
    return "GiB of memory" if name == "memory" else name


def bundle_of(settings: ServerSettings) -> dict[str, float]:
    """Return what each replica of a server reserves, by Ray's names of resources; empty if it reserves nothing."""
    asked = settings.resources
    gpus = settings.needed_gpus if asked.num_gpus is None else asked.num_gpus
    amounts = {"CPU": asked.num_cpus, "GPU": gpus, "memory": asked.memory, **asked.custom}
    return {name: amount for name, amount in amounts.items() if amount}


class RayLauncher:
    """Starts servers on the nodes of a cluster. Create it with `on_cluster`, then call `reserve`."""

    def __init__(self, ray: Any, cache: Path) -> None:
        self._ray = ray
        self._cache = cache
        self.node_ip: str = ray.util.get_node_ip_address()
        """This host's address in the cluster."""
        self.hosts = _live_hosts(ray)
        self.cores: float = ray.cluster_resources().get("CPU", 1.0)
        self._reservations: dict[str, _Reservation] = {}
        ray.cloudpickle.register_pickle_by_value(ray_actor)
        self._placed: list[tuple[str, str]] = []
        """(host, server name) of every running or starting process."""
        self._kind = ray.remote(num_cpus=0, max_restarts=0)(ray_actor.ServerHost)

    @property
    def on_network(self) -> bool:
        """True if the servers run on several hosts, so the head must listen on `node_ip` and a token is required."""
        return self.hosts != {self.node_ip}

    def disconnect(self) -> None:
        self._ray.shutdown()

    async def reserve(
        self,
        servers: Sequence[ServerSpec],
        timeout_s: float,
        *,
        print_line: Callable[[str], None],
        stopped: asyncio.Event,
    ) -> None:
        """Reserve what the servers need. Returns when Ray has placed all of it, or when `stopped` is set.

        Raises OperatorError for resources that Ray refuses, and RunError if a server is not placed within its start
        timeout, or else within `timeout_s`.
        """
        try:
            for spec in servers:
                if bundle := bundle_of(spec.settings):
                    await self._reserve(spec, bundle, spec.settings.start_timeout_s or timeout_s)
            await self._wait_for_groups(print_line, stopped)
            self.hosts = await _in_thread(partial(_live_hosts, self._ray), START_S)
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            why = _first_line(error) or f"no response from the cluster for {START_S:g} s"
            raise RunError(f"the Ray cluster does not place the servers: {why}") from error

    async def _reserve(self, spec: ServerSpec, bundle: Mapping[str, float], limit_s: float) -> None:
        replicas, strategy = spec.replicas, spec.settings.resources.strategy
        create = partial(self._ray.util.placement_group, [bundle] * replicas, strategy=strategy)
        try:
            group = await _in_thread(create, START_S)
        except ValueError as error:
            raise OperatorError(f"{spec.name}: Ray does not accept resources: {_first_line(error)}") from error
        self._reservations[spec.name] = _Reservation(spec.name, bundle, replicas, strategy, group, limit_s)

    async def _wait_for_groups(self, print_line: Callable[[str], None], stopped: asyncio.Event) -> None:
        started = time.monotonic()
        report_at = started + REPORT_FIRST_S
        pending = {asyncio.ensure_future(one.group.ready()): one for one in self._reservations.values()}
        stopping = asyncio.create_task(stopped.wait())
        try:
            while pending and not stopping.done():
                left_s = min(report_at, *(started + one.limit_s for one in pending.values())) - time.monotonic()
                tasks = {*pending, stopping}
                done, _ = await asyncio.wait(tasks, timeout=max(left_s, 0.0), return_when=asyncio.FIRST_COMPLETED)
                for task in done - {stopping}:
                    del pending[task]
                    task.result()
                now = time.monotonic()
                for one in pending.values():
                    is_late = now >= started + one.limit_s
                    if is_late or now >= report_at:
                        needed = await _in_thread(partial(one.wait_reason, self._ray), START_S)
                    if is_late:
                        raise RunError(
                            f"{one.name}: the Ray cluster has not placed it within {one.limit_s:g} s. It needs "
                            f"{needed}. Add hosts, reserve less (resources), or wait longer (start_timeout_s, "
                            "--ready-timeout-s)"
                        )
                    if now >= report_at:
                        print_line(f"  {one.name:<36} waiting for {needed}, {now - started:.0f} s")
                if now >= report_at:
                    report_at = now + REPORT_EVERY_S
        finally:
            for task in (*pending, stopping):
                task.cancel()

    async def launch(self, launch: Launch, log: Path) -> Process:
        """Start the process on a node. Raises OperatorError, or ConnectionError if Ray does not start the actor."""
        errors = self._ray.exceptions
        isolated = needs_isolation(Path(launch.folder))
        limit_s = BUILD_S if isolated else START_S
        reserved = self._reservations.get(launch.name)
        placement: tuple[str, str] | None = None
        try:
            if reserved is not None:
                placement = "", launch.name
                options = reserved.options(self._ray)
            else:
                hosts = await self._reachable(await self._candidates())
                placement = self._least_loaded(hosts, launch.name), launch.name
                # Every Ray node has a resource `node:IP`; requesting a fraction of it places the actor there.
                options = {"resources": {f"node:{placement[0]}": 0.001}}
            self._placed.append(placement)
            actor = self._kind.options(**options).remote()
            pid = await self._wait_for_pid(self._start(actor, launch, isolated), placement[0], limit_s)
        except BaseException as error:
            if placement is not None:
                self._placed.remove(placement)
            if reserved is not None and isinstance(error, TimeoutError):
                needed = await _in_thread(partial(reserved.wait_reason, self._ray), START_S)
                error = TimeoutError(f"not placed within {limit_s:g} s; it needs {needed}")
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
        """Return the process id. `host`: where it shall start, if that is known.

        Raises ConnectionError if the host leaves the cluster; Ray would keep waiting.
        """
        task = asyncio.ensure_future(starting)
        deadline = time.monotonic() + limit_s
        try:
            while not (await asyncio.wait({task}, timeout=2.0))[0]:
                if host and host not in await self._candidates():
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

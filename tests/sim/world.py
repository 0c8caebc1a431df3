"""World: one seed of the whole stack, with its faults, its processes that die, and what must hold at every step."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson
from fastapi.dependencies import models

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import RollyardError
from rollyard.records.rollout_keys import Shard
from rollyard.records.run_types import Keys
from rollyard.records.script import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from rollyard.records.types import Json, State
from rollyard.resources_servers.base import serve
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.registry_client import RegistryClient, StackClients
from rollyard.services.head.server import Head
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.transport import _call
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection
from rollyard.services.rollouts.collector import CollectionLimits, Collector
from rollyard.services.rollouts.collectors import Collectors
from rollyard.services.rollouts.shards import merge
from rollyard.services.runtime.hosting import HostedServer
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from tests.sim.clock import CLOCK
from tests.sim.disk import SimDisk
from tests.sim.episodes import LEDGER, MAX_TURNS, Adding, Broken, Engine, Ledger, stranger
from tests.sim.loop import PROCESS, SimLoop
from tests.sim.network import Faults, SimNetwork, SimTransport, context_of
from tests.sim.output import EDIT, Output, shard_of

IDLE_S = 1000.0
"""Virtual time after which nothing may be left of any episode: much longer than agents wait for a response, or sessions
may be idle where agents cannot always close theirs.
"""
LIMIT_S = 12 * 3600.0
"""Virtual time within which every collection must end."""
START_S = 600.0
"""Virtual time within which a server must be ready, whatever goes wrong meanwhile."""
EXPIRY_S = 12.0
"""Virtual time after which the head does not take a silent server for a ready one."""
MAX_STEPS = 2_000_000
MAX_STARTS = 80
"""How often a command is repeated; the operator mends the network and the disk after half of that."""
KEYS = Keys(run_id="simulated", secret="a secret", token="a token")
HEAD = "http://head:1"
KILLED = "killed"
_TAKEN = re.compile(r"was (removed|moved|replaced)\b.* while it was")
"""What a command says whose file another program has taken from it."""
_LOST = frozenset({"session_lost", "wrong_run"})
_FAILURES = _LOST | {"unreachable", "connection_lost", "timeout", "rate_limited", "upstream_error", "malformed_answer"}
"""Kinds of failures that hosts and engines cause; neither a model nor our code may cause one."""
_RESUMING = re.compile(r"resuming: (\d+) of")


class _Socket:
    """What HostedServer asks of its socket."""

    def __init__(self, address: str) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address, 1

    def close(self) -> None:
        pass


class SimHosted(HostedServer):
    """A server that the simulated network calls, instead of a listener."""

    async def listen(self) -> None:
        self._lag.start()


class _Loading(SimpleAgent):
    """Its start takes a while, in which it reports what it does."""

    @property
    def phase(self) -> str:
        return "" if self.ready else "loading"

    async def start(self) -> None:
        await asyncio.sleep(CLOCK.rng.expovariate(1.0))
        await super().start()


class _Part:
    """One of the collectors of a command that has several."""

    def __init__(self, world: World, process: str, end: asyncio.Future[str]) -> None:
        self.process = process
        self._world = world
        self._end = end

    def send(self, number: signal.Signals) -> None:
        if not self._end.done():
            self._world.send(self.process, number)

    async def wait(self) -> int:
        how = await asyncio.shield(self._end)
        return {KILLED: -signal.SIGKILL, "complete": EXIT_DONE, "interrupted": EXIT_INTERRUPTED}.get(how, EXIT_FAILED)


@dataclass(frozen=True)
class Scenario:
    """What a seed plays. Times are means in seconds of virtual time; 0: never."""

    tasks: int
    refused: int | None
    """A task that its environment rejects."""
    repeats: int
    parallel: int
    environments: int
    replicas: int
    engines: int
    faults: Faults
    engine: float
    """Share of the engine's responses that are faulty or late."""
    kills: float
    """A server dies, or all of its kind, and is started again."""
    freezes: float
    """A server hangs. Half of those that do are replaced meanwhile, and come back as zombies."""
    cuts: float
    """A link between two processes is cut."""
    collector_kills: float
    collector_freezes: float
    interrupts: float
    """A collector gets Ctrl-C, and perhaps a second one."""
    mistakes: float
    """Probability that the operator repeats a command with another option or input, before the right one."""
    overwrites: float
    """Probability that a command starts over."""
    power: float
    """The host of the collectors loses power."""
    merges: float
    """`ng_merge` is started while jobs collect."""
    tampering: float
    """Another program renames, edits, truncates, extends or removes a file of the output."""
    full: float
    """Probability that a write finds the disk full."""
    collectors: int
    """Number of processes with which a command collects that has no shard."""
    shards: tuple[int, ...]
    """Number of jobs that share the output, and of those that continue it after all of the jobs before were killed."""

    @property
    def idle_s(self) -> float:
        """Idle limit of sessions: out of reach where agents can always close theirs, so that one left open is seen."""
        is_opened_again = self.kills and self.faults.slow  # at a restarted server, which does not know of the close
        return 60.0 if self.freezes or self.cuts or is_opened_again else 2 * LIMIT_S

    @property
    def is_calm(self) -> bool:
        """Whether no server, link or engine fails, so that no attempt does."""
        faults = self.faults
        return not any((*list(vars(faults).values())[1:], self.engine, self.kills, self.freezes, self.cuts))

    @property
    def failures(self) -> frozenset[str]:
        """Kinds of failures that an attempt can have."""
        if self.is_calm:
            return frozenset()
        is_stable = not (self.kills or self.freezes or self.cuts or self.faults.duplicate or self.engines > 1)
        return _FAILURES - _LOST if is_stable else _FAILURES

    @classmethod
    def drawn(cls, rng: random.Random) -> Scenario:
        is_calm = rng.random() < 0.1

        def rate(most: float) -> float:
            return 0.0 if is_calm else rng.choice([0.0, rng.uniform(0.0, most)])

        def every(least_s: float, most_s: float) -> float:
            return rng.choice([0.0, rng.uniform(least_s, most_s)])

        return cls(
            tasks=(tasks := rng.randint(1, 4)),
            refused=rng.choice([None, None, None, tasks - 1]) if tasks > 1 else None,
            repeats=rng.randint(1, 3),
            parallel=rng.randint(1, 8),
            environments=rng.randint(1, 2),
            replicas=rng.choice([1, 1, 2]),
            engines=rng.choice([1, 1, 2]),
            faults=Faults(
                delay_s=rng.choice([0.001, 0.01, 0.1]),
                slow=rate(0.02),
                refused=rate(0.05),
                lost=rate(0.03),
                silent=rate(0.01),
                duplicate=rate(0.05),
                answer_lost=rate(0.03),
                cut=rate(0.03),
            ),
            engine=rate(0.2),
            kills=0.0 if is_calm else every(2.0, 60.0),
            freezes=0.0 if is_calm else rng.choice([0.0, rng.uniform(10.0, 120.0), 0.0]),
            cuts=0.0 if is_calm else rng.choice([0.0, rng.uniform(10.0, 120.0), 0.0]),
            collector_kills=every(1.0, 30.0),
            collector_freezes=every(5.0, 60.0),
            interrupts=every(1.0, 30.0),
            mistakes=rate(0.3),
            overwrites=rng.choice([0.0, 0.0, 0.1]),
            power=rng.choice([0.0, every(5.0, 60.0)]),
            merges=every(5.0, 60.0),
            tampering=rng.choice([0.0, every(5.0, 60.0)]),
            full=rng.choice([0.0, 0.0, 0.05]),
            collectors=rng.choice([1, 1, 1, 2, 3]),
            shards=tuple(rng.choice([1, 1, 2, 3]) for _ in range(rng.choice([1, 1, 2]))),
        )


class World:
    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(f"world {seed}")
        self.scenario = Scenario.drawn(self.rng)
        self.folder = Path(
            tempfile.mkdtemp(prefix="rollyard-sim-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        )
        self.loop = SimLoop(random.Random(f"order {seed}"), self._after_step)
        log = self.log if traced else None
        self.network = SimNetwork(self.loop, random.Random(f"network {seed}"), self.scenario.faults, log)
        if not self.scenario.freezes and not self.scenario.cuts:
            self.network.patience_s = 60.0
        self.disk = SimDisk(self.folder, random.Random(f"disk {seed}"), self.loop)
        self.disk.on_death, self.disk.on_write = self._died, self._after_write
        self.trace: list[str] = []
        self.ledger = Ledger(restarts=self.scenario.kills > 0, repeats=self.scenario.faults.duplicate > 0)
        self.servers: dict[str, Server] = {}
        """Process -> its server, while it lives."""
        self._numbers: Counter[str] = Counter()
        self._slots: dict[tuple[str, int], str] = {}
        """Server and number of its replica -> the process that `ng_run` takes for it."""
        self._addresses: list[str] = []
        """Addresses of dead processes. Another server may get one of them."""
        self._ends: dict[str, asyncio.Future[str]] = {}
        """Process on the host of the collectors -> how it ended."""
        self._parts: defaultdict[str, list[str]] = defaultdict(list)
        """Process -> the processes that it has started, which die with it."""
        self._collectors: dict[str, tuple[Collector, OpenCollection]] = {}
        engines = [f"engine-{number}" for number in range(self.scenario.engines)]
        self._engines = [Engine(name, random.Random(f"{name} {seed}"), self.scenario.engine) for name in engines]
        self._is_whole = asyncio.Event()
        """Set once all rollouts are in files."""
        refused = set() if self.scenario.refused is None else {self.scenario.refused}
        tasks, repeats, is_ours = self.scenario.tasks, self.scenario.repeats, not self.scenario.tampering
        path = self.folder / "out" / "rollouts.jsonl"
        self._limits = CollectionLimits(self.scenario.parallel, rollout_timeout_s=120.0, max_failure_rate=1.0)
        self.output = Output(
            path,
            tasks,
            repeats,
            refused,
            self.scenario.failures,
            self.ledger,
            self._limits,
            self.disk.synced,
            is_ours=is_ours,
        )

    def run(self) -> None:
        """Play the seed. Raises Broken, or what the product's code raised where it must not."""
        CLOCK.start(self.loop, self.seed)
        LEDGER.set(self.ledger)
        asyncio.set_event_loop(self.loop)
        try:
            with self.disk.installed():
                try:
                    self.loop.run_until_complete(self._play())
                    if unhandled := self.loop.unhandled():
                        raise Broken(unhandled[0])
                finally:
                    self._bury()
            self.output.check_end()
        finally:
            asyncio.set_event_loop(None)
            CLOCK.loop = None
            shutil.rmtree(self.folder, ignore_errors=True)

    def log(self, text: str) -> None:
        self.trace.append(f"{self.loop.time():10.3f} {PROCESS.get():16} {text.replace(str(self.folder), '')}")

    def _bury(self) -> None:
        """Collect what is left of the processes while the disk is still simulated, so that it touches no file."""
        self.disk.end()
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # coroutines that were never awaited
            self.loop.end()
            self.network.end()
            self._ends.clear()
            self._collectors.clear()
            self.servers.clear()
            for name, function in vars(models).items():
                if name.endswith("_cached"):  # FastAPI's caches hold the servers of thousands of routes
                    function.cache_clear()
            gc.collect()
        sys.unraisablehook = hook

    async def _play(self) -> None:
        (self.folder / "out").mkdir()
        tasks = [self._task(number) for number in range(self.scenario.tasks)]
        (self.folder / "in.jsonl").write_bytes(b"".join(tasks))
        (self.folder / "other.jsonl").write_bytes(b"".join([*tasks[:-1], tasks[-1].replace(b"reach", b"add up to")]))
        self.disk.sync_all()
        self._start_head()
        for engine in self._engines:
            self.network.mount(f"http://{engine.name}:1", engine.name, engine)
        for name in self._kinds:
            for index in range(self.scenario.replicas):
                await self._start_server(name, index)
        self.disk.full = self.scenario.full
        faults = asyncio.create_task(self._faults())
        await self._collect()
        faults.cancel()
        await asyncio.wait([faults])
        self.disk.full = 0.0
        if not faults.cancelled():
            faults.result()
        if self.scenario.power:
            await self._lose_power()
        for (name, index), process in [*self._slots.items()]:
            if process not in self.servers:  # the faults have ended between its death and its return
                await self._replace(name, index, process)
        await self._last_jobs()  # an operator may repeat a command that is complete
        await self._check_servers()

    def _task(self, number: int) -> bytes:
        target = self.rng.randint(0, 6)
        if number == self.scenario.refused:
            target = -1
        agent = f"agent-{number % self.scenario.environments}"
        question = {"role": "user", "content": f"reach target {target}"}
        params = {"input": [question]}
        ref = {"type": "responses_api_agents", "name": agent}
        environment = f"environment-{number % self.scenario.environments}"
        task = {"target": target, "environment": environment, "agent_ref": ref, "responses_create_params": params}
        self.ledger.tasks.append(task)
        return orjson.dumps(task) + b"\n"

    # Processes

    def _spawn_name(self, name: str) -> str:
        self._numbers[name] += 1
        return f"{name}#{self._numbers[name]}"

    def _client(self, process: str, lag: LoopLag) -> tuple[ServerClient, RegistryClient]:
        transport = SimTransport(self.network, process, lag)
        registry = RegistryClient(transport, HEAD, KEYS)
        return ServerClient(transport, KEYS, AddressBook(registry.directory), clock=lag.now), registry

    def _died(self, process: str, how: str = KILLED) -> None:
        """End a process, of which nothing runs again."""
        self.log(f"{process} ended: {how}")
        self.output.process_died(self.disk.open_of(process))
        self.loop.kill(process)
        self.disk.close_of(process)
        self._addresses += self.network.process_died(process)
        self.servers.pop(process, None)
        if (end := self._ends.get(process)) is not None and not end.done():
            end.set_result(how)
        for part in self._parts.pop(process, ()):
            if not self._ends[part].done():
                self._died(part)

    # The servers

    def _start_head(self) -> None:
        self._kinds: dict[str, tuple[str, type[Any], Json]] = {}
        urls = [f"http://{engine.name}:1/v1" for engine in self._engines]
        model = {"model": "m", "base_url": urls, "request_timeout_s": 20.0, "total_timeout_s": 60.0}
        self._kinds["model"] = "responses_api_models", VllmModel, model
        limits = {"session_idle_s": self.scenario.idle_s}
        for number in range(self.scenario.environments):
            environment = f"environment-{number}"
            self._kinds[environment] = "resources_servers", _ADDING, limits
            refs = {"resources_server": {"name": environment}, "model_server": {"name": "model"}}
            self._kinds[f"agent-{number}"] = "agents", _Loading, {**refs, **_AGENT}
        specs = [
            ServerSpec(name, family, name, self.folder, kind.Settings.model_validate(raw), raw=raw, isolated=False)
            for name, (family, kind, raw) in self._kinds.items()
        ]
        lag = LoopLag()
        self.registry = ServerRegistry(KEYS.run_id, specs, {}, clock=lag.now)
        client, _ = self._client("head", lag)
        context = Context("head", KEYS, client)
        head = Head(ServerSettings(), context, self.registry, RunConfig(tuple(specs), {}), self.folder)
        head.ready = True
        self.network.mount(HEAD, "head", head)

    async def _start_server(self, name: str, index: int) -> None:
        """Start a process for this replica, and wait until it is ready or has been replaced."""
        process = self._slots[name, index] = self._spawn_name(name)
        self.registry.expect(process)
        self.loop.spawn(process, self._serve(name, process, self._free_address()))
        until = self.loop.time() + START_S
        while not self.registry.is_ready(process) and self._slots[name, index] == process:
            if self.loop.time() > until:
                self.loop.errors.append(f"{process} is not in the directory after {START_S:g} s")
            await asyncio.sleep(0.05)

    def _free_address(self) -> str:
        if self._addresses and self.rng.random() < 0.8:
            return self._addresses.pop(self.rng.randrange(len(self._addresses)))
        self._numbers["address"] += 1
        return f"10.0.0.{self._numbers['address']}"

    async def _serve(self, name: str, process: str, address: str) -> None:
        lag = LoopLag()
        client, registry = self._client(process, lag)
        _, kind, raw = self._kinds[name]
        context = Context(name, KEYS, client, endpoints=client.transport, instance=process)
        server = self.servers[process] = kind(kind.Settings.model_validate(raw), context)
        hosted = SimHosted(server, cast(Any, _Socket(address)), lag=lag)
        self.network.mount(hosted.url, process, server)
        while True:
            try:
                await hosted.join(process, registry, client.book)
            except RollyardError as error:
                self.log(f"cannot join: {error}")
                await asyncio.sleep(0.5)
            else:
                return

    # What goes wrong

    async def _faults(self) -> None:
        scenario = self.scenario
        acts = {
            self._kill_server: scenario.kills,
            self._freeze_server: scenario.freezes,
            self._cut_link: scenario.cuts,
            self._lose_power: scenario.power,
            self._merge: scenario.merges,
            self._tamper: scenario.tampering,
        }
        repeated = [self._repeat(act, mean_s) for act, mean_s in acts.items() if mean_s]
        await asyncio.gather(*repeated, self._merge_whole())

    async def _repeat(self, act: Callable[[], Coroutine[Any, Any, None]], mean_s: float) -> None:
        for _ in range(12):
            await asyncio.sleep(self.rng.expovariate(1.0 / mean_s))
            await act()

    async def _kill_server(self) -> None:
        """Kill a server, or the host of all of its kind. Those that are started again may get each other's address."""
        servers = list(self._slots.items())
        one = self.rng.choice(servers)
        family, _, _ = self._kinds[one[0][0]]
        alike = [server for server in servers if self._kinds[server[0][0]][0] == family]
        killed = self.rng.choice([[one], alike])
        for _, process in killed:
            self._died(process)
        if self._addresses and self.rng.random() < 0.3:
            self.network.mount(f"http://{self._addresses.pop()}:1", "stranger", stranger)
        await asyncio.sleep(self.rng.choice([0.0, self.rng.uniform(0.0, 3.0)]))
        await asyncio.gather(*(self._replace(name, index, process) for (name, index), process in killed))
        for server in self.servers.values():
            answer = await _call(server, "POST", "/close", b"{}", {"x-rollyard-run": "another"})
            if answer.status != 421:
                raise Broken(f"{server.name} has served another run: {answer}")

    async def _replace(self, name: str, index: int, process: str) -> None:
        if self._slots[name, index] == process:  # else that has been done
            self.registry.remove(process)
            await self._start_server(name, index)

    async def _freeze_server(self) -> None:
        (name, index), process = self.rng.choice(list(self._slots.items()))
        self.log(f"SIGSTOP {process}")
        self.loop.freeze(process)
        try:
            if self.rng.random() < 0.5:  # its host seems to be lost, and returns
                await self._replace(name, index, process)
            await asyncio.sleep(silent_s := self.rng.expovariate(0.1))
            ready = self.registry.directory().servers[name]
            is_listed = any(self.network.apps[url][0] == process for url in ready if url in self.network.apps)
            if silent_s > EXPIRY_S and is_listed and not self.scenario.faults.slow:
                raise Broken(f"the directory lists {process} as ready, which is silent since {silent_s:.3f} s")
        finally:  # also if the faults end meanwhile
            self._thaw(process)

    async def _cut_link(self) -> None:
        collectors = (process for process, end in self._ends.items() if not end.done())
        engines = (engine.name for engine in self._engines)
        link = frozenset(self.rng.sample(["head", *engines, *self._slots.values(), *collectors], 2))
        self.log(f"cut {sorted(link)}")
        self.network.cut_links.add(link)
        try:
            await asyncio.sleep(self.rng.expovariate(0.1))
        finally:
            self.network.cut_links.discard(link)

    async def _lose_power(self) -> None:
        self.log("power failure")
        self._kill_collectors()
        self.output.check_kept()
        self.disk.lose_power()
        self.output.check_reported()

    def _kill_collectors(self) -> None:
        for process, end in self._ends.items():
            if not end.done():
                self._died(process)

    async def _merge(self) -> None:
        if max(self.scenario.shards) > 1:
            process = self._spawn_name("merge")
            end = self._ends[process] = self.loop.create_future()
            if self.rng.random() < 0.5:
                self.disk.die_within(process, 20)
            self.loop.spawn(process, self._command(process, self._merged()))
            await end

    async def _merge_whole(self) -> None:
        """Merge as soon as there is nothing left to collect, while jobs are about to end."""
        if self.scenario.merges:
            await self._is_whole.wait()
            await self._merge()

    async def _merged(self) -> str:
        merged = await asyncio.to_thread(merge, self.output.path)
        return f"merged {merged.files} files"

    async def _tamper(self) -> None:
        """What another program does to a file. The operator undoes it after a while, as the messages ask for."""
        files = sorted(path for path in self.output.folder.iterdir() if path.name.startswith("rollouts"))
        if not files:
            return
        path, act = self.rng.choice(files), self.rng.choice(["rename", "edit", "truncate", "extend", "remove"])
        size = path.stat().st_size
        self.output.reported.clear()
        self.log(f"{act} {path.name}")
        if act == "rename":
            await self._rename_for_a_while(path)
        elif act == "edit" and size:
            await self._edit_for_a_while(path, self.rng.randrange(size))
        elif act == "truncate" and path.suffix == ".jsonl":
            os.truncate(path, self.rng.randint(0, size))
        elif (
            act == "extend" and path.suffix == ".jsonl" and _manifest_of(path).exists()
        ):  # else nobody can tell whose it is
            self._put(path, size, b'{"_ng_task_index": 0, ')
        elif act == "remove" and path.name.endswith("_status.json"):
            path.unlink()

    async def _rename_for_a_while(self, path: Path) -> None:
        aside = path.with_name(f"aside {path.name}")
        path.rename(aside)
        try:
            await asyncio.sleep(self.rng.expovariate(0.2))
        finally:
            rows = shard.output(self.output.path) if (shard := shard_of(path)) else path
            beside = _manifest_of(path) if rows == path else rows
            is_owned = shard is None or beside.exists()  # else a merge has ended its shard, and nobody would remove it
            if is_owned and not path.exists() and aside.exists():
                aside.rename(path)
                self.disk.sync_all()  # or a power failure would take the file away again, and nobody would mend it

    async def _edit_for_a_while(self, path: Path, place: int) -> None:
        fd = os.open(path, os.O_RDWR)  # whatever name the file has later
        try:
            before = os.pread(fd, 1, place)
            os.pwrite(fd, EDIT, place)
            await asyncio.sleep(self.rng.expovariate(0.2))
        finally:
            if os.pread(fd, 1, place) == EDIT:
                os.pwrite(fd, before, place)
            os.close(fd)

    @staticmethod
    def _put(path: Path, place: int, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY)
        os.pwrite(fd, data, place)
        os.close(fd)

    # The collection

    async def _collect(self) -> None:
        """Start the jobs that share the output; the last ones are repeated, as a user does, until it is complete."""
        for count in self.scenario.shards[:-1]:
            jobs = [asyncio.create_task(self._job(shard)) for shard in _shards(count)]
            await asyncio.wait(jobs, timeout=self.rng.expovariate(0.1))
            for job in jobs:
                job.cancel()
            await asyncio.wait(jobs)
            self._kill_collectors()
        await self._last_jobs()

    async def _last_jobs(self) -> None:
        await asyncio.gather(*(self._job(shard) for shard in _shards(self.scenario.shards[-1])))

    async def _job(self, shard: Shard | None) -> None:
        """Repeat one command until it reports that its part of the output is complete."""
        name = "collector" if shard is None else f"collector-{shard.number}"
        hung: list[str] = []
        for start in range(MAX_STARTS):
            if start == MAX_STARTS // 2:
                self._mend()
            process = self._spawn_name(name)
            end = self._ends[process] = self.loop.create_future()
            self.loop.spawn(process, self._command(process, self._collector(process, shard)))
            if not await self._disturb(process, end):
                hung.append(process)
                self.loop.call_later(self.rng.expovariate(1 / 20), self._thaw, process)
                continue
            how = await asyncio.shield(end)  # a cancelled job leaves its process to be killed
            if self.output.is_done(shard, how):
                break
            if how != KILLED:
                await asyncio.sleep(self.rng.uniform(0.1, 20.0))
            if self.rng.random() < self.scenario.mistakes:
                await self._mistake(shard)
        else:
            raise Broken(f"the command was repeated {MAX_STARTS} times, and the output is not complete")
        for process in hung:
            self._thaw(process)
            await asyncio.shield(self._ends[process])

    async def _disturb(self, process: str, end: asyncio.Future[str]) -> bool:
        """Kill, freeze or leave alone a collector that was just started; False if it is frozen, and left so."""
        scenario, rng = self.scenario, self.rng
        kill_s, freeze_s = (
            rng.expovariate(1.0 / mean_s) if mean_s and self._may_disturb() else LIMIT_S
            for mean_s in (scenario.collector_kills, scenario.collector_freezes)
        )
        if min(kill_s, freeze_s) == LIMIT_S:
            return True
        await asyncio.wait([end], timeout=min(kill_s, freeze_s))
        if end.done():
            return True
        if kill_s < freeze_s:
            if rng.random() < 0.5:
                self._died(process)
            else:
                self.disk.die_within(process, 8)
            return True
        self.log(f"SIGSTOP {process}")
        self.loop.freeze(process)
        if rng.random() < 0.3:
            await asyncio.sleep(rng.expovariate(0.1))
            self._thaw(process)
            return True
        if max(scenario.shards) == 1 and rng.random() < 0.5:
            self._start_over()
        return False

    def _thaw(self, process: str) -> None:
        self.log(f"SIGCONT {process}")
        self.loop.thaw(process)

    def _start_over(self) -> None:
        """Move all files of the output to another folder, as an operator does who wants to start again."""
        self._numbers["moved"] += 1
        folder = self.folder / f"moved-{self._numbers['moved']}"
        folder.mkdir()
        self.log(f"mv out/* {folder.name}")
        self.output.start_over()
        for path in sorted(self.output.folder.iterdir()):
            path.rename(folder / path.name)
        self.disk.sync_all()  # or a power failure would move them back over the new ones

    def _mend(self) -> None:
        """End all faults, so that a command that still does not succeed will never."""
        self.log("everything is mended")
        self.network.faults = Faults()
        self.network.cut_links.clear()
        self.disk.full = 0.0
        for engine in self._engines:
            engine.rate = 0.0

    async def _command(self, process: str, main: Coroutine[Any, Any, str]) -> None:
        try:
            how = await main
        except RollyardError as error:
            how = f"error: {error}"
            if _TAKEN.search(how) and not self.scenario.tampering and not self._numbers["moved"]:
                self.loop.errors.append(f"{process} has lost a file to another command: {how}")
        except Exception as error:
            if not self.loop.is_dead(process):
                self._ends[process].set_exception(error)  # a command that ends with a traceback
            return
        if left := self.disk.open_of(process):
            self.loop.errors.append(f"{process} has ended ({how}), and left files open: {left}")
        self._died(process, how)

    async def _collector(self, process: str, shard: Shard | None, *, mistake: str = "", merges: bool = True) -> str:
        """Run one command; `mistake`: what its operator has mistyped."""
        lag = LoopLag()
        client, registry = self._client(process, lag)
        plan = CollectionPlan(
            self.output.path,
            repeats=self.scenario.repeats + (mistake == "repeats"),
            seeded=mistake == "seeded",
            params={"temperature": 0.5} if mistake == "params" else {},
            overwrite=shard is None and not mistake and self._starts_over(),
            limits=self._limits,
            shard=shard,
            merges=merges,
        )
        tasks = TaskFile(self.folder / ("other.jsonl" if mistake == "input" else "in.jsonl"), agent=None, limit=None)
        async with OpenCollection.opened(plan, tasks, StackClients(client, registry)) as collection:
            for note in collection.notes:
                self._check_printed(note)

            async def watch(collector: Collector | Collectors) -> State:
                if isinstance(collector, Collector):
                    self._collectors[process] = collector, collection
                mean_s = self.scenario.interrupts
                if merges and mean_s and self._may_disturb():
                    delay_s = self.rng.expovariate(1.0 / mean_s)
                    self.loop.call_later(delay_s, self._interrupt, process, collector, collection)
                return await collector.run()

            if shard is None and self.scenario.collectors > 1 and collection.missing:
                self.output.commands[process].sums = True
                start = partial(self._start_part, process)
                return await collection.run_collectors(self.scenario.collectors, start, watch, print_line=self.log)
            return await collection.run(watch, print_line=self.log)

    async def _start_part(self, command: str, shard: Shard, write: Callable[[bytes], None]) -> _Part:
        process = self._spawn_name(f"collector-{shard.number}")
        end = self._ends[process] = self.loop.create_future()
        self._parts[command].append(process)
        if self.scenario.collector_kills and self._may_disturb():
            self.disk.die_within(process, 60)
        self.loop.spawn(process, self._command(process, self._collector(process, shard, merges=False)))
        return _Part(self, process, end)

    def send(self, process: str, number: signal.Signals) -> None:
        if (found := self._collectors.get(process)) is None:  # it does not handle signals yet
            self._died(process)
        else:
            act = partial(self._drain, process, *found) if number == signal.SIGUSR1 else found[0].cancel
            self.loop.call_soon(act, context=context_of(process))

    def _drain(self, process: str, collector: Collector | Collectors, collection: OpenCollection) -> None:
        self.output.interrupted(process, collection.progress.in_flight)
        collector.drain()

    def _interrupt(self, process: str, collector: Collector | Collectors, collection: OpenCollection) -> None:
        """Ctrl-C, which lets what is in flight end; a second one does not."""
        self.log(f"Ctrl-C {process}")
        self._drain(process, collector, collection)
        if self.rng.random() < 0.5:
            self.loop.call_later(self.rng.expovariate(0.5), collector.cancel)

    def _starts_over(self) -> bool:
        if self.scenario.tampering or max(self.scenario.shards) > 1 or self.rng.random() >= self.scenario.overwrites:
            return False
        self._numbers["moved"] += 1
        self.output.reported.clear()
        return self._numbers["moved"] <= 3

    async def _mistake(self, shard: Shard | None) -> None:
        """Repeat the command with another option or input, which would mix other rollouts with those that are there."""
        if self.scenario.tampering or not self.output.rows():
            return
        mistake = self.rng.choice(["repeats", "seeded", "params", "input"])
        process = self._spawn_name("collector" if shard is None else f"collector-{shard.number}")
        end = self._ends[process] = self.loop.create_future()
        self.loop.spawn(process, self._command(process, self._collector(process, shard, mistake=mistake)))
        how = await asyncio.shield(end)
        if how != KILLED and not how.startswith("error: "):
            raise Broken(f"a command with other {mistake} has continued the output: {how}")

    def _may_disturb(self) -> bool:
        """Whether a command may still be disturbed, of which the first ones of a seed are."""
        self._numbers["disturbed"] += 1
        return self._numbers["disturbed"] <= 24

    # What must hold

    def _after_step(self) -> None:
        if self.loop.errors:
            raise Broken(self.loop.errors[0])
        if self.ledger.wrong:
            raise Broken(self.ledger.wrong[0])
        if self.loop.steps > MAX_STEPS:
            raise Broken(f"the collection has not ended after {MAX_STEPS:,} steps")
        if self.loop.time() > LIMIT_S:
            raise Broken(f"the collection has not ended after {LIMIT_S:,} s of virtual time")

    def _after_write(self, process: str, path: str) -> None:
        """Check the file that a process has changed. What it may handle is not raised here, but in `_after_step`."""
        if process == "world":
            return
        try:
            self.output.check_change(process, Path(path))
            if not self._is_whole.is_set() and self.output.rows().keys() == self.output.due:
                self._is_whole.set()
        except Broken as broken:
            self.loop.errors.append(f"{process}: {broken}")

    def _check_printed(self, note: str) -> None:
        self.log(note)
        is_moved = self.scenario.tampering or self._numbers["moved"]
        if (found := _RESUMING.match(note)) and int(found[1]) > len(self.output.rows()) and not is_moved:
            raise Broken(f"{note!r} was printed, and {len(self.output.rows())} rollouts are in the files")

    async def _check_servers(self) -> None:
        """On a network that works again, nothing may be left of any episode once the idle limits have passed."""
        self._mend()
        for process in self.servers:
            self.loop.thaw(process)
        until = self.loop.time() + IDLE_S
        while left := self._left():
            if self.loop.time() > until:
                raise Broken(left)
            await asyncio.sleep(1.0)

    def _left(self) -> str:
        for process, server in self.servers.items():
            if server.sessions or server.in_flight or self.ledger.open[process]:
                return (
                    f"{process} has left {server.sessions} sessions, {server.in_flight} requests in flight and "
                    f"{self.ledger.open[process]} environments"
                )
        found = {url for urls in self.registry.directory().servers.values() for url in urls}
        if len(found) != len(self._slots):
            return f"the directory has {sorted(found)}, and the processes are {self._slots}"
        return ""


_ADDING = serve(Adding)
_AGENT = {"max_steps": MAX_TURNS, "model_timeout_s": 70.0, "tool_timeout_s": 20.0}


def _shards(count: int) -> list[Shard | None]:
    return [None] if count == 1 else [Shard(number + 1, count) for number in range(count)]


def _manifest_of(path: Path) -> Path:
    return path.with_name(f"{path.stem.removesuffix('_failures')}_manifest.json")

"""World: one seed of the whole stack, with its faults, its processes that die, and what must hold at every step."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson
from fastapi.dependencies import models

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import RollyardError
from rollyard.records.rollout_keys import Key, Shard
from rollyard.records.run_types import Keys
from rollyard.records.types import Json
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
from rollyard.services.rollouts.collector import CollectionLimits
from rollyard.services.rollouts.shards import merge
from rollyard.services.runtime.hosting import HostedServer
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from tests.sim.clock import CLOCK
from tests.sim.disk import SimDisk
from tests.sim.episodes import LEDGER, MAX_TURNS, Adding, Broken, Engine, Ledger, check_row, stranger
from tests.sim.loop import PROCESS, SimLoop
from tests.sim.network import Faults, SimNetwork, SimTransport

IDLE_S = 1000.0
"""Virtual time after which nothing may be left of any episode: agents wait 900 s for a model, and idle limits are less.
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
_SHARD = re.compile(r"\.shard-(\d+)-of-(\d+)")
_ASIDE = re.compile(r"_(torn|recovered)\.|\.stale")
"""Files in which the product keeps what others have damaged."""
_TAKEN = re.compile(r"was (removed|moved|replaced)\b.* while it was")
"""What a command says whose file another program has taken from it."""
_FAULTS = frozenset(
    {"unreachable", "connection_lost", "session_lost", "wrong_run", "timeout"}
    | {"rate_limited", "upstream_error", "malformed_answer"}
)
"""Kinds of failures that hosts and engines cause."""
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


@dataclass(frozen=True)
class Scenario:
    """What a seed plays. Times are means in seconds of virtual time; 0: never."""

    tasks: int
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
    power: float
    """The host of the collectors loses power."""
    merges: float
    """`ng_merge` is started while jobs collect."""
    tampering: float
    """Another program renames, edits, truncates, extends or removes a file of the output."""
    full: float
    """Probability that a write finds the disk full."""
    shards: tuple[int, ...]
    """Number of jobs that share the output, and of those that continue it after all of the jobs before were killed."""

    @property
    def idle_s(self) -> float:
        """Idle limit of sessions: out of reach where agents can always close theirs, so that one left open is seen."""
        return 60.0 if self.freezes or self.cuts else 2 * LIMIT_S

    @property
    def is_calm(self) -> bool:
        """Whether no server, link or engine fails, so that no attempt does."""
        faults = self.faults
        return not any((*list(vars(faults).values())[1:], self.engine, self.kills, self.freezes, self.cuts))

    @classmethod
    def drawn(cls, rng: random.Random) -> Scenario:
        is_calm = rng.random() < 0.1

        def rate(most: float) -> float:
            return 0.0 if is_calm else rng.choice([0.0, rng.uniform(0.0, most)])

        def every(least_s: float, most_s: float) -> float:
            return rng.choice([0.0, rng.uniform(least_s, most_s)])

        return cls(
            tasks=rng.randint(1, 4),
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
            power=rng.choice([0.0, every(5.0, 60.0)]),
            merges=every(5.0, 60.0),
            tampering=rng.choice([0.0, every(5.0, 60.0)]),
            full=rng.choice([0.0, 0.0, 0.05]),
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
        engines = [f"engine-{number}" for number in range(self.scenario.engines)]
        self._engines = [Engine(name, random.Random(f"{name} {seed}"), self.scenario.engine) for name in engines]
        self._is_whole = asyncio.Event()
        """Set once all rollouts are in files."""
        self._reported: set[Key] = set()
        """What is in files that nobody but the commands has touched since one ended as complete."""

    @property
    def output(self) -> Path:
        return self.folder / "out" / "rollouts.jsonl"

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
            self._check_output()
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
            self.servers.clear()
            for name, function in vars(models).items():
                if name.endswith("_cached"):  # FastAPI's caches hold the servers of thousands of routes
                    function.cache_clear()
            gc.collect()
        sys.unraisablehook = hook

    async def _play(self) -> None:
        (self.folder / "out").mkdir()
        (self.folder / "in.jsonl").write_bytes(b"".join(self._task(number) for number in range(self.scenario.tasks)))
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
        await self._last_jobs()  # an operator may repeat a command that is complete
        await self._check_servers()

    def _task(self, number: int) -> bytes:
        target = self.rng.randint(0, 6)
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
        self.loop.kill(process)
        self.disk.close_of(process)
        self._addresses += self.network.process_died(process)
        self.servers.pop(process, None)
        if (end := self._ends.get(process)) is not None and not end.done():
            end.set_result(how)

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
        self.disk.lose_power()
        if lost := self._reported - self._keys().keys():
            raise Broken(f"commands have ended as complete, and a power failure took {sorted(lost)}")

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
        merged = await asyncio.to_thread(merge, self.output)
        return f"merged {merged.files} files"

    async def _tamper(self) -> None:
        """What another program does to a file. The operator undoes it after a while, as the messages ask for."""
        files = sorted(path for path in self.output.parent.iterdir() if path.name.startswith("rollouts"))
        if not files:
            return
        path, act = self.rng.choice(files), self.rng.choice(["rename", "edit", "truncate", "extend", "remove"])
        size = path.stat().st_size
        self._reported.clear()
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
            rows = shard.output(self.output) if (shard := _shard_of(path)) else path
            is_owned = rows == path or rows.exists()  # else a merge has taken the rows, and nobody would remove it
            if is_owned and not path.exists() and aside.exists():
                aside.rename(path)
                self.disk.sync_all()  # or a power failure would take the file away again, and nobody would mend it

    async def _edit_for_a_while(self, path: Path, place: int) -> None:
        edit = b"\x01"  # valid nowhere in JSON
        fd = os.open(path, os.O_RDWR)  # whatever name the file has later
        try:
            before = os.pread(fd, 1, place)
            os.pwrite(fd, edit, place)
            await asyncio.sleep(self.rng.expovariate(0.2))
        finally:
            if os.pread(fd, 1, place) == edit:
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
            if (how := await asyncio.shield(end)) == "complete":  # a cancelled job leaves its process to be killed
                self._report(shard)
                break
            if how != KILLED:
                await asyncio.sleep(self.rng.uniform(0.1, 20.0))
        else:
            raise Broken(f"the command was repeated {MAX_STARTS} times, and the output is not complete")
        for process in hung:
            self._thaw(process)
            await asyncio.shield(self._ends[process])

    async def _disturb(self, process: str, end: asyncio.Future[str]) -> bool:
        """Kill, freeze or leave alone a collector that was just started; False if it is frozen, and left so."""
        scenario, rng = self.scenario, self.rng
        kill_s, freeze_s = (
            rng.expovariate(1.0 / mean_s) if mean_s and self._numbers["disturbed"] < 12 else LIMIT_S
            for mean_s in (scenario.collector_kills, scenario.collector_freezes)
        )
        if min(kill_s, freeze_s) == LIMIT_S:
            return True
        self._numbers["disturbed"] += 1
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
        self._reported.clear()
        for path in sorted(self.output.parent.iterdir()):
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

    async def _collector(self, process: str, shard: Shard | None) -> str:
        lag = LoopLag()
        client, registry = self._client(process, lag)
        limits = CollectionLimits(parallel=self.scenario.parallel, rollout_timeout_s=120.0, max_failure_rate=1.0)
        plan = CollectionPlan(self.output, repeats=self.scenario.repeats, limits=limits, shard=shard)
        tasks = TaskFile(self.folder / "in.jsonl", agent=None, limit=None)
        async with OpenCollection.opened(plan, tasks, StackClients(client, registry)) as collection:
            for note in collection.notes:
                self._check_printed(note)
            return await collection.run(print_line=self.log)

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
            if path.endswith("_status.json"):
                self._check_status(Path(path))
            elif path.endswith(".jsonl") and self.output.parent == Path(path).parent:
                self._check_last_line(Path(path))
                if not self._is_whole.is_set() and len(self._keys()) == len(self._all):
                    self._is_whole.set()
        except Broken as broken:
            self.loop.errors.append(f"{process}: {broken}")

    def _check_last_line(self, path: Path) -> None:
        if not path.exists() or _ASIDE.search(path.name):
            return
        content = path.read_bytes()
        start = content.rfind(b"\n", 0, -1) + 1
        if not content.endswith(b"\n") or b"\x01" in content[start:]:
            return
        row = orjson.loads(content[start:])
        if path.stem.endswith("_failures"):
            if "reward" in row:
                raise Broken(f"a failed attempt has a reward: {row}")
            self._check_cause(row)
            return
        check_row(row, self.ledger)
        keys = _keys_in(content)
        if len(keys) != keys.total():
            raise Broken(f"{path.name} has a rollout twice: {keys}")

    def _check_cause(self, row: Json) -> None:
        """A failed attempt is a fault of a host or an engine, and neither the model's nor one of our code."""
        scenario, kind = self.scenario, row["failure_kind"]
        is_stable = not (scenario.kills or scenario.freezes or scenario.cuts or scenario.engines > 1)
        is_lost = kind in ("session_lost", "wrong_run") and is_stable and not self.ledger.repeats
        if scenario.is_calm or kind not in _FAULTS or is_lost:
            raise Broken(f"an attempt has failed without a cause: {row}")

    def _check_status(self, path: Path) -> None:
        """A status counts what is in the files, unless another program changes them, which is found a second later."""
        status = orjson.loads(path.read_bytes())
        if self.scenario.tampering:
            return
        shard = _shard_of(path)
        present = sum(shard is None or key in shard for key in self._keys())
        if status["measured"] > present:
            raise Broken(f"{path.name} counts {status['measured']} rollouts, and {present} are in the files")
        if status["state"] == "complete" and status["measured"] != status["expected"]:
            raise Broken(f"{path.name} is complete with {status['measured']} of {status['expected']} rollouts")

    def _check_printed(self, note: str) -> None:
        self.log(note)
        if (found := _RESUMING.match(note)) and int(found[1]) > len(self._keys()) and not self.scenario.tampering:
            raise Broken(f"{note!r} was printed, and {len(self._keys())} rollouts are in the files")

    def _report(self, shard: Shard | None) -> None:
        """A command says that its share is complete: check that it is, and expect it to stay so."""
        share = {key for key in self._all if shard is None or key in shard}
        if not self.scenario.tampering:
            if missing := share - self._keys().keys():
                raise Broken(f"a command has ended as complete, and {sorted(missing)} are missing")
            self._reported |= share

    @property
    def _all(self) -> set[Key]:
        return {(task, repeat) for task in range(self.scenario.tasks) for repeat in range(self.scenario.repeats)}

    def _keys(self) -> Counter[Key]:
        """The keys of the complete rows in all files of the output."""
        found = Counter[Key]()
        for path in (self.output, *sorted(self.output.parent.glob("rollouts.shard-*-of-?.jsonl"))):
            if path.exists():
                found += _keys_in(path.read_bytes())
        return found

    async def _check_servers(self) -> None:
        """On a network that works again, nothing may be left of any episode once the idle limits have passed."""
        self._mend()
        for process in self.servers:
            self.loop.thaw(process)
        for (name, index), process in self._slots.items():
            if process not in self.servers:
                await self._replace(name, index, process)
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

    def _check_output(self) -> None:
        if not self.output.exists():
            raise Broken("the output has left out everything")
        keys = _keys_in(self.output.read_bytes())
        if keys != Counter(self._all):
            raise Broken(f"the output has {sorted(keys.elements())}; expected each of {sorted(self._all)} once")
        rows = [orjson.loads(line) for line in self.output.read_bytes().splitlines()]
        for row in rows:
            check_row(row, self.ledger)
        proofs = Counter(row["proof"] for row in rows)
        if repeated := [one for one, count in proofs.items() if count > 1]:
            raise Broken(f"one episode gave two rows: {repeated}")
        status = orjson.loads(self.output.with_name("rollouts_status.json").read_bytes())
        if (status["state"], status["expected"], status["measured"]) != ("complete", len(keys), len(keys)):
            raise Broken(f"the last status is {status}")
        names = [path.name for path in self.output.parent.iterdir()]
        if left := [name for name in names if name.startswith((".", "rollouts.shard")) and not _ASIDE.search(name)]:
            raise Broken(f"temporary files are left: {left}")


_ADDING = serve(Adding)
_AGENT = {"max_steps": MAX_TURNS, "model_timeout_s": 70.0, "tool_timeout_s": 20.0}


def _shards(count: int) -> list[Shard | None]:
    return [None] if count == 1 else [Shard(number + 1, count) for number in range(count)]


def _shard_of(path: Path) -> Shard | None:
    found = _SHARD.search(path.name)
    return Shard(int(found[1]), int(found[2])) if found else None


def _manifest_of(path: Path) -> Path:
    return path.with_name(f"{path.stem.removesuffix('_failures')}_manifest.json")


def _keys_in(content: bytes) -> Counter[Key]:
    rows = [orjson.loads(line) for line in content.split(b"\n")[:-1] if b"\x01" not in line]
    return Counter((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows)

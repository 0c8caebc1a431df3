"""World: one seed of the whole stack, with its faults, its processes that die, and what must hold at the end."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import orjson

from rollyard.agents.simple_agent.app import SimpleAgent, SimpleAgentSettings
from rollyard.records.errors import RollyardError
from rollyard.records.rollout_keys import Shard
from rollyard.records.run_types import Keys
from rollyard.resources_servers.base import Environment, serve, tool
from rollyard.records.types import Verdict
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.registry_client import RegistryClient, StackClients
from rollyard.services.head.server import Head
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.request import Message, Receive, Scope, Send, read_body
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection
from rollyard.services.rollouts.collector import CollectionLimits
from rollyard.services.runtime.hosting import HostedServer
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from tests.sim.clock import CLOCK
from tests.sim.disk import Killed, SimDisk
from tests.sim.loop import PROCESS, SimLoop
from tests.sim.network import Faults, SimNetwork, SimTransport

IDLE_S = 120.0
LIMIT_S = 12 * 3600.0
"""Virtual time within which every collection must end."""
KEYS = Keys(run_id="simulated", secret="a secret", token="a token")
HEAD, ENGINE = "http://head:1", "http://engine:1"
_LEDGER = re.compile(r"total=(-?\d+) proof=(\w+)")
_ANSWER = re.compile(r"answer=(-?\d+) proof=(\w+)")


class Broken(AssertionError):
    """An invariant does not hold."""


def proof(secret: str, amounts: list[int]) -> str:
    return hashlib.sha256(f"{secret} {amounts}".encode()).hexdigest()[:12]


@dataclass
class Ledger:
    """What the environments have done, whatever anyone was told about it."""

    verdicts: dict[str, set[float]]
    """Proof of an episode -> the rewards that its environment gave."""
    open: Counter[str]


LEDGER = Ledger({}, Counter())


class Adding(Environment[Any]):
    """The model adds numbers until the total is the target. Its answer must name the total, and this episode's proof."""

    async def seed(self) -> None:
        self.secret = CLOCK.rng.randbytes(8).hex()
        self.amounts: list[int] = []
        LEDGER.open[PROCESS.get()] += 1

    @tool
    async def add(self, amount: int) -> str:
        """Add a number to the total."""
        self.amounts.append(amount)
        return f"total={sum(self.amounts)} proof={proof(self.secret, self.amounts)}"

    async def verify(self, response: Any) -> Verdict:
        found = _ANSWER.search(response.text)
        own = proof(self.secret, self.amounts)
        target = int(self.task["target"])
        is_right = found is not None and int(found[1]) == target == sum(self.amounts) and found[2] == own
        LEDGER.verdicts.setdefault(own, set()).add(float(is_right))
        return Verdict(reward=float(is_right), success=is_right, proof=own)

    async def close(self) -> None:
        LEDGER.open[PROCESS.get()] -= 1


class Engine:
    """The scripted policy, an OpenAI-compatible endpoint that answers from the conversation alone."""

    def __init__(self, rng: random.Random, rate: float) -> None:
        self._rng = rng
        self._rate = rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        status, answer = 200, b""
        draw = self._rng.random()
        if scope["path"] != "/v1/chat/completions":
            status, answer = 404, b'{"error": {"message": "no such path"}}'
        elif draw < self._rate / 4:
            status, answer = self._rng.choice([429, 500, 503]), b'{"error": {"message": "busy"}}'
        elif draw < self._rate / 2:
            answer = self._rng.choice([b"", b"null", b"<html>", b'{"choices": []}', b'{"choices": [{"message": {}}'])
        else:
            await asyncio.sleep(self._rng.expovariate(5.0) * (100 if draw < self._rate else 1))
            answer = orjson.dumps(self._completion(orjson.loads(body)))
        head: Message = {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        await send(head)
        await send({"type": "http.response.body", "body": answer})

    def _completion(self, request: Any) -> Any:
        messages = request["messages"]
        asked = re.search(r"target (\d+)", str([one for one in messages if one["role"] == "user"]))
        told = [_LEDGER.search(str(one["content"])) for one in messages if one["role"] == "tool"]
        seen = [one for one in told if one is not None]
        assert asked is not None
        target, total = int(asked[1]), int(seen[-1][1]) if seen else 0
        if total < target:
            amount = self._rng.randint(1, min(3, target - total))
            function = {"name": "add", "arguments": orjson.dumps({"amount": amount}).decode()}
            call = {"id": f"call_{self._rng.getrandbits(60):x}", "type": "function", "function": function}
            message: Any = {"role": "assistant", "content": None, "tool_calls": [call]}
            reason = "tool_calls"
        else:
            wrong = self._rng.random() < 0.3
            own = seen[-1][2] if seen else "none"
            message = {"role": "assistant", "content": f"answer={total + wrong} proof={own}"}
            reason = "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
        made = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        return made


class _Socket:
    """What HostedServer asks of its socket."""

    def __init__(self, name: str) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        return self._name, 1

    def close(self) -> None:
        pass


class SimHosted(HostedServer):
    """A server that the simulated network calls, instead of a listener."""

    async def listen(self) -> None:
        self._lag.start()


@dataclass(frozen=True)
class Scenario:
    tasks: int
    repeats: int
    parallel: int
    faults: Faults
    engine: float
    """Share of the engine's responses that are faulty or slow."""
    kills: float
    """Mean time between kills of a server, in seconds; 0: none."""
    freezes: float
    cuts: float
    collector_kills: float
    power: bool
    """Whether the collector's machine loses power when it is killed."""
    full: float
    shards: int

    @classmethod
    def drawn(cls, rng: random.Random) -> Scenario:
        def rate(most: float) -> float:
            return rng.choice([0.0, rng.uniform(0.0, most)])

        def every(least: float, most: float) -> float:
            return rng.choice([0.0, rng.uniform(least, most)])

        faults = Faults(
            rng.choice([0.001, 0.01, 0.1]),
            *(rate(0.02), rate(0.05), rate(0.03), rate(0.01), rate(0.05), rate(0.03), rate(0.03)),
        )
        return cls(
            tasks=rng.randint(1, 4),
            repeats=rng.randint(1, 3),
            parallel=rng.randint(1, 8),
            faults=faults,
            engine=rate(0.2),
            kills=every(2.0, 60.0),
            freezes=every(10.0, 120.0),
            cuts=every(10.0, 120.0),
            collector_kills=every(1.0, 30.0),
            power=rng.random() < 0.5,
            full=rng.choice([0.0, 0.0, 0.05]),
            shards=rng.choice([1, 1, 2, 3]),
        )


class World:
    def __init__(self, seed: int, on_step: Callable[[], None] | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(f"world {seed}")
        self.scenario = Scenario.drawn(self.rng)
        self.folder = Path(tempfile.mkdtemp(prefix="rollyard-sim-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.loop = SimLoop(random.Random(f"order {seed}"), self._after_step)
        self.network = SimNetwork(self.loop, random.Random(f"network {seed}"), self.scenario.faults)
        self.disk = SimDisk(self.folder, random.Random(f"disk {seed}"))
        self.trace: list[str] = []
        self._numbers: Counter[str] = Counter()
        self._processes: dict[str, str] = {}
        """Role, such as `agent`, -> name of its present process."""
        self._ended = False
        self.registry: ServerRegistry | None = None
        self.servers: dict[str, Server] = {}

    @property
    def output(self) -> Path:
        return self.folder / "out" / "rollouts.jsonl"

    def run(self) -> None:
        """Play the seed. Raises Broken, or what the product's code raised where it must not."""
        CLOCK.start(self.loop, self.seed)
        LEDGER.verdicts.clear()
        LEDGER.open.clear()
        asyncio.set_event_loop(self.loop)
        try:
            with self.disk.installed():
                try:
                    self.loop.run_until_complete(self._play())
                finally:
                    self._bury()
            self._check_end()
        finally:
            asyncio.set_event_loop(None)
            CLOCK.loop = None
            shutil.rmtree(self.folder, ignore_errors=True)

    def _bury(self) -> None:
        """Drop what is left of the processes, so that nothing of it touches a file."""
        self.disk.is_gone = True
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        for task in self.loop.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.set_exception_handler(lambda loop, context: None)
        self.loop.drop()
        self.servers.clear()
        gc.collect()
        sys.unraisablehook = hook

    def log(self, text: str) -> None:
        self.trace.append(f"{self.loop.time():10.3f} {PROCESS.get():14} {text}")

    def _after_step(self) -> None:
        if self.loop.steps > 2_000_000:
            raise Broken("2,000,000 steps")
        if self.loop.time() > LIMIT_S:
            raise Broken(f"the collection has not ended after {LIMIT_S:g} s of virtual time")

    async def _play(self) -> None:
        (self.folder / "out").mkdir()
        (self.folder / "in.jsonl").write_bytes(
            b"".join(
                orjson.dumps(
                    {
                        "id": f"task {number}",
                        "target": self.rng.randint(0, 6),
                        "agent_ref": {"type": "responses_api_agents", "name": "agent"},
                    }
                )
                + b"\n"
                for number in range(self.scenario.tasks)
            )
        )
        rows = [orjson.loads(line) for line in (self.folder / "in.jsonl").read_bytes().splitlines()]
        for row in rows:
            question = {"role": "user", "content": f"reach target {row['target']}"}
            row["responses_create_params"] = {"input": [question]}
        (self.folder / "in.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        self.disk.sync_all()
        self._start_head()
        self.network.mount(ENGINE, "engine", Engine(random.Random(f"engine {self.seed}"), self.scenario.engine))
        for role in ("environment", "model", "agent"):
            await self._start_server(role)
        chaos = asyncio.create_task(self._chaos())
        try:
            await self._collect()
        finally:
            chaos.cancel()
        await self._check_servers()

    # The servers

    def _specs(self) -> list[ServerSpec]:
        refs = {"resources_server": {"name": "environment"}, "model_server": {"name": "model"}}
        kinds: dict[str, tuple[str, type[Any], dict[str, Any]]] = {
            "environment": ("resources_servers", serve(Adding), {"session_idle_s": 60.0, "verified_idle_s": 30.0}),
            "model": (
                "responses_api_models",
                VllmModel,
                {"model": "m", "base_url": f"{ENGINE}/v1", "request_timeout_s": 20.0, "total_timeout_s": 60.0},
            ),
            "agent": ("agents", SimpleAgent, {**refs, "max_steps": 12}),
        }
        self._kinds = kinds
        return [
            ServerSpec(
                name, family, name, self.folder, kind.Settings.model_validate(raw), raw=raw, isolated=False
            )
            for name, (family, kind, raw) in kinds.items()
        ]

    def _start_head(self) -> None:
        specs = self._specs()
        self._spawn_name("head")
        lag = LoopLag()
        self.registry = ServerRegistry(KEYS.run_id, specs, {}, clock=lag.now)
        config = RunConfig(tuple(specs), {})
        client, _ = self._client("head", lag)
        head = Head(ServerSettings(), Context("head", KEYS, client), self.registry, config, self.folder)
        head.ready = True
        self.network.mount(HEAD, "head", head)

    def _client(self, process: str, lag: LoopLag) -> tuple[ServerClient, RegistryClient]:
        transport = SimTransport(self.network, process, lag)
        registry = RegistryClient(transport, HEAD, KEYS)
        return ServerClient(transport, KEYS, AddressBook(registry.directory), clock=lag.now), registry

    def _spawn_name(self, role: str) -> str:
        self._numbers[role] += 1
        name = role if role == "head" else f"{role}#{self._numbers[role]}"
        self._processes[role] = name
        return name

    def _task_in(self, process: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return self.loop.create_task(work, context=context)

    async def _start_server(self, role: str) -> None:
        assert self.registry is not None
        process = self._spawn_name(role)
        self.registry.expect(process)

        async def serve_forever() -> None:
            lag = LoopLag()
            client, registry = self._client(process, lag)
            _, kind, raw = self._kinds[role]
            context = Context(role, KEYS, client, None, client.transport, process)
            server = kind(kind.Settings.model_validate(raw), context)
            self.servers[process] = server
            hosted = SimHosted(server, cast(Any, _Socket(f"{role}-{self._numbers[role]}")), lag=lag)
            self.network.mount(hosted.url, process, server)
            while True:
                try:
                    await hosted.join(process, registry, client.book)
                except RollyardError as error:
                    self.log(f"cannot join: {error}")
                    await asyncio.sleep(0.5)
                    continue
                return

        self._task_in(process, serve_forever())
        while not self.registry.is_ready(process):
            await asyncio.sleep(0.05)
            if self._processes[role] != process:
                return

    def _kill(self, process: str) -> None:
        self.log(f"kill -9 {process}")
        self.loop.kill(process)
        self.disk.close_of(process)
        self.network.process_died(process)
        self.servers.pop(process, None)

    # What goes wrong

    async def _chaos(self) -> None:
        scenario, rng = self.scenario, self.rng
        tasks = []
        roles = ("environment", "model", "agent")

        async def every(mean_s: float, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
            for _ in range(12):
                await asyncio.sleep(rng.expovariate(1.0 / mean_s))
                await act()

        async def kill() -> None:
            role = rng.choice(roles)
            process = self._processes[role]
            self._kill(process)
            await asyncio.sleep(rng.uniform(0.0, 3.0))
            assert self.registry is not None
            self.registry.remove(process)
            await self._start_server(role)

        async def freeze() -> None:
            process = self._processes[rng.choice(roles)]
            self.log(f"SIGSTOP {process}")
            self.loop.freeze(process)
            await asyncio.sleep(rng.expovariate(0.1))
            self.log(f"SIGCONT {process}")
            self.loop.thaw(process)

        async def cut() -> None:
            ends = rng.sample(["head", "engine", *(self._processes[role] for role in self._processes)], 2)
            link = frozenset(ends)
            self.log(f"cut {sorted(link)}")
            self.network.cut_links.add(link)
            await asyncio.sleep(rng.expovariate(0.1))
            self.network.cut_links.discard(link)

        for mean_s, act in ((scenario.kills, kill), (scenario.freezes, freeze), (scenario.cuts, cut)):
            if mean_s:
                tasks.append(asyncio.create_task(every(mean_s, act)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    # The collection

    async def _collect(self) -> None:
        """Repeat the command of each job, as a user does, until the output is complete."""
        count = self.scenario.shards
        jobs = [None] if count == 1 else [Shard(number + 1, count) for number in range(count)]
        await asyncio.gather(*(self._job(shard) for shard in jobs))

    async def _job(self, shard: Shard | None) -> None:
        role = "collector" if shard is None else f"collector-{shard.number}"
        kills = 6 if self.scenario.collector_kills else 0
        for start in range(60):
            process = self._spawn_name(role)
            self.disk.full = self.scenario.full if start < 10 else 0.0
            if start == 40:  # the operator has mended everything
                self.network.faults = Faults()
            task = self._task_in(process, self._collector(process, shard))
            kill_s = self.rng.expovariate(1.0 / self.scenario.collector_kills) if kills > 0 else None
            done, _ = await asyncio.wait({task}, timeout=kill_s)
            if not done and self.rng.random() < 0.5:  # it dies in its next write, of which a part is left
                self.disk.torn = process
                done, _ = await asyncio.wait({task}, timeout=60.0)
            if not done:
                kills -= 1
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                self._die(process)
                continue
            try:
                state, error = task.result(), ""
            except Killed:
                self.log(f"{process} died in a write")
                kills -= 1
                self._die(process)
                continue
            except RollyardError as problem:
                state, error = "error", str(problem)
            self.log(f"{process} ended: {state} {error}")
            self.loop.kill(process)
            self.disk.close_of(process)
            self.network.process_died(process)
            if state == "complete":
                return
            await asyncio.sleep(self.rng.uniform(0.1, 20.0))
        raise Broken(f"the command was repeated 60 times, and the output is not complete: {self.trace[-1]}")

    def _die(self, process: str) -> None:
        self._kill(process)
        if self.scenario.power:
            self.disk.lose_power()

    async def _collector(self, process: str, shard: Shard | None) -> str:
        lag = LoopLag()
        client, registry = self._client(process, lag)
        limits = CollectionLimits(parallel=self.scenario.parallel, rollout_timeout_s=120.0, max_failure_rate=1.0)
        plan = CollectionPlan(self.output, repeats=self.scenario.repeats, limits=limits, shard=shard)
        tasks = TaskFile(self.folder / "in.jsonl", agent=None, limit=None)
        async with OpenCollection.opened(plan, tasks, StackClients(client, registry)) as collection:
            return await collection.run(print_line=self.log)

    # What must hold

    async def _check_servers(self) -> None:
        """Wait until every idle limit has passed, on a network that works again: nothing may be left of any episode."""
        self.network.faults = Faults()
        self.network.cut_links.clear()
        for process in list(self.servers):
            self.loop.thaw(process)
        await asyncio.sleep(IDLE_S)
        for process, server in self.servers.items():
            if left := server.sessions:
                raise Broken(f"{process} has {left} sessions left")
            if left := server.in_flight:
                raise Broken(f"{process} has {left} requests in flight left")
        for process, count in LEDGER.open.items():
            if count and process in self.servers:
                raise Broken(f"{count} environments of {process} were never closed")
        assert self.registry is not None
        directory = self.registry.directory()
        for role in ("environment", "model", "agent"):
            if self._processes[role] in self.servers and len(directory.servers[role]) != 1:
                raise Broken(f"{role} is not in the directory, although its process runs: {directory.servers}")

    def _check_end(self) -> None:
        if self.loop.errors:
            raise Broken(f"unhandled: {self.loop.errors[0]}")
        rows = [orjson.loads(line) for line in self.output.read_bytes().splitlines()]
        keys = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows]
        expected = {(task, repeat) for task in range(self.scenario.tasks) for repeat in range(self.scenario.repeats)}
        if len(keys) != len(set(keys)) or set(keys) != expected:
            raise Broken(f"keys in the output: {sorted(keys)}; expected each of {sorted(expected)} once")
        status = orjson.loads((self.folder / "out" / "rollouts_status.json").read_bytes())
        if (status["state"], status["expected"], status["measured"]) != ("complete", len(expected), len(expected)):
            raise Broken(f"the status is {status}")
        for line in (self.folder / "out" / "rollouts_failures.jsonl").read_bytes().splitlines():
            if "reward" in orjson.loads(line):
                raise Broken(f"a failure has a reward: {line!r}")
        proofs = Counter(row["proof"] for row in rows)
        if repeated := [one for one, count in proofs.items() if count > 1]:
            raise Broken(f"one episode gave two rows: {repeated}")
        for row in rows:
            self._check_row(row)
        left = [path.name for path in (self.folder / "out").iterdir() if path.name.startswith(".")]
        if left:
            raise Broken(f"temporary files are left: {left}")

    def _check_row(self, row: Any) -> None:
        items = row["response"]["output"]
        told = [_LEDGER.search(str(item.get("output"))) for item in items if item["type"] == "function_call_output"]
        texts = [item["content"][0]["text"] for item in items if item["type"] == "message"]
        answer = _ANSWER.search(texts[-1]) if texts else None
        if answer is None:
            raise Broken(f"a row without an answer has the reward {row['reward']}: {items}")
        if row["reward"] not in LEDGER.verdicts.get(row["proof"], ()):
            raise Broken(f"no environment gave {row['reward']} for the proof {row['proof']}")
        seen = [one for one in told if one is not None]
        total, own = (int(seen[-1][1]), seen[-1][2]) if seen else (0, row["proof"])
        right = int(answer[1]) == row["target"] == total and answer[2] == own == row["proof"]
        if row["target"] and bool(row["reward"]) != right:
            raise Broken(f"the reward {row['reward']} does not belong to the answer {answer[0]} after {seen}")
        calls = [item for item in items if item["type"] == "function_call"]
        if len(calls) != len(told):
            raise Broken(f"{len(calls)} calls, {len(told)} results")

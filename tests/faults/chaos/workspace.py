"""Workspace: a folder in which commands of one checkout run as processes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from omegaconf import OmegaConf

from tests.faults.chaos.command import ENTRIES, Command
from tests.faults.chaos.invariants import Broken
from tests.faults.forked import FORKS, Forked, forked_command
from tests.support.processes import processes_with
from tests.support.waiting import deadline_s

HERE = Path(__file__).resolve().parents[3]
"""The checkout of this program."""
MARK = "ROLLYARD_CHAOS"
"""An environment variable that every process of a workspace inherits, by which all are found."""
FORKS.set_forkserver_preload([*ENTRIES.values()])


class Run:
    def __init__(self, command: Command, folder: Path, head_url: str) -> None:
        self.command = command
        self.folder = folder
        self.head_url = head_url

    @property
    def head(self) -> str:
        return self.head_url.removeprefix("http://")

    async def servers(self) -> list[dict[str, Any]]:
        """The head's `/server_instances`."""
        instances: list[dict[str, Any]] = orjson.loads((await get(f"{self.head_url}/server_instances"))[1])
        return instances

    async def url(self, server: str) -> str:
        for instance in await self.servers():
            if instance["server_name"] == server and instance["ready"]:
                return str(instance["url"])
        raise Broken(f"no ready instance of {server}")

    async def pid(self, server: str) -> int | None:
        for instance in await self.servers():
            if instance["server_name"] == server and instance["ready"]:
                return int(instance["pid"])
        return None

    async def gauge(self, server: str, name: str) -> float:
        _, body = await get(f"{await self.url(server)}/metrics")
        found = re.search(rf"^{name} (\S+)$", body.decode(), re.MULTILINE)
        return float(found.group(1)) if found else 0.0


class Workspace:
    """A folder for runs and collections."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = secrets.token_hex(8)
        self._serial = 0
        self._forked: list[Forked] = []
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        self._serial += 1
        stem, dot, suffix = name.partition(".")
        return self.folder / f"{stem}{self._serial}{dot}{suffix}"

    def environment(self) -> dict[str, str]:
        unwanted = ("policy_", "rollyard", "pythonpath")
        variables = {name: value for name, value in os.environ.items() if not name.lower().startswith(unwanted)}
        return {**variables, "PYTHONPATH": str(HERE / "src"), "PYTHONUNBUFFERED": "1", MARK: self.mark}

    async def start(self, name: str, *arguments: str, here: Path | None = None, before: Sequence[str] = ()) -> Command:
        """Start a command. `before` is a program that runs it; without one, it is forked from a warm process."""
        log = self.path(f"{name}.log")
        if not before:
            main = importlib.import_module(ENTRIES[name]).main
            self._forked.append(forked_command(main, arguments, log, here or self.folder, self.environment(), name))
            return Command(self._forked[-1], log)
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(*before, sys.executable, "-c", f"from {ENTRIES[name]} import main; main()", *arguments),
                cwd=here or self.folder,
                env=self.environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Command(process, log)

    @contextlib.asynccontextmanager
    async def run(
        self, config: Mapping[str, Any] | str, *overrides: str, here: Path | None = None
    ) -> AsyncIterator[Run]:
        """Start `ng_run` with `config`, wait until it is ready, and stop it with SIGINT."""
        if isinstance(config, str):
            paths = config
        else:
            path = self.path("run.yaml")
            path.write_text(OmegaConf.to_yaml(OmegaConf.create(dict(config))))
            paths = str(path)
        command = await self.start("ng_run", f"+config_paths=[{paths}]", "+head_port=0", *overrides, here=here)
        try:
            yield Run(command, self.folder, await _ready(command))
        finally:
            command.signal(signal.SIGINT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(command.process.wait(), deadline_s())
            if not command.ended:
                command.signal(signal.SIGKILL)
                await command.process.wait()

    async def collect(self, run: Run, output: Path, rows: Path, *arguments: str, agent: str = "agent") -> Command:
        """Start `ng_collect_rollouts` on that run."""
        fixed = [f"+head={run.head}", f"+agent_name={agent}", f"+input_jsonl_fpath={rows}"]
        return await self.start("ng_collect_rollouts", *fixed, f"+output_jsonl_fpath={output}", *arguments)

    async def says_url(self, command: Command) -> str:
        """Wait until the command prints an address. Raises Broken if it ends before."""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", command.output)):
            if command.ended:
                raise Broken(f"it ended with {command.process.returncode}: {command.output[-1000:]}")
            await asyncio.sleep(0.05)
        return found.group()

    def processes(self) -> list[int]:
        """Ids of all live processes of this workspace, including descendants."""
        return [one.pid for one in self._forked if one.returncode is None] + list(processes_with(MARK, self.mark))

    async def left_behind(self) -> int:
        """End the processes that are still alive after 30 s, or more on a busy machine, and return their number."""
        for _ in range(int(deadline_s())):
            if not (left := self.processes()):
                return 0
            await asyncio.sleep(0.1)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left)


async def _ready(command: Command) -> str:
    for _ in range(int(deadline_s() / 0.05)):
        output = command.output
        if re.search(r"All (\d+) / \1 servers ready!", output):
            found = re.search(r"head (http://\S+)", output)
            assert found is not None
            return found.group(1)
        if command.ended:
            raise Broken(f"ng_run ended with {command.process.returncode}:\n{output[-2000:]}")
        await asyncio.sleep(0.05)
    raise Broken(f"ng_run is not ready:\n{command.output[-2000:]}")


async def get(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    return await send("GET", url, b"", headers)


async def send(method: str, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """Send a request over a new connection; return status and body. Raises Broken without a response."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=deadline_s())) as session,
            session.request(method, url, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            return answer.status, await answer.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Broken(f"{method} {url}: {type(error).__name__}: {error}") from error


def read_lines(path: Path) -> Sequence[dict[str, Any]]:
    """The rows of a JSON Lines file, empty if it does not exist."""
    return [orjson.loads(line) for line in path.read_bytes().split(b"\n") if line] if path.exists() else []

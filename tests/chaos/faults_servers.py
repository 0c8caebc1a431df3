"""What callers do to our own servers: slow and endless requests, foreign web pages, other users, a stranger's head."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sys
from collections.abc import Callable
from functools import partial

import orjson

from tests.chaos.endpoint import Endpoint, Script
from tests.chaos.fault import Fault
from tests.chaos.faults_model import GROWTH_MB, memory_mb
from tests.chaos.ground import AGENT, ENVIRONMENT, MODEL, Ground
from tests.chaos.oracle import NotInjected, hold, injected
from tests.chaos.plugins import STEP
from tests.chaos.workspace import Run, send

SLOW_CLIENTS = 50
"""Connections to each server."""
SLOWEST_S = 100.0
"""After which a connection whose request is not there yet may not be open."""
NOBODY = 65534

ROW = {"id": 0, "responses_create_params": {"input": "play", "tools": [STEP]}}
CHAT = {"model": "script", "messages": [{"role": "user", "content": "play"}]}
CALLS: list[tuple[str, str, str, object]] = [
    ("head", "GET", "/global_config_dict_yaml", None),
    ("head", "GET", "/server_instances", None),
    ("head", "GET", "/directory", None),
    ("head", "GET", "/health", None),
    ("head", "GET", "/metrics", None),
    ("head", "POST", "/collection", {}),
    (MODEL, "GET", "/v1/models", None),
    (MODEL, "GET", "/metrics", None),
    (MODEL, "POST", "/v1/chat/completions", CHAT),
    (MODEL, "POST", "/v1/responses", {"model": "script", "input": "play"}),
    (AGENT, "POST", "/run", ROW),
    (AGENT, "POST", "/v1/responses", ROW["responses_create_params"]),
    (AGENT, "GET", "/episodes", None),
    (ENVIRONMENT, "POST", "/seed_session", ROW),
    (ENVIRONMENT, "POST", "/verify", {"response": {"output": []}}),
    (ENVIRONMENT, "GET", "/tools", None),
    (ENVIRONMENT, "GET", "/openapi.json", None),
]


async def addresses(run: Run) -> dict[str, str]:
    """Server name -> base URL."""
    return {"head": run.head_url, **{shown["server_name"]: shown["url"] for shown in await run.servers()}}


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def calls(run: Run) -> int:
    """Requests that any server of ours has worked on, but for /metrics and /server_instances."""
    total = 0
    for url in (await addresses(run)).values():
        _, body = await send("GET", f"{url}/metrics", b"")
        for route in (rb"/v1/chat/completions", rb"/v1/responses", rb"/run", rb"/seed_session", rb"/verify"):
            for found in re.finditer(rb'rollyard_requests_total\{route="%b",status="2\d\d"\} (\S+)' % route, body):
                total += int(float(found.group(1)))
    return total


async def foreign_page(headers: dict[str, str], only: str, ground: Ground, chance: random.Random) -> None:
    """Refused with 4xx at each server, nothing worked on; the same without these headers is answered."""
    async with ground.lock("calls"):
        run, endpoint = await ground.shared("asked", ground.playing)
        urls = await addresses(run)
        asked, worked = endpoint.calls, await calls(run)
        answered = 0
        for server, method, path, body in CALLS:
            if only and method != only:
                continue
            url = urls[server] + path
            given = {**({"content-type": "application/json"} if method == "POST" else {}), **headers}
            given = {name: value.replace("PORT", str(port_of(urls[server]))) for name, value in given.items()}
            data = orjson.dumps(body) if body is not None else b""
            status, said = await send(method, url, data, given)
            hold(400 <= status < 500, f"{method} {server}{path} with {headers} is answered {status}: {said[:120]!r}")
            hold(b"policy" not in said or len(said) < 1000, f"{server}{path} tells its configuration")
            answered += 1
        injected(answered, "nothing was asked")
        hold(endpoint.calls == asked, f"{endpoint.calls - asked} calls of the endpoint were spent")
        hold(await calls(run) == worked, "a server worked on it")
        status, said = await send("GET", f"{urls['head']}/health", b"")
        injected(status == 200, f"the head answers {status} to a plain request")
        status, said = await send("POST", f"{urls[AGENT]}/run", orjson.dumps(ROW), {"content-type": "application/json"})
        injected(status == 200, f"the agent answers {status} to a plain request: {said[:200]!r}")


PAGES: list[tuple[str, dict[str, str], str]] = [
    ("Origin of a foreign page", {"Origin": "http://evil.example"}, "POST"),
    ("Origin null", {"Origin": "null"}, "POST"),
    (
        "Origin of a foreign page and text/plain",
        {"Origin": "https://evil.example", "content-type": "text/plain"},
        "POST",
    ),
    ("content type text/plain", {"content-type": "text/plain"}, "POST"),
    ("a form", {"content-type": "application/x-www-form-urlencoded"}, "POST"),
    ("a multipart form", {"content-type": "multipart/form-data; boundary=x"}, "POST"),
    ("text/plain that names JSON", {"content-type": "text/plain; application/json"}, "POST"),
    ("Sec-Fetch-Site cross-site", {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"}, "POST"),
    ("DNS rebinding: a Host of its own", {"Host": "evil.example"}, ""),
    ("DNS rebinding: a Host of its own with our port", {"Host": "evil.example:PORT"}, ""),
    ("DNS rebinding: a Host that begins with ours", {"Host": "127.0.0.1.evil.example:PORT"}, ""),
    ("DNS rebinding: a Host that ends with ours", {"Host": "evil.localhost.example:PORT"}, ""),
    ("DNS rebinding: ours as a user name", {"Host": "127.0.0.1@evil.example:PORT"}, ""),
]


async def slow_clients(ground: Ground, chance: random.Random) -> None:
    """Requests whose headers never end are hung up on, and others are answered meanwhile."""
    async with ground.playing() as (run, _):
        connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for url in (await addresses(run)).values():
            for _ in range(SLOW_CLIENTS):
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
                writer.write(b"POST /run HTTP/1.1\r\nHost: 127.0.0.1\r\n")
                connections.append((reader, writer))
        gone = [asyncio.create_task(_hung_up(reader, writer)) for reader, writer in connections]
        await ground.completes(run, ground.output())
        done, pending = await asyncio.wait(gone, timeout=SLOWEST_S)
        for task in pending:
            task.cancel()
        for _, writer in connections:
            writer.close()
        injected(len(connections) == 4 * SLOW_CLIENTS, "not every connection was made")
        hold(not pending, f"{len(pending)} of {len(gone)} connections are open after {SLOWEST_S:g} s")


async def _hung_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a header's byte a second until the other side hangs up."""
    closed = asyncio.create_task(reader.read())
    with contextlib.suppress(OSError):
        while not closed.done():
            writer.write(b"x")
            await asyncio.wait([closed], timeout=1.0)
    with contextlib.suppress(OSError):
        await closed


async def slow_bodies(ground: Ground, chance: random.Random) -> None:
    """The same with a body that never comes."""
    async with ground.playing() as (run, _):
        gone = []
        for url in (await addresses(run)).values():
            for _ in range(SLOW_CLIENTS // 2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
                lines = b"Host: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{"
                writer.write(b"POST /run HTTP/1.1\r\n" + lines)
                gone.append(asyncio.create_task(_hung_up(reader, writer)))
        await ground.completes(run, ground.output())
        for task in gone:
            task.cancel()


async def flooded(lines: Callable[[], bytes], most: int, ground: Ground, chance: random.Random) -> None:
    """The connection ends long before all of it is taken, memory stays, and others are answered."""
    async with ground.playing() as (run, _):
        pids = {
            "head": run.command.process.pid,
            **{shown["server_name"]: shown["pid"] for shown in await run.servers()},
        }
        for name, url in (await addresses(run)).items():
            before = memory_mb(pids[name])
            sent = await _pour(port_of(url), lines(), most)
            hold(sent < most, f"{name} took {sent / 2**20:.0f} MB of it")
            growth = memory_mb(pids[name]) - before
            hold(growth < GROWTH_MB, f"{name} grew by {growth:.0f} MB")
        await ground.completes(run, ground.output())


async def _pour(port: int, piece: bytes, most: int) -> int:
    """How many bytes of a request the server takes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered = asyncio.create_task(reader.read())
    sent = 0
    writer.write(b"POST /run HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    try:
        while sent < most and not answered.done():
            writer.write(piece)
            sent += len(piece)
            await asyncio.wait_for(writer.drain(), 20.0)
            await asyncio.sleep(0)
    except (OSError, TimeoutError):
        pass
    finally:
        answered.cancel()
        writer.close()
    return sent


def one_endless_header() -> bytes:
    return b"x" * 2**16


def many_headers() -> bytes:
    return b"".join(b"x-%d: %b\r\n" % (number, b"y" * 100) for number in range(500))


def endless_chunks() -> bytes:
    return b"10000\r\n" + b" " * 0x10000 + b"\r\n"


def body_flood() -> bytes:
    return endless_chunks()


async def bodies(ground: Ground, chance: random.Random) -> None:
    """Many large bodies at once: no more memory than a few of them."""
    size, count = 60 * 2**20, 16
    async with ground.playing() as (run, _):
        urls = await addresses(run)
        pid = await run.pid(AGENT)
        before = memory_mb(pid)
        writers = []
        piece = b" " * 2**20
        for _ in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(urls[AGENT]))
            lines = f"Host: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n"
            writer.write(f"POST /run HTTP/1.1\r\n{lines}".encode())
            writers.append(writer)

        async def fill(writer: asyncio.StreamWriter) -> int:
            sent = 0
            with contextlib.suppress(OSError, TimeoutError):
                while sent < size - 2**20:
                    writer.write(piece)
                    await asyncio.wait_for(writer.drain(), 5.0)
                    sent += len(piece)
            return sent

        sent = sum(await asyncio.gather(*(fill(writer) for writer in writers)))
        growth = memory_mb(pid) - before
        for writer in writers:
            writer.close()
        hold(growth < 600, f"{count} bodies of {size // 2**20} MB cost {growth:.0f} MB ({sent // 2**20} MB taken)")
        await ground.completes(run, ground.output())


CALLER = """
import os, socket, sys
os.setgroups([]); os.setgid(%d); os.setuid(%d)
for line in sys.argv[1:]:
    method, port, path = line.split(" ")
    said = b""
    try:
        with socket.create_connection(("127.0.0.1", int(port)), 20) as connection:
            body = b"{}" if method == "POST" else b""
            lines = [method + " " + path + " HTTP/1.1", "Host: 127.0.0.1:" + port, "connection: close"]
            lines += ["content-type: application/json", "content-length: " + str(len(body))]
            connection.sendall("\\r\\n".join(lines).encode() + b"\\r\\n\\r\\n" + body)
            while b" " not in said and (piece := connection.recv(4096)):
                said += piece
    except OSError as error:
        pass
    print(said[9:12].decode() or "0", line, flush=True)
"""


async def another_user(ground: Ground, chance: random.Random) -> None:
    """A process of another user is refused by every server; our own is answered."""
    if os.geteuid() != 0:
        raise NotInjected("only root can be another user")
    run, _ = await ground.shared("asked", ground.playing)
    urls = await addresses(run)
    async with Endpoint(Script()).up() as control:
        asked = [*CALLS, ("control", "GET", "/v1/models", None)]
        urls["control"] = control.url
        lines = [f"{method} {port_of(urls[server])} {path}" for server, method, path, _ in asked]
        caller = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CALLER % (NOBODY, NOBODY), *lines),
            cwd="/",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        told, errors = await asyncio.wait_for(caller.communicate(), 300.0)
    answers = told.decode().splitlines()
    injected(len(answers) == len(lines), f"the other user could not ask: {errors.decode()[-500:]}")
    injected(answers[-1].startswith("200"), f"the other user cannot reach an ordinary server: {answers[-1]}")
    let_in = [line for line in answers[:-1] if line.split()[0] not in ("0", "401", "403")]
    hold(not let_in, f"{len(let_in)} of {len(CALLS)} requests of another user were let in, as {let_in[:1]}")
    status, _ = await send("GET", f"{urls['head']}/health", b"")
    injected(status == 200, f"the head answers {status} to its own user")


async def strangers_head(ground: Ground, chance: random.Random) -> None:
    """On the default port another user's head: a command without +head= says so and sends it nothing."""
    if os.geteuid() != 0:
        raise NotInjected("only root can be another user")
    here = ground.path("elsewhere")
    here.mkdir()
    heard = ground.path("heard.txt")
    heard.touch()
    heard.chmod(0o666)
    (here / "stranger.py").write_text(STRANGER % (NOBODY, NOBODY, str(heard)))
    (here / "alone.py").write_text(ALONE)
    for name, arguments in (
        ("ng_collect_rollouts", _collection(ground)),
        ("ng_status", []),
    ):
        heard.write_text("")
        command = await ground.start(name, *arguments, here=here, before=[sys.executable, "alone.py"])
        status = await command.ends()
        asked = heard.read_text().split()
        injected("port 11000 is taken" not in command.said, "port 11000 is taken")
        hold(status in (1, 2), f"{name} ended with {status}: {command.said[-300:]}")
        hold("+head" in command.said, f"{name} does not ask for +head: {command.said[-400:]}")
        hold(not {"/directory", "/run", "/server_instances"} & set(asked), f"{name} asked the stranger: {asked}")


def _collection(ground: Ground) -> list[str]:
    output = ground.output()
    return [f"+agent_name={AGENT}", f"+input_jsonl_fpath={ground.rows}", f"+output_jsonl_fpath={output}"]


ALONE = """
# The command in this program's arguments beside a stranger's head, on a loopback of their own where that is possible.
import ctypes, fcntl, socket, struct, subprocess, sys
if ctypes.CDLL(None).unshare(0x40000000) == 0:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 0x49, b""))
stranger = subprocess.Popen([sys.executable, "-c", open("stranger.py").read()], stdout=subprocess.PIPE)
if stranger.stdout.readline().strip() != b"up":
    sys.exit("port 11000 is taken")
status = subprocess.run(sys.argv[1:]).returncode
stranger.kill()
sys.exit(status)
"""
STRANGER = """
import os, sys, json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
os.setgroups([]); os.setgid(%d); os.setuid(%d)
heard = %r
RUN = "deadbeef"
DIRECTORY = {"run_id": RUN, "servers": {"agent": ["http://127.0.0.1:11000"]}, "families": {"agent": "agents"}, "settings": {}}
class Head(BaseHTTPRequestHandler):
    def do_GET(self):
        with open(heard, "a") as file:
            file.write(self.path + "\\n")
        told = {"/health": {"status": "ok", "server": "head", "run_id": RUN}, "/server_instances": []}.get(self.path, DIRECTORY)
        if self.path == "/run":
            told = {"reward": 1.0, "response": {"output": []}}
        data = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("x-rollyard-run", RUN)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_POST = do_GET
    def log_message(self, *args): pass
try:
    server = ThreadingHTTPServer(("127.0.0.1", 11000), Head)
except OSError:
    print("taken", flush=True); sys.exit()
print("up", flush=True)
server.serve_forever()
"""

REFUSED = "refused with 4xx, nothing worked on"

FAULTS = [
    *(
        Fault(
            f"a foreign web page's request: {words}",
            4,
            "worked on; the model server spends a call, the head reads out its configuration",
            REFUSED,
            partial(foreign_page, headers, only),
        )
        for words, headers, only in PAGES
    ),
    Fault("a connection of another user", 4, "answered", "refused", another_user),
    Fault(
        "another user's head on the default port",
        4,
        "its stack is used",
        "the command stops and asks for +head",
        strangers_head,
    ),
    Fault(
        "200 connections that send a header a byte a second",
        4,
        "200 of 200 alive after 90 s",
        "all hung up on; a collection beside them is whole",
        slow_clients,
    ),
    Fault(
        "100 connections whose bodies never come",
        4,
        "a collection beside them is whole",
        "a collection beside them is whole",
        slow_bodies,
        slow=True,
    ),
    Fault(
        "a request with one endless header",
        4,
        "memory without a limit",
        "hung up on",
        partial(flooded, one_endless_header, 2**26),
    ),
    Fault(
        "a request with endless headers",
        4,
        "memory without a limit",
        "hung up on",
        partial(flooded, many_headers, 2**26),
    ),
    Fault(
        "16 bodies of 60 MB at once",
        4,
        "a gigabyte of memory",
        "no more than a few of them in memory",
        bodies,
        slow=True,
        alone=True,
    ),
]

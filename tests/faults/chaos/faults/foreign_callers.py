"""Foreign callers: web pages of other origins, other users of the host, and another user's head."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from functools import partial

import orjson

from tests.faults.chaos.endpoint import Endpoint, Script
from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import AGENT, ENVIRONMENT, MODEL, FaultContext
from tests.faults.chaos.invariants import hold, injected
from tests.faults.chaos.plugins import STEP
from tests.faults.chaos.workspace import Run, send
from tests.support.waiting import deadline_s

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
    return {"head": run.head_url, **{shown["server_name"]: shown["url"] for shown in await run.servers()}}


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def calls(run: Run) -> int:
    """Number of requests that the servers have processed, except for /metrics and /server_instances."""
    total = 0
    for url in (await addresses(run)).values():
        _, body = await send("GET", f"{url}/metrics", b"")
        for route in (rb"/v1/chat/completions", rb"/v1/responses", rb"/run", rb"/seed_session", rb"/verify"):
            for found in re.finditer(rb'rollyard_requests_total\{route="%b",status="2\d\d"\} (\S+)' % route, body):
                total += int(float(found.group(1)))
    return total


async def foreign_page(headers: dict[str, str], only: str, context: FaultContext, rng: random.Random) -> None:
    """Each server refuses the request with 4xx and processes nothing; without these headers it is answered."""
    async with context.lock("calls"):
        run, endpoint = await context.shared("asked", context.playing)
        urls = await addresses(run)
        calls_before, processed_before = endpoint.calls, await calls(run)
        answered = 0
        for server, method, path, body in CALLS:
            if only and method != only:
                continue
            url = urls[server] + path
            sent_headers = {**({"content-type": "application/json"} if method == "POST" else {}), **headers}
            sent_headers = {
                name: value.replace("PORT", str(port_of(urls[server]))) for name, value in sent_headers.items()
            }
            data = orjson.dumps(body) if body is not None else b""
            status, reply = await send(method, url, data, sent_headers)
            hold(400 <= status < 500, f"{method} {server}{path} with {headers} is answered {status}: {reply[:120]!r}")
            hold(b"policy" not in reply or len(reply) < 1000, f"{server}{path} returns its configuration")
            answered += 1
        injected(answered, "no request was sent")
        hold(endpoint.calls == calls_before, f"{endpoint.calls - calls_before} calls of the endpoint were spent")
        hold(await calls(run) == processed_before, "a server processed it")
        status, reply = await send("GET", f"{urls['head']}/health", b"")
        injected(status == 200, f"the head answers {status} to a plain request")
        status, reply = await send(
            "POST", f"{urls[AGENT]}/run", orjson.dumps(ROW), {"content-type": "application/json"}
        )
        injected(status == 200, f"the agent answers {status} to a plain request: {reply[:200]!r}")


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
    ("DNS rebinding: the attacker's Host", {"Host": "evil.example"}, ""),
    ("DNS rebinding: the attacker's Host with the server's port", {"Host": "evil.example:PORT"}, ""),
    ("DNS rebinding: a Host that begins with the server's", {"Host": "127.0.0.1.evil.example:PORT"}, ""),
    ("DNS rebinding: a Host that contains localhost", {"Host": "evil.localhost.example:PORT"}, ""),
    ("DNS rebinding: the server's Host as a user name", {"Host": "127.0.0.1@evil.example:PORT"}, ""),
]


CALLER = """
import encodings.idna, os, socket, sys
os.setgroups([]); os.setgid(%d); os.setuid(%d)
for line in sys.argv[1:]:
    method, port, path = line.split(" ")
    reply = b""
    try:
        with socket.create_connection(("127.0.0.1", int(port)), 20) as connection:
            body = b"{}" if method == "POST" else b""
            lines = [method + " " + path + " HTTP/1.1", "Host: 127.0.0.1:" + port, "connection: close"]
            lines += ["content-type: application/json", "content-length: " + str(len(body))]
            connection.sendall("\\r\\n".join(lines).encode() + b"\\r\\n\\r\\n" + body)
            while b" " not in reply and (piece := connection.recv(4096)):
                reply += piece
    except OSError as error:
        pass
    print(reply[9:12].decode() or "0", line, flush=True)
"""


async def another_user(context: FaultContext, rng: random.Random) -> None:
    """Every server refuses a process of another user and answers one of the same user."""
    run, _ = await context.shared("asked", context.playing)
    urls = await addresses(run)
    async with Endpoint(Script()).up() as control:
        requests = [*CALLS, ("control", "GET", "/v1/models", None)]
        urls["control"] = control.url
        lines = [f"{method} {port_of(urls[server])} {path}" for server, method, path, _ in requests]
        caller = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CALLER % (NOBODY, NOBODY), *lines),
            cwd="/",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, errors = await asyncio.wait_for(caller.communicate(), deadline_s())
    answers = printed.decode().splitlines()
    injected(len(answers) == len(lines), f"the other user could not send requests: {errors.decode()[-500:]}")
    injected(answers[-1].startswith("200"), f"the other user cannot reach an ordinary server: {answers[-1]}")
    accepted = [line for line in answers[:-1] if line.split()[0] not in ("0", "401", "403")]
    hold(not accepted, f"{len(accepted)} of {len(CALLS)} requests of another user were let in, as {accepted[:1]}")
    status, _ = await send("GET", f"{urls['head']}/health", b"")
    injected(status == 200, f"the head answers {status} to its own user")


async def foreign_head(context: FaultContext, rng: random.Random) -> None:
    """Another user's head is on the default port: a command without --head reports it and sends it nothing."""
    folder = context.path("elsewhere")
    folder.mkdir()
    log = context.path("requests.txt")
    log.touch()
    log.chmod(0o666)
    context.folder.chmod(0o755)  # the foreign head logs its requests
    (folder / "stranger.py").write_text(STRANGER % (NOBODY, NOBODY, str(log)))
    (folder / "alone.py").write_text(ALONE)
    for name, arguments in (("ng_collect_rollouts", _collection(context)), ("ng_status", [])):
        log.write_text("")
        command = await context.start(name, *arguments, here=folder, before=[sys.executable, "alone.py"])
        status = await command.exit_status()
        paths = log.read_text().split()
        injected("port 11000 is taken" not in command.output, "port 11000 is taken")
        injected("/control" in paths, f"the foreign head does not answer: {command.output[-500:]}")
        hold(status in (1, 2), f"{name} ended with {status}: {command.output[-300:]}")
        hold("--head" in command.output, f"{name} does not ask for --head: {command.output[-400:]}")
        hold(not {"/directory", "/run", "/server_instances"} & set(paths), f"{name} called the foreign head: {paths}")


def _collection(context: FaultContext) -> list[str]:
    output = context.output()
    return [f"+agent_name={AGENT}", f"+input_jsonl_fpath={context.rows}", f"+output_jsonl_fpath={output}"]


ALONE = """
# Runs the command in the arguments next to a foreign head, on a separate loopback interface if possible.
import ctypes, fcntl, socket, struct, subprocess, sys
if ctypes.CDLL(None).unshare(0x40000000) == 0:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 0x49, b""))
stranger = subprocess.Popen([sys.executable, "-c", open("stranger.py").read()], stdout=subprocess.PIPE)
if stranger.stdout.readline().strip() != b"up":
    sys.exit("port 11000 is taken")
with socket.create_connection(("127.0.0.1", 11000), 10) as control:
    control.sendall(b"GET /control HTTP/1.1\\r\\nHost: 127.0.0.1:11000\\r\\nconnection: close\\r\\n\\r\\n")
    control.recv(4096)
status = subprocess.run(sys.argv[1:]).returncode
stranger.kill()
sys.exit(status)
"""
STRANGER = """
import encodings.idna, json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
os.setgroups([]); os.setgid(%d); os.setuid(%d)
log = %r
RUN = "deadbeef"
SERVERS = {"servers": {"agent": ["http://127.0.0.1:11000"]}, "families": {"agent": "agents"}}
RESPONSES = {
    "/health": {"status": "ok", "server": "head", "run_id": RUN},
    "/server_instances": [],
    "/directory": {"run_id": RUN, "settings": {}, **SERVERS},
}
class Head(BaseHTTPRequestHandler):
    def do_GET(self):
        with open(log, "a") as file:
            file.write(self.path + "\\n")
        data = json.dumps(RESPONSES.get(self.path, {"reward": 1.0, "response": {"output": []}})).encode()
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

REFUSED = "refused with 4xx, nothing processed"

FAULTS = [
    *(
        Fault(f"a foreign web page's request: {name}", 4, REFUSED, partial(foreign_page, headers, only))
        for name, headers, only in PAGES
    ),
    Fault("a connection of another user", 4, "refused", another_user, root=True),
    Fault(
        "another user's head on the default port", 4, "the command stops and requires --head", foreign_head, root=True
    ),
]

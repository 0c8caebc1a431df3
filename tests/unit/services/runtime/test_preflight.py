"""A dry run finds what would stop the start, reports the same error and starts nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from rollyard.cli.run import run
from rollyard.records.errors import OperatorError, RollyardError
from rollyard.responses_api_models.upstream.settings import EndpointSettings, endpoint_advice
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.hosting import HostedServer, bind_head
from rollyard.services.runtime.preflight import Preflight
from tests.support.certificates import issue, tls_keys
from tests.support.fixtures import make_folder, make_server, server_yaml
from tests.support.processes import free_port

APP = """
from rollyard.records.errors import OperatorError
from rollyard.records.optional import require
from rollyard.services.server.app import Server

class Mine(Server):
    def __init__(self, settings, context):
        {construct}
        super().__init__(settings, context)

    async def check(self):
        {check}

    async def start(self):
        open("started", "w").close()

server = Mine
"""


def error_of(arguments: list[str]) -> tuple[type[RollyardError], str]:
    with pytest.raises(RollyardError) as raised:
        run(arguments)
    return type(raised.value), str(raised.value)


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize(
    ("construct", "check", "settings", "message"),
    [
        ("require('no_such_package', 'math', context.name)", "pass", "{}", "rollyard[math]"),
        ("raise ValueError('invalid')", "pass", "{}", "ValueError: invalid"),
        ("pass", "raise OperatorError('no sandbox')", "{}", "environment: no sandbox"),
        ("pass", "raise KeyError('gpu')", "{}", "KeyError"),
        ("import no_such_module", "pass", "{}", "no_such_module"),
        ("pass", "pass", "{host: nosuchhost.invalid}", "nosuchhost.invalid"),
        ("pass", "pass", "{port: PORT}", " 127.0.0.1:PORT"),
        ("pass", "pass", "{}\nother:\n  resources_servers:\n    NAME: {port: PORT}", "other cannot listen"),
    ],
)
def test_a_dry_run_fails_with_the_same_error_as_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    used_port: int,
    construct: str,
    check: str,
    settings: str,
    message: str,
) -> None:
    name = make_folder(tmp_path, app=APP.format(construct=construct, check=check))
    text = server_yaml(name, settings).replace("PORT", str(used_port)).replace("NAME", name)
    if "nosuchhost" in settings:
        monkeypatch.setenv("ROLLYARD_TOKEN", "open")
    (tmp_path / "run.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    arguments = ["+config_paths=run.yaml", "+head_port=0"]
    dry_run, start = error_of([*arguments, "+dry_run=true"]), error_of(arguments)
    assert dry_run == start
    assert message.replace("PORT", str(used_port)) in dry_run[1]
    assert not (tmp_path / ".rollyard").exists() and not (tmp_path / "started").exists()


def test_two_servers_with_the_same_port_are_named(here: Path) -> None:
    name, port = make_folder(here), free_port()
    (here / "run.yaml").write_text(
        server_yaml(name, f"{{port: {port}}}") + server_yaml(name, f"{{port: {port}}}", "two")
    )
    _, message = error_of(["+config_paths=run.yaml", "+dry_run=true"])
    assert message.startswith("environment and two ") and f"port {port} " in message


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "run.example.org"])
@pytest.mark.parametrize("advertise", [None, "run.example.org"])
async def test_the_check_accepts_the_certificates_with_which_the_head_starts(
    tmp_path: Path, name: str, advertise: str | None
) -> None:
    keys = tls_keys(issue(tmp_path, name))
    preflight = Preflight([], keys, {})
    with contextlib.closing(bind_head("localhost", 0)) as sock:
        try:
            HostedServer(make_server(keys=keys), sock, advertise=advertise)
        except OperatorError as refused:
            with pytest.raises(OperatorError, match=re.escape(str(refused))):
                await preflight.check(tmp_path, head=("localhost", 0), colocate=False, advertise=advertise)
        else:
            await preflight.check(tmp_path, head=("localhost", 0), colocate=False, advertise=advertise)
    await preflight.close()


def test_an_unwritable_run_folder_stops_a_dry_run(here: Path) -> None:
    (here / "run.yaml").write_text(server_yaml(make_folder(here)))
    (here / ".rollyard").write_text("a file where the folder belongs")
    arguments = ["+config_paths=run.yaml", "+head_port=0"]
    assert error_of([*arguments, "+dry_run=true"]) == error_of(arguments)


class Endpoint:
    def __init__(self, **responses: tuple[int, str]) -> None:
        self.responses = responses
        self.keys: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            first = await reader.readexactly(1)
            if first != b"G":  # a TLS handshake
                writer.close()
                return
            head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.keys += [line for line in head.split("\r\n") if line.lower().startswith("authorization")]
            status, body = self.responses.get(head.split()[1].replace("/", "_").strip("_"), (404, "{}"))
            text = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}"
            writer.write(text.encode())
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def listening(endpoint: Endpoint) -> AsyncIterator[str]:
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def advice(url: str, model: str = "qwen") -> list[str]:
    transport = HttpTransport()
    settings = EndpointSettings(base_url=url, api_key=SecretStr("sk-secret"), model=model)
    try:
        return await endpoint_advice(settings, transport)
    finally:
        await transport.close()


MODELS = (200, '{"data": [{"id": "qwen"}, {"id": "llama"}]}')


@pytest.mark.parametrize(
    ("endpoint", "url", "message"),
    [
        (Endpoint(v1_models=MODELS), "http://HOST", " http://HOST/v1: set base_url"),
        (Endpoint(v1_models=MODELS), "http://HOST/v1/v1", " http://HOST/v1: set base_url"),
        (Endpoint(v1_models=MODELS), "http://HOST/v1/chat/completions", " http://HOST/v1: set base_url"),
        (Endpoint(v1_models=MODELS), "https://HOST/v1", "http://HOST/v1 does: set base_url"),
        (Endpoint(v1_models=(401, "{}")), "http://HOST/v1", "key (status 401)"),
        (Endpoint(v1_models=(503, "")), "http://HOST/v1", "status 503"),
        (Endpoint(v1_models=(200, "<html>")), "http://HOST/v1", "OpenAI-compatible"),
        (Endpoint(v1_models=(200, '{"data": [{"id": "qwen3"}]}')), "http://HOST/v1", "'qwen3'"),
    ],
)
async def test_a_misconfigured_endpoint_is_reported_with_its_fix(endpoint: Endpoint, url: str, message: str) -> None:
    async with listening(endpoint) as host:
        (note,) = await advice(url.replace("HOST", host))
    assert message.replace("HOST", host) in note and "sk-secret" not in note


@pytest.mark.parametrize("response", [MODELS, (404, "{}"), (405, ""), (200, '{"data": []}')])
async def test_an_endpoint_that_serves_the_model_or_lists_none_needs_no_advice(response: tuple[int, str]) -> None:
    endpoint = Endpoint(v1_models=response)
    async with listening(endpoint) as host:
        assert await advice(f"http://{host}/v1") == []
    assert endpoint.keys[0].endswith("Bearer sk-secret")


def test_a_dry_run_notes_an_unreachable_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = "+config_paths=[responses_api_models/vllm_model/configs/vllm_model.yaml]"
    monkeypatch.setenv("policy_api_key", "sk-secret")
    policy = ["+policy_base_url=http://127.0.0.1:1/v1", "+policy_model_name=m"]
    assert run([config, *policy, "+dry_run=true"]) == 0
    output = capsys.readouterr().out
    assert "note: policy_model: http://127.0.0.1:1/v1: " in output and "sk-secret" not in output

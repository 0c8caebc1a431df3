"""A dry run finds what would stop the start, starts nothing, and says the same."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from rollyard.responses_api_models.upstream.endpoint_check import endpoint_advice
from rollyard.responses_api_models.upstream.settings import EndpointSettings
from rollyard.services.cli.run import run
from rollyard.services.errors import RollyardError
from rollyard.services.http.transport import HttpTransport
from tests.support.fixtures import make_folder, yaml_of

APP = """
from rollyard.services.errors import OperatorError
from rollyard.services.io.optional import require
from rollyard.services.server.app import Server

class Mine(Server):
    def __init__(self, settings, context):
        {made}
        super().__init__(settings, context)

    async def check(self):
        {checked}

    async def start(self):
        open("started", "w").close()

server = Mine
"""


def stopped_by(arguments: list[str]) -> tuple[type[RollyardError], str]:
    with pytest.raises(RollyardError) as raised:
        run(arguments)
    return type(raised.value), str(raised.value)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize(
    ("made", "checked", "settings", "words"),
    [
        ("require('no_such_package', 'math', context.name)", "pass", "{}", "rollyard[math]"),
        ("raise ValueError('odd')", "pass", "{}", "environment cannot start: ValueError: odd"),
        ("pass", "raise OperatorError('no sandbox here')", "{}", "environment: no sandbox here"),
        ("pass", "raise KeyError('gpu')", "{}", "environment cannot start: KeyError"),
        ("import nothing_of_this_name", "pass", "{}", "nothing_of_this_name"),
        ("pass", "pass", "{host: nosuchhost.invalid}", "cannot listen on nosuchhost.invalid"),
        ("pass", "pass", "{port: TAKEN}", "cannot listen on 127.0.0.1:TAKEN"),
        ("pass", "pass", "{}\nother:\n  resources_servers:\n    NAME: {port: TAKEN}", "other cannot listen"),
    ],
)
def test_what_stops_the_start_stops_a_dry_run_with_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, made: str, checked: str, settings: str, words: str
) -> None:
    name = make_folder(tmp_path, app=APP.format(made=made, checked=checked))
    text = yaml_of(name, settings).replace("TAKEN", str(taken)).replace("NAME", name)
    if "nosuchhost" in settings:
        monkeypatch.setenv("ROLLYARD_TOKEN", "open")
    (tmp_path / "run.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    line = ["+config_paths=run.yaml", "+head_port=0"]
    dry, started = stopped_by([*line, "+dry_run=true"]), stopped_by(line)
    assert dry == started
    assert words.replace("TAKEN", str(taken)) in dry[1]
    assert not (tmp_path / ".rollyard").exists() and not (tmp_path / "started").exists()


def test_two_servers_that_ask_for_one_port_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make_folder(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "run.yaml").write_text(yaml_of(name, f"{{port: {port}}}") + yaml_of(name, f"{{port: {port}}}", "two"))
    monkeypatch.chdir(tmp_path)
    _, told = stopped_by(["+config_paths=run.yaml", "+dry_run=true"])
    assert told == f"environment and two are both configured with port {port} on 127.0.0.1"


def test_a_folder_in_which_a_run_cannot_write_stops_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(yaml_of(make_folder(tmp_path)))
    (tmp_path / ".rollyard").write_text("a file where the folder belongs")
    monkeypatch.chdir(tmp_path)
    line = ["+config_paths=run.yaml", "+head_port=0"]
    assert stopped_by([*line, "+dry_run=true"]) == stopped_by(line)


class Endpoint:
    """A scripted endpoint: path -> status and body."""

    def __init__(self, **answers: tuple[int, str]) -> None:
        self.answers = answers
        self.keys: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            first = await reader.readexactly(1)
            if first != b"G":  # a TLS handshake
                writer.close()
                return
            head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.keys += [line for line in head.split("\r\n") if line.lower().startswith("authorization")]
            status, body = self.answers.get(head.split()[1].replace("/", "_").strip("_"), (404, "{}"))
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
    ("endpoint", "url", "words"),
    [
        (Endpoint(v1_models=MODELS), "http://HOST", "one at http://HOST/v1: set base_url"),
        (Endpoint(v1_models=MODELS), "http://HOST/v1/v1", "one at http://HOST/v1: set base_url"),
        (Endpoint(v1_models=MODELS), "http://HOST/v1/chat/completions", "one at http://HOST/v1: set base_url"),
        (Endpoint(v1_models=MODELS), "https://HOST/v1", "http://HOST/v1 does: set base_url"),
        (Endpoint(v1_models=(401, "{}")), "http://HOST/v1", "rejects the key (status 401)"),
        (Endpoint(v1_models=(503, "")), "http://HOST/v1", "returns status 503"),
        (Endpoint(v1_models=(200, "<html>")), "http://HOST/v1", "not as an OpenAI-compatible API"),
        (Endpoint(v1_models=(200, '{"data": [{"id": "qwen3"}]}')), "http://HOST/v1", "did you mean 'qwen3'?"),
    ],
)
async def test_what_would_fail_at_an_endpoint_is_reported_with_its_fix(
    endpoint: Endpoint, url: str, words: str
) -> None:
    async with listening(endpoint) as host:
        (told,) = await advice(url.replace("HOST", host))
    assert words.replace("HOST", host) in told and "sk-secret" not in told


@pytest.mark.parametrize("answer", [MODELS, (404, "{}"), (405, ""), (200, '{"data": []}')])
async def test_an_endpoint_that_serves_the_model_or_lists_none_needs_no_advice(answer: tuple[int, str]) -> None:
    endpoint = Endpoint(v1_models=answer)
    async with listening(endpoint) as host:
        assert await advice(f"http://{host}/v1") == []
    assert endpoint.keys[0].endswith("Bearer sk-secret")


def test_a_dry_run_says_that_the_endpoint_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = "+config_paths=[responses_api_models/vllm_model/configs/vllm_model.yaml]"
    given = ["+policy_base_url=http://127.0.0.1:1/v1", "+policy_api_key=sk-secret", "+policy_model_name=m"]
    assert run([config, *given, "+dry_run=true"]) == 0
    told = capsys.readouterr().out
    assert "note: policy_model: http://127.0.0.1:1/v1: no connection" in told and "sk-secret" not in told

"""TLS: a server's certificate follows its files, and clients call only servers whose certificate they accept."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import warnings
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from rollyard.records.errors import FailureKind, OperatorError
from rollyard.records.run_types import TlsFiles
from rollyard.services.http.listener import bind
from rollyard.services.http.listener import listening as listening_app
from rollyard.services.http.request import RawRequest, RawResponse, Receive, Scope, Send
from rollyard.services.http.tls import UNTRUSTED, ServerCertificate
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.hosting import HostedServer
from tests.support.certificates import issue, tls_keys
from tests.support.fixtures import failure_of, http_transport, listening, make_client, make_server, send
from tests.support.waiting import deadline_s, until
from tests.unit.services.http.raw_peers import exchange

OTHER = trustme.CA()


async def echo(call: RawRequest) -> bytes:
    return call.body


@contextlib.asynccontextmanager
async def tls_server(files: TlsFiles) -> AsyncIterator[HostedServer]:
    async with listening(make_server(keys=tls_keys(files), routes={"/echo": echo})) as hosted:
        yield hosted


@contextlib.asynccontextmanager
async def trusting(files: TlsFiles) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(ca_files=tls_keys(files).ca_files)
    try:
        yield transport
    finally:
        await transport.close()


def port_of(hosted: HostedServer) -> int:
    return int(hosted.url.rpartition(":")[2])


@pytest.fixture
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates are looked at every 10 ms instead of every second."""
    monkeypatch.setattr("rollyard.services.http.listener.CHECK_EVERY_S", 0.01)


async def shown_certificate(hosted: HostedServer) -> bytes:
    """The certificate that the server shows to a new connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(hosted), ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(found)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_requests_of_each_method_reach_a_server_over_tls(tmp_path: Path, method: str) -> None:
    files = issue(tmp_path)
    async with tls_server(files) as hosted, trusting(files) as transport:
        assert hosted.url.startswith("https://127.0.0.1:")
        path = "/echo" if method == "POST" else "/health"
        response = await send(transport, hosted.url + path, b'{"a": 1}' if method == "POST" else b"", method)
        assert response.status == (405 if method == "DELETE" else 200)


async def test_a_channel_carries_requests_over_tls(tmp_path: Path) -> None:
    files = issue(tmp_path)
    async with tls_server(files) as hosted, trusting(files) as transport:
        client = make_client({"echo": [hosted.url]}, transport, keys=tls_keys(files), channels=True)
        bodies = [b"%d" % number for number in range(50)]
        responses = await asyncio.gather(*(client.post("echo", "/echo", body, deadline_s()) for body in bodies))
        assert [response.body for response in responses] == bodies
        assert len(transport._channels._opened) == 1 and not hosted._connections.connections


async def test_a_stream_is_received_over_tls(tmp_path: Path) -> None:
    async def stream(call: RawRequest) -> RawResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"one "
            yield b"two"

        return RawResponse(stream=pieces())

    files = issue(tmp_path)
    server = make_server(keys=tls_keys(files), routes={"/stream": stream})
    async with listening(server) as hosted, trusting(files) as transport:
        headers = {"content-type": "application/json"}
        _, chunks = await transport.stream("POST", hosted.url + "/stream", b"{}", headers, deadline_s())
        assert b"".join([chunk async for chunk in chunks]) == b"one two"


@pytest.mark.parametrize("method", ["GET", "DELETE"])  # the connection pool, and aiohttp
async def test_a_server_of_an_unknown_authority_is_not_called_and_the_failure_says_why(
    tmp_path: Path, method: str
) -> None:
    async with tls_server(issue(tmp_path)) as hosted, http_transport() as transport:
        failure = await failure_of(send(transport, hosted.url + "/health", b"", method))
        assert (failure.kind, failure.problem.code) == (FailureKind.UNREACHABLE, UNTRUSTED)
        assert "its certificate is not accepted" in failure.problem.detail
        assert "SSL_CERT_FILE" in failure.problem.detail
        assert not hosted.server.requests


async def test_a_server_is_not_called_under_a_name_that_its_certificate_lacks(tmp_path: Path) -> None:
    files = issue(tmp_path)
    async with tls_server(files) as hosted, trusting(files) as transport:
        failure = await failure_of(send(transport, f"https://localhost:{port_of(hosted)}/health", b"", "GET"))
        assert failure.problem.code == UNTRUSTED and "not valid for 'localhost'" in failure.problem.detail


@pytest.mark.parametrize("method", ["GET", "PUT", "stream"])
async def test_a_client_without_its_file_of_authorities_reaches_no_server(tmp_path: Path, method: str) -> None:
    async with tls_server(issue(tmp_path)) as hosted:
        transport = HttpTransport(ca_files=[str(tmp_path / "missing.pem")])
        url = hosted.url + "/health"
        if method == "stream":
            failure = await failure_of(transport.stream("POST", url, b"{}", {}, deadline_s()))
        else:
            failure = await failure_of(send(transport, url, b"", method))
        assert failure.kind is FailureKind.UNREACHABLE
        assert f"{tmp_path / 'missing.pem'} cannot be read" in failure.problem.detail
        await transport.close()


async def test_plain_http_to_a_server_that_uses_tls_is_answered_with_what_to_do(tmp_path: Path) -> None:
    async with tls_server(issue(tmp_path)) as hosted:
        response = await exchange(port_of(hosted), b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 400 ") and b"https://" in response
        assert not hosted.server.requests


async def test_tls_to_a_server_that_speaks_plain_http_fails_with_what_to_do() -> None:
    async with listening(make_server()) as hosted, http_transport() as transport:
        failure = await failure_of(send(transport, hosted.url.replace("http", "https") + "/health", b"", "GET"))
        assert "does not speak TLS" in failure.problem.detail and "http://" in failure.problem.detail


async def test_tls_older_than_1_2_is_refused(tmp_path: Path) -> None:
    files = issue(tmp_path)
    context = ssl.create_default_context(cafile=files.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with tls_server(files) as hosted:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port_of(hosted), ssl=context)


@pytest.mark.usefixtures("frequent_checks")
async def test_a_renewed_certificate_is_shown_without_losing_a_request_in_flight(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def blocked(call: RawRequest) -> bytes:
        await release.wait()
        return b"done"

    authority = trustme.CA()
    files = issue(tmp_path, authority=authority)
    server = make_server(keys=tls_keys(files), routes={"/blocked": blocked})
    async with listening(server) as hosted, trusting(files) as transport:
        waiting = asyncio.create_task(send(transport, hosted.url + "/blocked"))
        await until(lambda: server.in_flight == 1)
        before = await shown_certificate(hosted)
        issue(tmp_path, authority=authority)
        while await shown_certificate(hosted) == before:
            await asyncio.sleep(0.01)
        release.set()
        assert (await waiting).body == b"done"


@pytest.mark.parametrize("broken", ["certificate", "key"])
async def test_a_broken_renewal_keeps_the_former_certificate_and_is_logged(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = issue(tmp_path)
    certificate = ServerCertificate(files, "127.0.0.1")
    before = certificate.context
    Path(getattr(files, broken)).write_text("half a fi")
    for _ in range(3):
        certificate.renew()
    assert certificate.context is before
    assert len(caplog.messages) == 1 and "the former one stays" in caplog.text


async def test_a_renewal_succeeds_once_the_mode_of_its_key_is_mended(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = ServerCertificate(issue(tmp_path, authority=authority), "127.0.0.1")
    before, key = certificate.context, Path(issue(tmp_path, authority=authority).key)
    key.chmod(0o644)
    for _ in range(3):
        certificate.renew()
    assert certificate.context is before

    def mended() -> bool:
        key.chmod(0o600)  # again, as a file system may count time in steps of a second
        for _ in range(2):
            certificate.renew()
        return certificate.context is not before

    await until(mended)


def test_a_renewal_succeeds_once_the_authority_of_its_certificate_follows(tmp_path: Path) -> None:
    former, new = trustme.CA(), trustme.CA()
    certificate = ServerCertificate(issue(tmp_path, authority=former), "127.0.0.1")
    before, files = certificate.context, issue(tmp_path, authority=new, trusted=former)
    for _ in range(3):
        certificate.renew()
    assert certificate.context is before
    (tmp_path / "ca.new").write_bytes(new.cert_pem.bytes())
    (tmp_path / "ca.new").replace(str(files.ca))
    for _ in range(2):
        certificate.renew()
    assert certificate.context is not before


async def test_files_that_still_change_are_not_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    files = issue(tmp_path, authority=authority)
    certificate = ServerCertificate(files, "127.0.0.1")
    Path(files.certificate).write_text("half a fi")
    certificate.renew()
    issue(tmp_path, authority=authority)
    before = certificate.context
    certificate.renew()
    certificate.renew()
    assert certificate.context is not before and "former" not in caplog.text


async def test_a_client_takes_a_renewed_authority_from_its_file(tmp_path: Path) -> None:
    files = issue(tmp_path)
    async with trusting(files) as transport:
        for _ in range(2):
            async with tls_server(issue(tmp_path)) as hosted:
                assert (await send(transport, hosted.url + "/health", b"", "GET")).status == 200


@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\nMIIB"])
async def test_a_client_keeps_the_former_authority_while_its_file_is_half_written(
    tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    files = issue(tmp_path)
    path = Path(str(files.ca))
    async with trusting(files) as transport, tls_server(files) as hosted:
        transport.trust.context()
        path.unlink() if content is None else path.write_text(content)
        for _ in range(2):
            assert (await send(transport, hosted.url + "/health", b"", "GET")).status == 200
    assert [message for message in caplog.messages if "former authorities stay" in message and str(path) in message]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"names": ["run.example.org"]}, "not valid for '127.0.0.1'"),
        ({"expires": datetime(2001, 1, 1)}, "expired"),
        ({"trusted": OTHER}, "unable to get local issuer certificate"),
    ],
)
def test_a_certificate_that_clients_would_not_accept_is_refused(
    tmp_path: Path, options: dict[str, Any], found: str
) -> None:
    files = issue(tmp_path, *options.pop("names", ()), **options)
    with pytest.raises(OperatorError, match="clients would not accept") as error:
        ServerCertificate(files, "127.0.0.1")
    assert found in str(error.value)


@pytest.mark.parametrize("missing", ["certificate", "key", "ca"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    files = issue(tmp_path)
    path = Path(getattr(files, missing))
    path.unlink()
    with pytest.raises(OperatorError, match=f"{path} cannot be read"):
        ServerCertificate(files, "127.0.0.1")


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    files = issue(tmp_path)
    Path(files.key).chmod(0o644)
    with pytest.raises(OperatorError, match=r"mode 0644.*chmod 600"):
        ServerCertificate(files)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    files = issue(tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(OperatorError, match="is not that of the certificate"):
        ServerCertificate(files.model_copy(update={"key": issue(tmp_path / "other").key}))


async def test_an_app_of_uvicorn_is_served_over_tls(tmp_path: Path) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(scope["scheme"]).encode()})

    files = issue(tmp_path)
    with contextlib.closing(bind("127.0.0.1", 0)) as sock:
        url = f"https://127.0.0.1:{sock.getsockname()[1]}"
        async with (
            listening_app(app, sock, ServerCertificate(files), lifespan="off", ws="none"),
            trusting(files) as transport,
        ):
            assert (await send(transport, url + "/", b"", "GET")).body == b"https"

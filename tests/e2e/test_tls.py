"""Runs, the viewer and ng_serve over TLS, as commands."""

from __future__ import annotations

import ssl
import urllib.request
from datetime import datetime
from pathlib import Path

import orjson
import pytest

from rollyard.records.run_types import TlsFiles
from tests.support.certificates import issue
from tests.support.commands import Command, announced, command, ng_run
from tests.support.stacks import AGENT, EXAMPLES, SOKOBAN


def options(files: TlsFiles, *, ca: bool = True) -> list[str]:
    authority = ["--tls-ca-file", str(files.ca)] if ca else []
    return ["--tls-certificate-file", files.certificate, "--tls-key-file", files.key, *authority]


def certificates(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def test_the_commands_of_a_run_speak_tls_and_accept_only_its_certificate(tmp_path: Path) -> None:
    files, here, elsewhere = issue(certificates(tmp_path / "tls")), tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    async with ng_run(SOKOBAN, "--head-port", "0", *options(files), cwd=here):
        (head,) = (orjson.loads(path.read_bytes()) for path in here.glob(".rollyard/runs/*/head.json"))
        assert head["url"].startswith("https://127.0.0.1:")
        collect = ("ng_collect_rollouts", "--agent", AGENT, "--input", str(EXAMPLES), "--output", "out.jsonl")
        collected = await command(*collect, "--num-collectors", "2", cwd=here)
        assert collected.status == 0 and "5 of 5 rollouts measured" in collected.out, collected
        servers = orjson.loads((await command("ng_status", "--json", cwd=here)).out)
        assert {server["url"][:8] for server in servers} == {"https://"}

        foreign = await command("ng_status", "--head", head["url"], cwd=elsewhere)
        assert foreign.status == 2 and "its certificate is not accepted" in foreign.err
        plain = await command("ng_status", "--head", head["url"].removeprefix("https://"), cwd=elsewhere)
        assert plain.status == 1 and "this server uses TLS" in plain.err
        told = await command("ng_status", "--head", head["url"], cwd=elsewhere, env={"SSL_CERT_FILE": str(files.ca)})
        assert told.status == 0, told.err


@pytest.mark.parametrize(
    "program", [["ng_viewer", str(EXAMPLES)], ["ng_serve", "--protocol", "ors", "--environment", "grl_sokoban"]]
)
async def test_the_viewer_and_ng_serve_speak_tls(tmp_path: Path, program: list[str]) -> None:
    files = issue(certificates(tmp_path / "tls"))
    async with announced(*program, "--port", "0", *options(files, ca=False), cwd=tmp_path) as (_, line):
        url = line[line.index("https://127.0.0.1:") :]
        context = ssl.create_default_context(cafile=files.ca)
        path = "" if program[0] == "ng_viewer" else "/list_environments"
        with urllib.request.urlopen(url + path, context=context) as response:
            assert response.status == 200


def test_files_with_which_a_run_cannot_start_are_refused_before_anything_starts(here: Path, ng: Command) -> None:
    files = issue(certificates(here / "good"))
    expired = issue(certificates(here / "expired"), expires=datetime(2001, 1, 1))
    named = issue(certificates(here / "named"), "run.example.org")
    for given, found in (
        (options(expired), "certificate has expired"),
        (options(named), "not valid for '127.0.0.1'"),
        (options(files, ca=False), "--tls-ca-file"),
        (["--tls-ca-file", str(files.ca)], "--tls-certificate-file FILE and --tls-key-file FILE"),
    ):
        refused = ng("ng_run", SOKOBAN, "--dry-run", *given)
        assert refused.status == 2 and found in refused.err, refused
    for address in ("127.0.0.1", "localhost"):
        assert ng("ng_run", SOKOBAN, "--dry-run", "--head-host", address, *options(files)).status == 0
    assert not (here / ".rollyard").exists()

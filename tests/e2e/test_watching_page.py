"""docs/operation.md: its commands work, and the metrics that it lists exist."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import yaml

from rollyard.records.data_files import INSTALLED
from rollyard.services.runtime.running_stack import RunningStack
from tests.support.commands import Command, running_stack
from tests.support.doc_pages import commands, page, sections
from tests.support.fixtures import http_transport
from tests.support.stacks import SOKOBAN
from tests.support.waiting import deadline_s

TEXT = sections(page("operation.md"))["Monitoring"]
LINES = [words for words in commands(TEXT) if "--watch" not in words and words[0] in ("curl", "ng_status")]
DEFAULT = "127.0.0.1:11000"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    folder: Path = tmp_path_factory.mktemp("run")
    with running_stack(configs=SOKOBAN, folder=folder) as running:
        yield running


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_command_of_the_page_works(
    stack: RunningStack, monkeypatch: pytest.MonkeyPatch, ng: Command, words: list[str]
) -> None:
    monkeypatch.chdir(stack.access.head.folder)
    if words[0] == "ng_status":
        done = ng(*words)
        assert done.status == 0 and done.out, done.err
    else:
        moved = [word.replace(DEFAULT, stack.head_url.removeprefix("http://")) for word in words]
        assert subprocess.run(moved, check=True, capture_output=True).stdout


async def test_the_prometheus_config_finds_every_server(stack: RunningStack) -> None:
    (job,) = yaml.safe_load((INSTALLED / "docs/grafana/prometheus.yml").read_text())["scrape_configs"]
    (discovery,) = job["http_sd_configs"]
    async with http_transport() as transport:
        url = discovery["url"].replace(DEFAULT, stack.head_url.removeprefix("http://"))
        targets = orjson.loads((await transport.send("GET", url, b"", {}, deadline_s())).body)
        assert len(targets) == 4
        for target in targets:
            metrics = await transport.send("GET", f"http://{target['targets'][0]}/metrics", b"", {}, deadline_s())
            assert metrics.status == 200 and b"rollyard_in_flight" in metrics.body


def test_the_page_has_commands_of_both_kinds() -> None:
    assert {words[0] for words in LINES} == {"curl", "ng_status"}


def test_the_page_lists_every_metric_that_the_dashboard_shows() -> None:
    board = orjson.loads((INSTALLED / "docs/grafana/rollyard.json").read_bytes())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            for name in re.findall(r"\b(?:rollyard|process)_\w+", target["expr"]):
                short = re.sub(r"_bucket$", "", name)
                assert short in TEXT or short.replace("rollyard_collection", "") in TEXT, name

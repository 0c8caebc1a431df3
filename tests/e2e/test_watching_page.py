"""docs/watching.md: its commands work, and the metrics that it lists exist."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import orjson
import yaml

from rollyard.services.cli.options import read_options
from rollyard.services.cli.track import TrackOptions
from rollyard.services.http.transport import HttpTransport
from rollyard.services.io.search_path import INSTALLED
from tests.e2e.test_docs import documented_lines
from tests.support.commands import command, command_environ, config, ng_run
from tests.support.stacks import SOKOBAN

PAGE = INSTALLED / "docs/watching.md"
DEFAULT = "127.0.0.1:11000"


async def shell(words: list[str], cwd: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *words, cwd=cwd, env=command_environ(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_every_command_of_the_page_works_and_the_prometheus_config_finds_every_server(tmp_path: Path) -> None:
    lines = [
        words for words in documented_lines(PAGE) if "+watch=true" not in words and words[0] in ("curl", "ng_status")
    ]
    assert len(lines) >= 4
    async with ng_run(config(SOKOBAN), "+colocate=true", "+head_port=0", cwd=tmp_path) as run:
        found = re.search(r"head http://(\S+)", run.printed)
        assert found
        head = found[1]

        async def check(words: list[str]) -> None:
            if words[0] == "ng_status":
                done = await command(*words, cwd=tmp_path)
                assert done.status == 0 and done.out, done.err
            else:
                assert await shell([word.replace(DEFAULT, head) for word in words], tmp_path)

        await asyncio.gather(*map(check, lines))
        (job,) = yaml.safe_load((INSTALLED / "docs/grafana/prometheus.yml").read_text())["scrape_configs"]
        (discovery,) = job["http_sd_configs"]
        transport = HttpTransport()
        try:
            url = discovery["url"].replace(DEFAULT, head)
            targets = orjson.loads((await transport.send("GET", url, b"", {}, 5.0)).body)
            for target in targets:
                page = await transport.send("GET", f"http://{target['targets'][0]}/metrics", b"", {}, 5.0)
                assert page.status == 200 and b"rollyard_in_flight" in page.body
        finally:
            await transport.close()
    assert len(targets) == 4


def test_the_page_lists_every_metric_that_the_dashboard_shows() -> None:
    page = PAGE.read_text()
    board = orjson.loads((INSTALLED / "docs/grafana/rollyard.json").read_bytes())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            for name in re.findall(r"\b(?:rollyard|process)_\w+", target["expr"]):
                short = re.sub(r"_bucket$", "", name)
                assert short in page or short.replace("rollyard_collection", "") in page, name


def test_every_documented_track_line_has_known_options() -> None:
    lines = [words for words in documented_lines(PAGE) if words[0] == "ng_track"]
    assert {read_options(TrackOptions, words[1:])[0].to for words in lines} == {"wandb", "mlflow"}

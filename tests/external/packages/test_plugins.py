"""Plug-ins in a user's project next to an installed stack: their imports and module names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.external.packages.building import build
from tests.external.packages.installation import Installation
from tests.external.packages.runs import MODEL, MODES, collect
from tests.support.doc_pages import commands, page, write_files
from tests.support.stacks import read_rows

APP = """
import agents.house_rules
import services
from own_helpers import words
import own_sibling
from .rules import RULE
from .deeper.still import DEPTH

from rollyard.resources_servers.base import Environment, Verdict, serve


class Mine(Environment):
    async def verify(self, response):
        parts = (agents.house_rules.POINTS, services.POINTS, words.POINTS, own_sibling.POINTS, RULE, DEPTH)
        assert __name__ == "rollyard_plugins.resources_servers.{name}.app", __name__
        return Verdict(reward=float(sum(parts)))


server = serve(Mine)
"""
AGENT = """
from rollyard.agents.simple_agent.app import SimpleAgent

assert __name__ == "rollyard_plugins.agents.{name}.app", __name__


class Mine(SimpleAgent):
    pass


server = Mine
"""
CONFIG = """
environment:
  resources_servers:
    {name}: {{}}
agent:
  agents:
    {name}:
      max_steps: 1
      resources_server: {{type: resources_servers, name: environment}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""


def project(folder: Path, name: str) -> dict[str, str]:
    """Write a project with its own packages and two plug-ins of the same name; return its environment variables."""
    plugin = f"resources_servers/{name}"
    files = {
        f"{plugin}/app.py": APP.format(name=name),
        f"{plugin}/rules.py": "RULE = 1\n",
        f"{plugin}/own_sibling.py": "POINTS = 2\n",
        f"{plugin}/deeper/__init__.py": "",
        f"{plugin}/deeper/still.py": "from ..rules import RULE\nDEPTH = RULE + 3\n",
        f"{plugin}/own_helpers/words.py": "POINTS = 8\n",
        f"agents/{name}/app.py": AGENT.format(name=name),
        "agents/house_rules.py": "POINTS = 16\n",
        "agents/__init__.py": "",
        "services/__init__.py": "POINTS = 32\n",
        "config.yaml": CONFIG.format(name=name),
        "rows.jsonl": '{"responses_create_params": {"input": "Say anything."}}\n',
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize(("name", "mode"), [("mine", "processes"), ("openai", "colocated"), ("json", "processes")])
def test_plug_ins_work_whatever_the_packages_of_their_project_are_called(
    main: Installation, name: str, mode: str, tmp_path: Path
) -> None:
    env = project(tmp_path, name)
    with main.stack(f"+config_paths=[config.yaml,{MODEL}]", *MODES[mode], cwd=tmp_path, env=env):
        (row,) = collect(main, "agent", "rows.jsonl", tmp_path)
    assert row["reward"] == 63.0


def test_forked_workers_can_unpickle_functions_of_a_plug_in(main: Installation, tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "mine"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(
        "from rollyard.services.server.app import Server\nfrom .rules import double\n"
        "server = Server\nServer.double = staticmethod(double)\n"
    )
    (folder / "rules.py").write_text("def double(number):\n    return 2 * number\n")
    code = (
        "import multiprocessing, pathlib\n"
        "from rollyard.services.config.plugins import load_server\n"
        f"server = load_server('resources_servers', pathlib.Path({os.fspath(folder)!r}), 'app.py')\n"
        "with multiprocessing.get_context('fork').Pool(1) as pool:\n"
        "    print(pool.map(server.double, [1, 2]))\n"
    )
    assert main.prints(code, cwd=tmp_path) == "[2, 4]"


def test_an_environment_is_published_in_a_wheel_of_another_name_as_the_page_says(
    main: Installation, tmp_path: Path
) -> None:
    typed = {words[0]: words for words in commands(page("publish.md"))}
    project, elsewhere = tmp_path / "arithmetic", tmp_path / "elsewhere"
    package = tmp_path / typed["mkdir"][-1]
    for folder in (package, elsewhere):
        folder.mkdir(parents=True)
    main.run(*typed["ng_init"], cwd=package)
    write_files(page("publish.md"), project)
    main.install("--no-deps", build(project, tmp_path / "dist"))
    try:
        with main.stack(*typed["ng_run"][1:], cwd=elsewhere):
            main.run(*typed["ng_collect_rollouts"], cwd=elsewhere)
        assert len(read_rows(elsewhere / "results/addition.jsonl")) == 4 * len(
            read_rows(package / "resources_servers/addition/data/example.jsonl")
        )
        main.run(*typed["ng_eval"], cwd=elsewhere)
        assert (elsewhere / "results/addition_eval/reward_analysis.md").is_file()
        assert "All checks of the environment passed." in main.run("ng_doctor", "env", "addition", cwd=elsewhere)
    finally:
        main.uninstall("arithmetic-environments")

"""A server in its own virtual environment, which has another version of a package than the stack."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.external.packages.installation import Installation
from tests.external.packages.runs import MODEL, collect


def wheel(folder: Path, number: str) -> Path:
    info = f"shared_by_both-{number}.dist-info"
    path = folder / f"shared_by_both-{number}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("shared_by_both.py", f"VERSION = {number!r}\n")
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: shared-by-both\nVersion: {number}\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", f"shared_by_both.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


ISOLATED = """
import shared_by_both
from rollyard.resources_servers.base import Environment, Verdict, serve


class Alone(Environment):
    async def verify(self, response):
        return Verdict(reward=float(shared_by_both.VERSION))


server = serve(Alone)
"""
CONFIG = """
environment:
  resources_servers:
    alone: {}
agent:
  agents:
    simple_agent:
      max_steps: 1
      resources_server: {type: resources_servers, name: environment}
      model_server: {type: responses_api_models, name: policy_model}
"""


def version_in_isolation(environment: Installation, folder: Path) -> str:
    """The version that an isolated server imports: the stack has 1.0, the server's requirements name 2.0."""
    environment.install(wheel(folder, "1.0"))
    plugin = folder / "resources_servers" / "alone"
    plugin.mkdir(parents=True)
    (plugin / "app.py").write_text(ISOLATED)
    (plugin / "requirements-isolated.txt").write_text(f"{wheel(folder, '2.0')}\n")
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "rows.jsonl").write_text('{"responses_create_params": {"input": "Say anything."}}\n')
    env = {"XDG_CACHE_HOME": str(folder / "cache"), "PIP_NO_INDEX": "1"}
    with environment.stack(f"+config_paths=[config.yaml,{MODEL}]", cwd=folder, env=env):
        (row,) = collect(environment, "agent", "rows.jsonl", folder)
    return str(row["reward"])

"""The environments in the installed wheel of NeMo Gym, one for each config that names a resources server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[4]
VENV = ROOT / ".venv-nemo-gym07"
PYTHON = VENV / "bin" / "python"
PLAYABLE_AGENTS = ("simple_agent", "gymnasium_agent", "tool_simulation_agent", "non_executing_simple_agent")
"""NeMo Gym's agents that need no program or service besides. In place of any other, its simple_agent plays."""
MOST_ROWS = 5
"""Rows played of longer files. Every example file but two has five or six."""

IN_SANDBOXES = 2
"""The same for servers that set up a repository for each row."""

DESCRIPTIVE = ("domain", "verified", "verified_url", "description", "value")
"""Settings that change nothing about how a server plays."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Environment:
    name: str
    """The config's path in short: `mcqa`, `nvarc/inductive`, `environments/calendar`."""
    config: Path
    resources_name: str
    """The name of the resources server in the config."""
    folder: Path
    """The folder of its program."""
    agent: str
    """NeMo Gym's agent that plays."""
    named_agent: str | None
    """The agent that the config names, if that is another; `none` if it names none."""
    agent_settings: dict[str, Any]
    rows_path: Path | None
    """The example rows; None if the wheel has none."""
    server_settings: dict[str, Any]
    also: tuple[str, ...] = ()
    """Other configs of the same server with the same settings, rows and playing agent."""

    @property
    def program(self) -> str:
        return str(self.server_settings.get("entrypoint", "app.py"))

    @property
    def packages(self) -> list[Path]:
        """Packages in the server's folder that its requirements name."""
        requirements = self.folder / "requirements.txt"
        text = requirements.read_text() if requirements.is_file() else ""
        return [self.folder / name / "src" for name in re.findall(r"(?m)^-e \./(\w+)", text)]

    def tree(self) -> dict[str, Any]:
        """The config, with what it completes if it is a part of one, and without an address or a number of workers."""
        tree: dict[str, Any] = _completed(self.config)
        for entry in tree.values():
            for settings in (entry.get("resources_servers") or {}).values() if isinstance(entry, dict) else ():
                for name in ("host", "port"):
                    settings.pop(name, None)
                if settings.get("num_workers") is not None:  # arena asks for the setting, which is null there
                    del settings["num_workers"]
        return tree

    @property
    def group(self) -> int:
        """How many rollouts of a row must run at the same time, because the server compares them."""
        return int(self.server_settings.get("num_rollouts_per_prompt", 1))

    def rows(self) -> list[Row]:
        if self.rows_path is None:
            return []
        lines = self.rows_path.read_bytes().split(b"\n")
        most = IN_SANDBOXES if "sandbox_provider" in self.server_settings else MOST_ROWS
        rows: list[Row] = [json.loads(line) for line in lines if line.strip()][:most]
        return [_with_prompt(row, number) for number, row in enumerate(rows, 1)]


def _with_prompt(row: Row, number: int) -> Row:
    """The row for the agent that plays. Rows for an agent that writes its own prompt have none."""
    asked = row.get("responses_create_params") or {}
    prompt = asked.get("input") or [{"role": "user", "content": f"Task {number}, whose prompt is not in the row."}]
    kept = {key: value for key, value in row.items() if key != "agent_ref"}
    return {**kept, "responses_create_params": {**asked, "input": prompt}}


def site_packages() -> Path:
    found = list((VENV / "lib").glob("python3*/site-packages"))
    if not found or not (found[0] / "resources_servers").is_dir():
        raise FileNotFoundError(f"{VENV} has no NeMo Gym: run make {VENV.name}/.ready")
    return found[0]


def environments() -> list[Environment]:
    root = site_packages()
    configs = sorted(root.glob("resources_servers/*/configs/*.yaml")) + sorted(root.glob("environments/*/config.yaml"))
    found: dict[str, list[Environment]] = {}
    for config in configs:
        for environment in _of_config(root, config):
            found.setdefault(_identity(environment), []).append(environment)
    merged = [
        replace(first, also=tuple(other.name for other in others)) for first, *others in map(_by_name, found.values())
    ]
    names = [environment.name for environment in merged]
    assert len(names) == len(set(names)), "two environments have the same name"
    return merged


def _identity(environment: Environment) -> str:
    """Equal for environments that play the same, whatever their configs say about training data and models."""
    settings = {key: value for key, value in environment.server_settings.items() if key not in DESCRIPTIVE}
    return json.dumps([str(environment.folder), settings, environment.agent, environment.rows()], sort_keys=True)


def _by_name(same: list[Environment]) -> list[Environment]:
    """The one whose config is named as its folder first, then those whose agent plays."""
    return sorted(same, key=lambda one: (one.name != one.folder.name, one.named_agent is not None, one.name))


def _of_config(root: Path, config: Path) -> Iterator[Environment]:
    tree = _completed(config)
    agents = _entries(tree, "responses_api_agents")
    for number, (server, kind, server_settings) in enumerate(_entries(tree, "resources_servers")):
        folder = root / "resources_servers" / kind
        own = [entry for entry in agents if (entry[2].get("resources_server") or {}).get("name") == server]
        _, named, settings = own[0] if own else ("", None, {})
        examples = [path for _, _, agent in own for path in _examples(root, agent)]
        name = _name(config, kind) + (f"/{server}" if number else "")
        paths: list[Path | None] = [*dict.fromkeys(examples)]
        for path in paths or [_default_rows(config, folder)]:
            plays = named if named in PLAYABLE_AGENTS else "simple_agent"
            differs = None if plays == named else named or "none"
            first = not examples or path == examples[0]
            variant = name if first or path is None else f"{name}/{path.stem.removeprefix('example_')}"
            yield Environment(variant, config, server, folder, plays, differs, settings, path, server_settings)


def _completed(config: Path) -> dict[str, Any]:
    """The config, on top of the main one of its folder if its server has no program."""
    tree: dict[str, Any] = yaml.safe_load(config.read_text()) or {}
    main = config.with_name(f"{config.parent.parent.name}.yaml")
    servers = _entries(tree, "resources_servers")
    if servers and main != config and main.is_file() and not any("entrypoint" in one for _, _, one in servers):
        return _on_top(yaml.safe_load(main.read_text()), tree)
    return tree


def _on_top(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    def merged(key: str, value: Any) -> Any:
        under = below.get(key)
        return _on_top(under, value) if isinstance(under, dict) and isinstance(value, dict) else value

    return {**below, **{key: merged(key, value) for key, value in above.items()}}


def _entries(tree: dict[str, Any], family: str) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (name, implementation, settings or {})
        for name, entry in tree.items()
        if isinstance(entry, dict) and isinstance(entry.get(family), dict)
        for implementation, settings in entry[family].items()
    ]


def _examples(root: Path, agent: dict[str, Any]) -> list[Path]:
    named = [data["jsonl_fpath"] for data in agent.get("datasets") or [] if data.get("type") == "example"]
    return [root / path for path in named if (root / path).is_file()]


def _default_rows(config: Path, folder: Path) -> Path | None:
    """The folder's own example rows, for configs that name none."""
    for path in (config.parent / "data" / "example.jsonl", folder / "data" / "example.jsonl"):
        if path.is_file():
            return path
    return None


def _name(config: Path, kind: str) -> str:
    if config.name == "config.yaml":
        return f"environments/{config.parent.name}"
    return kind if config.stem == kind else f"{kind}/{config.stem}"

"""The model servers and values that NeMo Gym's configs refer to, all of which are the scripted model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.external.nemo_gym.compatibility.processes import HOST


def with_models(node: Any) -> Any:
    """A copy of a config in which model servers that a user must choose (`???`) are the policy model."""
    if isinstance(node, dict):
        chosen = {"name": "policy_model"} if _is_reference(node) and node.get("name") == "???" else {}
        return {**{key: with_models(value) for key, value in node.items()}, **chosen}
    return [with_models(item) for item in node] if isinstance(node, list) else node


def _is_reference(node: dict[str, Any]) -> bool:
    return node.get("type") == "responses_api_models" and isinstance(node.get("name"), str)


def model_names(node: Any) -> set[str]:
    if isinstance(node, dict):
        return ({node["name"]} if _is_reference(node) else set()).union(*map(model_names, node.values()))
    return set().union(*map(model_names, node)) if isinstance(node, list) else set()


def values(tree: dict[str, Any], port: int, folder: Path) -> dict[str, Any]:
    """What a user sets in env.yaml: addresses of models, keys of services that are not reached, excluded domains.

    Its sandbox is a folder in the box of WarmPython, without the image that a task names.
    """
    domains = folder / "exclude_domains.json"
    domains.write_text('{"notices": []}')
    named = set(re.findall(r"\$\{(\w+)\}", json.dumps(tree)))
    addresses = {name: f"http://{HOST}:{port}/v1" for name in named if name.endswith("base_url")}
    sandbox = {"local": {"workspace_root": str(folder)}}
    return {**dict.fromkeys(named, "none"), **addresses, "exclude_domains_file_path": str(domains), "sandbox": sandbox}

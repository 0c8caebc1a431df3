"""The model servers and values that NeMo Gym's configs refer to, all of which are the scripted model."""

from __future__ import annotations

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


def values(port: int, folder: Path) -> dict[str, Any]:
    """What a user sets in env.yaml: addresses of models, keys of services that are not reached, excluded domains."""
    domains = folder / "exclude_domains.json"
    domains.write_text('{"notices": []}')
    url = f"http://{HOST}:{port}/v1"
    models = {
        f"{who}_{what}": value
        for who in ("policy", "judge", "safety_judge", "search_judge")
        for what, value in (("base_url", url), ("api_key", "none"), ("model_name", "scripted"))
    }
    return {**models, "tavily_api_key": "none", "exclude_domains_file_path": str(domains)}

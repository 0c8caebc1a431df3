"""The model servers and values that NeMo Gym's configs refer to, all of which are the scripted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.external.nemo_gym.compatibility.processes import HOST


def model_names(node: Any) -> set[str]:
    """Names of all model servers that a config refers to."""
    if isinstance(node, dict):
        refers = node.get("type") == "responses_api_models" and isinstance(node.get("name"), str)
        return ({node["name"]} if refers else set()).union(*map(model_names, node.values()))
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

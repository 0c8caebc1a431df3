"""The merged config of the run that this process started, in NeMo Gym's form."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rollyard.records.errors import RunError
from rollyard.services.config.server_folders import ALIASES, FAMILIES
from rollyard.services.runtime.run_dir import running_heads

_THEIRS = {name: alias for alias, name in ALIASES.items()}
_DEADLINE_S = 10.0


def get_global_config_dict() -> DictConfig:
    """Return the config that the head of this process's run serves, with addresses and without secrets.

    Raises RunError if this process has started no run in the working directory.
    """
    head = next((head for head in running_heads(Path.cwd()) if head.pid == os.getpid()), None)
    if head is None:
        raise RunError("this process has started no run in the working directory: call RunHelper().start first")
    headers = {"Authorization": f"Bearer {head.token}"} if head.token else {}
    request = urllib.request.Request(f"{head.url}/global_config_dict_yaml", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_DEADLINE_S) as response:
        tree = OmegaConf.to_container(OmegaConf.create(json.loads(response.read())), resolve=True)
    assert isinstance(tree, dict)
    return OmegaConf.create({str(name): _in_their_form(node) for name, node in tree.items()})


def _in_their_form(node: Any) -> Any:
    """Return a server's entry with NeMo Gym's name of its family and its entrypoint; anything else unchanged."""
    if not isinstance(node, dict) or not {ALIASES.get(str(key), key) for key in node} & set(FAMILIES):
        return node
    return {
        _THEIRS.get(family, family): {
            name: {"entrypoint": "app.py", **(settings or {})} for name, settings in (implementations or {}).items()
        }
        for family, implementations in node.items()
    }

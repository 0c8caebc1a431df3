"""The config that NeMo Gym's programs read from their environment: the entire run, with the address of each server."""

from __future__ import annotations

import copy
from typing import Any
from urllib.parse import urlsplit

from omegaconf import OmegaConf

from rollyard.records.types import Json
from rollyard.services.config.nemo_gym.foreign import LAUNCH_KEYS
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.config.server_folders import ALIASES

CONFIG_VARIABLE = "NEMO_GYM_CONFIG_DICT"
NAME_VARIABLE = "NEMO_GYM_CONFIG_PATH"
MAX_BYTES = 128 * 1024 - 64
"""Linux limits each environment variable to 128 KiB, with its name."""
_OWN_KEYS = frozenset({*LAUNCH_KEYS, "start_timeout_s", "replicas", "url"})
_THEIR_FAMILIES = {own: theirs for theirs, own in ALIASES.items()}
_DEFAULTS: Json = {
    "use_absolute_ip": False,
    "port_range_low": 10_001,
    "port_range_high": 20_000,
    "dry_run": False,
    "skip_venv_if_present": False,
}
"""Top-level settings that NeMo Gym's launcher adds, and that its programs expect."""


def launch_config(config: RunConfig, head_url: str) -> str:
    """Return the YAML of the run's config as NeMo Gym's programs expect it. It contains the config's secrets."""
    head = urlsplit(head_url)
    tree = {
        key: copy.deepcopy(value) for key, value in config.tree.items() if key not in (*LAUNCH_KEYS, "config_paths")
    }
    for spec in config.servers:
        family = _THEIR_FAMILIES.get(spec.family, spec.family)
        tree[spec.name] = {family: {spec.implementation: _entry(spec)}}
    ports = [spec.settings.port for spec in config.servers if spec.external_url is None]
    tree |= {key: tree.get(key, value) for key, value in _DEFAULTS.items()}
    tree["head_server"] = {"host": head.hostname, "port": head.port}
    tree["disallowed_ports"] = [head.port, *ports]
    return OmegaConf.to_yaml(OmegaConf.create(escaped(tree)))


def _entry(spec: ServerSpec) -> Json:
    own = {key: value for key, value in spec.raw.items() if key not in _OWN_KEYS}
    host, port = spec.settings.host, spec.settings.port
    if spec.external_url is not None:
        address = urlsplit(spec.external_url)
        host, port = address.hostname or host, address.port or (443 if address.scheme == "https" else 80)
    else:
        own = {"entrypoint": spec.settings.entrypoint, **own}
    return {**own, "host": {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), "port": port}


def escaped(value: Any) -> Any:
    """Return the value with each `${` escaped: all references are resolved, so what is left is text."""
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value

"""What the arguments of ng_eval and ng_train have in common: a config file, its keys, and settings of servers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rollyard.services.config.overrides import Override
from rollyard.services.config.server_folders import ALIASES, FAMILIES
from rollyard.services.errors import OperatorError, did_you_mean


def take_config_path(words: list[str]) -> str | None:
    """Remove and return the first argument if it is a YAML file."""
    is_file = bool(words) and is_path(words[0]) and words[0].endswith((".yaml", ".yml"))
    return words.pop(0) if is_file else None


def is_path(word: str) -> bool:
    """Return whether an argument is a path and not `key=value`; paths such as `results/lr=0.1` contain = as well."""
    key, equals, _ = word.partition("=")
    return not equals or "/" in key or Path(word).exists()


def is_server_setting(override: Override) -> bool:
    """Return whether the key is one of a server's settings: `agent.responses_api_agents.game_agent.max_steps`."""
    return override.key.count(".") > 1 and override.key.split(".")[1] in (*FAMILIES, *ALIASES)


def check_key(override: Override, known: Sequence[str], below: Mapping[str, Collection[str]]) -> None:
    """Raise OperatorError if the key is neither `known` nor a server's setting.

    `below`: key -> keys of its mapping, which are suggested if one is given without the first key.
    """
    if override.top in known or is_server_setting(override):
        return
    for parent, names in below.items():
        if override.top in names:
            raise OperatorError(f"unknown option {override.top!r}, did you mean {parent}.{override.top}=...?")
    raise OperatorError(f"unknown option {override.top!r} in {override.shown!r}{did_you_mean(override.top, known)}")

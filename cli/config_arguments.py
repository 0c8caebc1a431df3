"""What the arguments of ng_eval and ng_train have in common: a config file, its keys, and settings of servers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rollyard.cli.options import unknown_option
from rollyard.records.errors import OperatorError
from rollyard.services.config.overrides import ConfigOverride
from rollyard.services.config.plugins import ALIASES, FAMILIES


def config_path(files: Sequence[str], named: str | None) -> str | None:
    """Return the config file among the arguments. Raises OperatorError if there are several, or if it is not YAML."""
    given = [*files, *([named] if named else [])]
    if len(given) > 1:
        raise OperatorError(f"expected one config file, found {' and '.join(map(repr, given))}")
    for file in files:
        if not file.endswith((".yaml", ".yml")):
            raise OperatorError(f"cannot read the argument {file!r}; expected a config file (.yaml) or --key value")
    return given[0] if given else None


def is_server_setting(override: ConfigOverride) -> bool:
    """Return whether the key is one of a server's settings: `agent.responses_api_agents.game_agent.max_steps`."""
    return override.key.count(".") > 1 and override.key.split(".")[1] in (*FAMILIES, *ALIASES)


def check_key(override: ConfigOverride, known: Sequence[str], below: Mapping[str, Collection[str]]) -> None:
    """Raise OperatorError if the key is neither `known` nor a server's setting.

    `below`: key -> keys of its mapping, which are suggested if one is given without the first key.
    """
    if override.top in known or is_server_setting(override):
        return
    nested = {name: f"{parent}.{name}" for parent, names in below.items() for name in names}
    raise OperatorError(unknown_option(override, known, nested))

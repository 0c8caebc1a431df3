"""Settings of a NeMo Gym server, and how it is started."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.nemo_gym.folders import root_of_environment
from rollyard.services.config.nemo_gym.interpreters import belonging_to, chosen
from rollyard.services.config.overrides import Override
from rollyard.services.config.run_config import ForeignProgram, ServerSpec
from rollyard.services.http.access.hosts import is_loopback
from rollyard.services.server.settings import ServerSettings, parse_settings

LAUNCH_KEYS = ("python", "venv", "install")
"""Settings that choose the interpreter. In an entry they apply to one server, at the top level to all of NeMo Gym's."""
_MODEL_CONFIG = ConfigDict(extra="allow", hide_input_in_errors=True)


class LaunchSettings(ServerSettings):
    """The settings that choose the interpreter of a NeMo Gym server."""

    python: str | None = None
    """Path of the interpreter in which NeMo Gym and the server's requirements are installed."""
    venv: str | None = None
    """Folder of a virtual environment, instead of `python`."""
    install: Literal["uv"] | None = None
    """`uv`: install the server's own requirements into an environment of its own before it starts."""


class ForeignSettings(LaunchSettings):
    """Settings of a NeMo Gym server. Those that are not listed here are passed on to its program."""

    model_config = _MODEL_CONFIG
    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {*LAUNCH_KEYS, "num_workers", "license"}

    replicas: Literal[1] = Field(default=1)
    """Always 1, because the other servers of NeMo Gym know a single address."""


def foreign_server(name: str, family: str, implementation: str, raw: Json, folder: Path, tree: Json) -> ServerSpec:
    """Return the server whose program is in `folder`. `tree`: the resolved config.

    Raises OperatorError if its settings are invalid, or if it is unknown in which interpreter it runs.
    """
    owner = f"{name} (NeMo Gym's {family}/{implementation})"
    _check_spelling(owner, raw)
    settings = parse_settings(ForeignSettings, {"host": tree.get("default_host") or "127.0.0.1", **_given(raw)}, owner)
    if not is_loopback(settings.host):
        raise OperatorError(
            f"{name}.host is {settings.host!r}, but NeMo Gym's servers check no token, so that other hosts could use "
            "this one: drop host, or start the server yourself and name its url"
        )
    root = folder.parent.parent
    everywhere = parse_settings(LaunchSettings, {key: tree[key] for key in LAUNCH_KEYS if key in tree}, "the config")
    install = (settings.install or everywhere.install) is not None
    python = chosen(settings, name) or chosen(everywhere, "the config") or belonging_to(folder, root)
    if python is None and not install:
        raise OperatorError(
            f"{name}: {folder} is a server of NeMo Gym, which runs in an interpreter of its own, and none was found: "
            "set python: /path/to/python or venv: /path/to/venv (in its entry, or for all with --venv ...), or let uv "
            "install its requirements with install: uv"
        )
    return ServerSpec(
        name, family, implementation, folder, settings, raw, False, program=ForeignProgram(root, python, install)
    )


def with_chosen_environment(roots: Sequence[Path], overrides: Sequence[Override]) -> list[Path]:
    """Return the search path, extended by the environment of `--python` or `--venv`, in which NeMo Gym is installed."""
    given = {override.key: override.value for override in overrides if override.key in ("python", "venv")}
    interpreter = chosen(parse_settings(LaunchSettings, given, "the command line"), "the command line")
    root = root_of_environment(interpreter) if interpreter is not None else None
    return [*roots, *([root] if root is not None and root not in roots else [])]


def asks_for_foreign(raw: Json) -> bool:
    """Return whether an entry asks for NeMo Gym's program, even if Rollyard has a server of the same name."""
    return any(raw.get(key) is not None for key in LAUNCH_KEYS)


def _given(raw: Json) -> dict[str, Any]:
    """Return the settings without nulls in place of defaults: NeMo Gym treats `port: null` as unset."""
    known = ForeignSettings.model_fields
    return {key: value for key, value in raw.items() if value is not None or key not in known}


def _check_spelling(owner: str, raw: Json) -> None:
    """Raise OperatorError for a misspelt name of one of Rollyard's own settings, which would have no effect."""
    own = ("python", "install", "start_timeout_s")  # not venv: an `env` of the server's own resembles it
    for key in raw:
        near = difflib.get_close_matches(key, own, n=1, cutoff=0.8)
        if near and key not in own:
            raise OperatorError(f"{owner}: unknown option {key!r}, did you mean {near[0]!r}?")

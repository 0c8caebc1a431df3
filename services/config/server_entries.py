"""ServerEntries: parses the entries of the resolved config, one per server, into specs, and checks their references."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import BaseModel

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.types import Json, ServerRef
from rollyard.services.config import nemo_gym
from rollyard.services.config.plugins import FAMILIES, FAMILY_ALIASES, find_folder, find_folders, load_server
from rollyard.services.config.run_config import ServerSpec, servers_named
from rollyard.services.config.venv import needs_isolation
from rollyard.services.server.settings import ServerSettings, parse_settings

_NO_FOLDER = Path()
_ALL_ADDRESSES = ("0.0.0.0", "::")
_HOST = re.compile(r"[\w.:%-]+")


class ExternalSettings(ServerSettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {"url"}

    url: str | None = None
    """Base URL of the server, such as http://10.0.0.5:8080; instead of host and port."""
    resources_server: Json | None = None
    """The environment of an agent, as in its own config. It has no effect here: the agent itself knows it."""
    model_server: Json | None = None
    """The same for its model server."""


def is_external(raw: Json, *, has_own_folder: bool) -> bool:
    """Return whether an entry names a server that runs elsewhere.

    That is the case if it has `url`, or `host` and `port`, but no entrypoint. With an entrypoint, or a host that stands
    for all addresses, they are the address on which Rollyard's server listens.
    """
    if raw.get("entrypoint") is not None:
        return False
    if not has_own_folder:
        return "url" in raw or "port" in raw
    return "url" in raw or ("port" in raw and "host" in raw and raw["host"] not in _ALL_ADDRESSES)


def external_server(name: str, family: str, implementation: str, raw: Json) -> ServerSpec:
    """Return the server that the entry names. Raises OperatorError if the entry contradicts itself."""
    found = " and ".join(key for key in ("url", "host", "port") if raw.get(key) is not None)
    settings = parse_settings(ExternalSettings, {key: raw[key] for key in raw if raw[key] is not None}, name)
    if settings.url is not None:
        if settings.model_fields_set & {"host", "port"}:
            raise OperatorError(f"{name} has {found}; an external server has either url, or host and port")
        url = _checked_url(name, settings.url)
    elif settings.model_fields_set >= {"host", "port"} and settings.port:
        name_or_address = settings.host.removeprefix("[").removesuffix("]")
        if not _HOST.fullmatch(name_or_address):
            raise OperatorError(f"{name}.host is {settings.host!r}; expected a host name or an address")
        host = f"[{name_or_address}]" if ":" in name_or_address else name_or_address
        url = _checked_url(name, f"http://{host}:{settings.port}")
    else:
        raise OperatorError(
            f"{name} has {found or 'no address'}, and no folder {family}/{implementation}: an external server needs "
            "url, or both host and port"
        )
    if settings.replicas != 1:
        raise OperatorError(f"{name}: replicas is {settings.replicas}, but an external server has one address")
    return ServerSpec(name, family, implementation, _NO_FOLDER, settings, raw, False, external_url=url)


def _checked_url(name: str, url: str) -> str:
    """Return the URL without a trailing slash. Raises OperatorError if it is not the base URL of a server."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        valid = valid and url.isprintable() and " " not in url
    except ValueError:
        valid = False
    if not valid:
        raise OperatorError(f"{name}.url is {url!r}; expected a URL such as http://127.0.0.1:8080")
    if parts.username is not None or parts.password is not None:
        raise OperatorError(f"{name}.url contains credentials, which would be visible in logs; drop them")
    if "?" in url or "#" in url:
        raise OperatorError(f"{name}.url is {url!r}; expected a base URL, without ? and #")
    return url.rstrip("/")


class ServerEntries:
    def __init__(self, tree: Json, roots: Sequence[Path]) -> None:
        """`tree`: the resolved config, in which an entry is replaced if another server takes its place."""
        self._tree = tree
        self._roots = roots
        self.notes: list[str] = []
        """What an operator should know about how entries were read."""

    def servers(self) -> tuple[ServerSpec, ...]:
        """Return the servers. Raises OperatorError for the first invalid entry."""
        found = []
        capturing = nemo_gym.capturing_agents(self._tree)
        for name, key, implementation, raw in list(self._entries()):
            spec = self._server(name, FAMILY_ALIASES.get(key, key), implementation, raw)
            if (spec.implementation, spec.raw) != (implementation, raw):
                self._tree[name] = {key: {spec.implementation: spec.raw}}
            found.append(spec)
        self._check_token_capture(capturing, {spec.name: spec for spec in found})
        return tuple(found)

    def _check_token_capture(self, agents: Sequence[str], specs: Mapping[str, ServerSpec]) -> None:
        """Raise OperatorError if the rollouts of an agent must have tokens, and its model server records none."""
        for name in agents:
            models = [model for key, model, _ in _references(specs[name]) if key == "model_server" and model in specs]
            for model in models:
                spec = specs[model]
                records = getattr(spec.settings, "return_token_id_information", False)
                # The settings of a server with its own environment are only checked there.
                if spec.external_url is None and not (records or spec.raw.get("return_token_id_information")):
                    raise OperatorError(
                        f"{nemo_gym.TOKEN_CAPTURE} is enabled for {name}, but its model server {model} records no "
                        f"tokens: set return_token_id_information: true in the entry of {model}, or "
                        f"{nemo_gym.TOKEN_CAPTURE}.enabled to false"
                    )
            if specs[name].program is not None or specs[name].external_url is not None:
                self.notes.append(
                    f"{name}: {nemo_gym.TOKEN_CAPTURE} is enabled, but only NeMo Gym's collector rebuilds the rollouts "
                    "of its agents; here they have the tokens that the agent returns itself"
                )

    def _entries(self) -> Iterator[tuple[str, str, str, Json]]:
        """Yield name, family as written, implementation and settings of each entry."""
        for name, node in self._tree.items():
            families = (
                [key for key in node if FAMILY_ALIASES.get(key, key) in FAMILIES] if isinstance(node, dict) else []
            )
            if not families:
                self._check_environment_servers(str(name), node)
                if hint := _family_hint(node):
                    raise OperatorError(f"{name} has no server family; found {', '.join(map(str, node))}{hint}")
                continue
            if len(families) > 1:
                raise OperatorError(f"{name} contains {' and '.join(families)}; a server belongs to one family")
            (key,) = families
            if siblings := [other for other in node if other != key]:
                example = f"{name}.{key}.{next(iter(node[key] or {'...': None}), '...')}"
                raise OperatorError(
                    f"{name} has {', '.join(map(str, siblings))} next to {key}; settings belong under {example}"
                )
            implementations = node[key]
            if not isinstance(implementations, dict) or len(implementations) != 1:
                raise OperatorError(f"{name}.{key} must contain exactly one implementation (the name of a folder)")
            ((implementation, raw),) = implementations.items()
            if not isinstance(raw, dict | None):
                raise OperatorError(f"{name}.{key}.{implementation} is {raw!r}; expected a mapping of settings")
            yield name, key, str(implementation), raw or {}

    def _check_environment_servers(self, name: str, node: Any) -> None:
        """Raise OperatorError for an environment server of NeMo Gym whose work no agent of Rollyard does."""
        below = node.get(nemo_gym.ENVIRONMENT_SERVERS) if isinstance(node, dict) else None
        for implementation, raw in below.items() if isinstance(below, dict) else ():
            agent = nemo_gym.fronted_agent(raw) if isinstance(raw, dict) else ""
            if implementation not in nemo_gym.PLAYED_BY_AGENT:
                raise OperatorError(
                    f"{name}: Rollyard has no environment server {implementation!r}, and no agent that does its work. "
                    "Start it with NeMo Gym and collect from its head (--head HOST:PORT), or leave it out with "
                    f"'~{name}'"
                )
            if agent not in self._tree:
                raise OperatorError(
                    f"{name}.agent_server refers to {agent!r}, which is not a server in this run"
                    f"{did_you_mean(agent, map(str, self._tree))}; add it, or leave {name} out with '~{name}'"
                )
            if implementation != "legacy_agent":
                self.notes.append(
                    f"{name}: {agent} does the work of NeMo Gym's {implementation} itself: it opens the session, plays "
                    "and asks for the verdict"
                )

    def _server(self, name: str, family: str, implementation: str, raw: Json) -> ServerSpec:
        entrypoint = str(raw.get("entrypoint") or "app.py")
        if any(raw.get(key) is not None for key in nemo_gym.LAUNCH_KEYS):
            return self._foreign(name, family, implementation, raw, entrypoint)
        folders = find_folders(family, implementation, self._roots)
        foreign = [folder for folder in folders if nemo_gym.is_nemo_gym_server(folder, entrypoint)]
        own = next((folder for folder in folders if folder not in foreign), None)
        if is_external(raw, has_own_folder=own is not None) and not (own and _has_setting(family, own, "url")):
            return self._external(name, family, implementation, raw, own)
        if own is not None:
            self._note_choice(name, family, implementation, own, foreign)
            return self._own(name, family, implementation, own, raw, also_theirs=bool(foreign))
        if family == "agents" and (chosen := nemo_gym.REPLACEMENTS.get(implementation)) is not None:
            settings, dropped = nemo_gym.replaced_settings(raw, chosen)
            without = f"; not used: {', '.join(dropped)}" if dropped else ""
            self.notes.append(
                f"{name}: {chosen.implementation} plays for NeMo Gym's {implementation} ({chosen.why}){without}"
            )
            found = find_folders(family, chosen.implementation, self._roots)
            folder = next(folder for folder in found if not nemo_gym.is_nemo_gym_server(folder, "app.py"))
            return self._own(name, family, chosen.implementation, folder, settings)
        if foreign and family == "agents":
            raise OperatorError(
                f"{name}: Rollyard has no agent {implementation!r}, and none that makes the same calls. To run NeMo "
                f"Gym's own, set python: or venv: in its entry (++{name}.responses_api_agents.{implementation}"
                f".venv=/path/to/venv); or leave the agent out with '~{name}'"
            )
        if foreign:
            return nemo_gym.foreign_server(name, family, implementation, raw, foreign[0], self._tree)
        try:
            folder = find_folder(family, implementation, self._roots)
        except OperatorError as error:
            elsewhere = "a server that runs elsewhere has url, or host and port, in its entry"
            raise OperatorError(f"{name}: {error}; {elsewhere}") from error
        return self._own(name, family, implementation, folder, raw)

    def _external(self, name: str, family: str, implementation: str, raw: Json, own: Path | None) -> ServerSpec:
        hint = f"to start Rollyard's {implementation} on that address, add entrypoint: app.py"
        confusable = own is not None and "url" not in raw
        try:
            spec = external_server(name, family, implementation, raw)
        except OperatorError as error:
            if not confusable:
                raise
            raise OperatorError(f"{error}; {hint}") from error
        if confusable:
            self.notes.append(f"{name}: {spec.external_url} is a server that runs elsewhere; {hint}")
        return spec

    def _foreign(self, name: str, family: str, implementation: str, raw: Json, entrypoint: str) -> ServerSpec:
        folders = find_folders(family, implementation, self._roots)
        folder = next((folder for folder in folders if nemo_gym.is_nemo_gym_server(folder, entrypoint)), None)
        if folder is None:
            searched = ", ".join(map(str, self._roots))
            raise OperatorError(
                f"{name} has python, venv or install, which are for servers of NeMo Gym, but no folder "
                f"{family}/{implementation} has such a server (looked in {searched}); add the folder above "
                f"{family} with --server-roots [...]"
            )
        return nemo_gym.foreign_server(name, family, implementation, raw, folder, self._tree)

    def _note_choice(self, name: str, family: str, implementation: str, own: Path, foreign: Sequence[Path]) -> None:
        installed = (INSTALLED / family / implementation).resolve()
        if foreign:
            self.notes.append(
                f"{name}: Rollyard's {family}/{implementation} is used; to run NeMo Gym's in {foreign[0]}, set python: "
                "or venv: in its entry"
            )
        elif own != installed and (installed / "app.py").is_file():
            self.notes.append(f"{name}: {own} is used instead of Rollyard's own {family}/{implementation}")

    def _own(
        self, name: str, family: str, implementation: str, folder: Path, raw: Json, *, also_theirs: bool = False
    ) -> ServerSpec:
        """`also_theirs`: NeMo Gym has a server of that name, too."""
        if family == "agents":
            raw = {key: value for key, value in raw.items() if key != nemo_gym.TOKEN_CAPTURE}
        if family == "responses_api_models":
            raw, without_effect = nemo_gym.translated(implementation, raw)
            if without_effect:
                self.notes.append(f"{name}: {', '.join(without_effect)} has no effect on Rollyard's {implementation}")
        isolated = needs_isolation(folder)
        if isolated:
            base = {key: value for key, value in raw.items() if key in ServerSettings.model_fields}
            settings = parse_settings(ServerSettings, base, name)
        else:
            kind = load_server(family, folder, str(raw.get("entrypoint", "app.py")))
            try:
                settings = parse_settings(kind.Settings, raw, name)
            except OperatorError as error:
                hint = "; NeMo Gym's own server runs if python: or venv: is set in its entry" * also_theirs
                raise OperatorError(f"{error}{hint}") from error
        return ServerSpec(name, family, implementation, folder, settings, raw, isolated)


def _has_setting(family: str, folder: Path, setting: str) -> bool:
    return not needs_isolation(folder) and setting in load_server(family, folder, "app.py").Settings.model_fields


def _family_hint(node: Any) -> str:
    """Return a hint if a mapping looks like an entry whose family is misspelt; empty for any other mapping.

    An entry has one key, under which there is one implementation.
    """
    if not isinstance(node, dict) or len(node) != 1:
        return ""
    ((key, below),) = node.items()
    if not isinstance(below, dict) or len(below) != 1 or not isinstance(next(iter(below.values())), dict | None):
        return ""
    return did_you_mean(str(key), (*FAMILIES, *FAMILY_ALIASES))


_USUAL_FAMILY = {"resources_server": "resources_servers", "model_server": "responses_api_models"}


def servers_of(spec: ServerSpec, servers: Container[str]) -> list[str]:
    """Return the names of the servers that a server's settings refer to, in any notation that the settings accept."""
    parsed = [name for _, name, _ in _references(spec) if name in servers]
    return [*dict.fromkeys(servers_named(spec.raw, servers) + parsed)]


def check_references(servers: Sequence[ServerSpec]) -> None:
    """Raise OperatorError if a server refers to one that the run does not have, or that belongs to the wrong family."""
    families = {spec.name: spec.family for spec in servers}
    for spec in servers:
        for key, name, kind in _references(spec):
            if name not in families:
                known = ", ".join(sorted(families))
                hint = did_you_mean(name, families)
                reference = f"{spec.name}.{key} refers to {name!r}"
                raise OperatorError(f"{reference}, which is not a server in this run{hint} (available: {known})")
            expected = FAMILY_ALIASES.get(kind, kind) or _USUAL_FAMILY.get(key.rpartition(".")[2])
            if expected is not None and families[name] != expected:
                raise OperatorError(
                    f"{spec.name}.{key} refers to {name!r}, which belongs to {families[name]}; expected {expected}"
                )


def _references(spec: ServerSpec) -> Iterator[tuple[str, str, str]]:
    """Yield the setting, server name and type of each reference.

    For an isolated server and for a foreign program, only the YAML is available.
    """
    yield from _references_in(spec.settings)
    for key, value in spec.raw.items() if spec.isolated or spec.program else ():
        if isinstance(value, dict) and set(value) == {"type", "name"} and value["name"] is not None:
            yield key, str(value["name"]), str(value["type"])


def _references_in(settings: BaseModel, path: str = "") -> Iterator[tuple[str, str, str]]:
    for key, value in settings:
        if isinstance(value, ServerRef):
            yield path + key, value.name, value.type
        elif isinstance(value, BaseModel):
            yield from _references_in(value, f"{path}{key}.")

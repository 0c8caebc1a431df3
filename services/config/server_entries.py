"""ServerEntries: parses the entries of the resolved config, one per server, into specs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.io.search_path import INSTALLED
from rollyard.records.types import Json
from rollyard.services.config.external import external_server, is_external
from rollyard.services.config.nemo_gym import agents, model_servers
from rollyard.services.config.nemo_gym.folders import is_nemo_gym_server, nemo_gym_folder
from rollyard.services.config.nemo_gym.foreign import asks_for_foreign, foreign_server
from rollyard.services.config.plugins import load_server
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.config.server_folders import ALIASES, FAMILIES, find_folder, find_folders
from rollyard.services.config.venv import needs_isolation
from rollyard.services.server.settings import ServerSettings, parse_settings


class ServerEntries:
    """The server entries of a config."""

    def __init__(self, tree: Json, roots: Sequence[Path]) -> None:
        """`tree`: the resolved config, in which an entry is replaced if another server takes its place."""
        self._tree = tree
        self._roots = roots
        self.notes: list[str] = []
        """What an operator should know about how entries were read."""

    def servers(self) -> tuple[ServerSpec, ...]:
        """Return the servers. Raises OperatorError for the first invalid entry."""
        found = []
        for name, key, implementation, raw in list(self._entries()):
            spec = self._server(name, ALIASES.get(key, key), implementation, raw)
            if (spec.implementation, spec.raw) != (implementation, raw):
                self._tree[name] = {key: {spec.implementation: spec.raw}}
            found.append(spec)
        return tuple(found)

    def _entries(self) -> Iterator[tuple[str, str, str, Json]]:
        """Yield name, family as written, implementation and settings of each entry."""
        for name, node in self._tree.items():
            families = [key for key in node if ALIASES.get(key, key) in FAMILIES] if isinstance(node, dict) else []
            if not families:
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

    def _server(self, name: str, family: str, implementation: str, raw: Json) -> ServerSpec:
        entrypoint = str(raw.get("entrypoint") or "app.py")
        if asks_for_foreign(raw):
            return self._foreign(name, family, implementation, raw, entrypoint)
        folders = find_folders(family, implementation, self._roots)
        foreign = [folder for folder in folders if is_nemo_gym_server(folder, entrypoint)]
        own = next((folder for folder in folders if folder not in foreign), None)
        if is_external(raw, has_own_folder=own is not None) and not (own and _has_setting(family, own, "url")):
            return self._external(name, family, implementation, raw, own)
        if own is not None:
            self._note_choice(name, family, implementation, own, foreign)
            return self._own(name, family, implementation, own, raw, also_theirs=bool(foreign))
        if family == "agents" and (chosen := agents.replacement(implementation)) is not None:
            settings, dropped = agents.replaced_settings(raw, chosen)
            without = f"; not used: {', '.join(dropped)}" if dropped else ""
            self.notes.append(
                f"{name}: {chosen.implementation} plays for NeMo Gym's {implementation} ({chosen.why}){without}"
            )
            found = find_folders(family, chosen.implementation, self._roots)
            folder = next(folder for folder in found if not is_nemo_gym_server(folder, "app.py"))
            return self._own(name, family, chosen.implementation, folder, settings)
        if foreign and family == "agents":
            raise OperatorError(agents.refusal(name, implementation))
        if foreign:
            return foreign_server(name, family, implementation, raw, foreign[0], self._tree)
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
        folder = nemo_gym_folder(family, implementation, entrypoint, self._roots)
        if folder is None:
            searched = ", ".join(map(str, self._roots))
            raise OperatorError(
                f"{name} has python, venv or install, which are for servers of NeMo Gym, but no folder "
                f"{family}/{implementation} has such a server (looked in {searched}); add the folder above "
                f"{family} with --server-roots [...]"
            )
        return foreign_server(name, family, implementation, raw, folder, self._tree)

    def _note_choice(self, name: str, family: str, implementation: str, own: Path, foreign: Sequence[Path]) -> None:
        """Note which server is used if several folders have one of that name."""
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
        if family == "responses_api_models":
            raw, without_effect = model_servers.translated(implementation, raw)
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
    """Return whether a server of Rollyard has a setting of that name itself."""
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
    return did_you_mean(str(key), (*FAMILIES, *ALIASES))

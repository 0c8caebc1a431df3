"""Reads NeMo Gym's configs: inheritance between entries, server folders, interpreters, settings.

`REPLACEMENTS` says which of our agents plays instead of one of its own.
"""

from __future__ import annotations

import ast
import copy
import difflib
import os
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, Field

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.types import Json
from rollyard.services.config.overrides import ConfigOverride
from rollyard.services.config.plugins import FAMILIES, FAMILY_ALIASES
from rollyard.services.config.run_config import ForeignProgram, ServerSpec
from rollyard.services.http.access import is_loopback
from rollyard.services.server.settings import ServerSettings, parse_settings

# Chooses which of Rollyard's agents plays for one that only NeMo Gym has.


@dataclass(frozen=True)
class Replacement:
    implementation: str
    why: str
    """What both agents do, as a clause."""
    settings: Json = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    """NeMo Gym's name of a setting -> ours."""


_SINGLE_CALL = Replacement(
    "simple_agent", "one model call; tool calls are part of the answer and are not run", {"execute_tools": False}
)
_TOOLS = Replacement(
    "simple_agent", "tool calls until the model answers", renamed={"tool_call_timeout": "tool_timeout_s"}
)
REPLACEMENTS = {
    "gymnasium_agent": Replacement(
        "turn_agent",
        "/reset, then one /step per model message; the reward is the sum of the steps",
        {"sum_steps": True},
    ),
    "non_executing_simple_agent": _SINGLE_CALL,
    "tool_simulation_agent": _SINGLE_CALL,
    "finance_agent": _TOOLS,
    "browsecomp_agent": _TOOLS,
}
_KEPT = frozenset(
    {"entrypoint", "host", "port", "resources_server", "model_server", "datasets", "max_steps", "model_timeout_s"}
    | {"tool_timeout_s", "start_timeout_s", "replicas", "domain", "verified"}
)


def replaced_settings(raw: Json, chosen: Replacement) -> tuple[Json, list[str]]:
    """Return the settings of the agent that plays instead, and the names of those that have no counterpart."""
    renamed = {chosen.renamed.get(key, key): value for key, value in raw.items()}
    kept = {key: value for key, value in renamed.items() if key in _KEPT}
    dropped = [key for key in raw if key != TOKEN_CAPTURE and chosen.renamed.get(key, key) not in kept]
    return {**kept, **chosen.settings}, dropped


# Recognizes server folders of NeMo Gym, and finds the folder in which its other files are.

_NEMO_GYM = re.compile(r"^\s*(?:from|import)\s+nemo_gym\b|\.run_webserver\(", re.MULTILINE)


def is_nemo_gym_server(folder: Path, entrypoint: str) -> bool:
    """Return whether the folder's program is one of NeMo Gym: it uses that package, and defines no `server`."""
    path = folder / entrypoint
    if folder.parent.parent == INSTALLED or not path.is_file():
        return False
    text = path.read_text("utf-8", "replace")
    return bool(_NEMO_GYM.search(text)) and not _assigns_server(text)


def _assigns_server(text: str) -> bool:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return any(
        isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "server" for to in node.targets)
        for node in tree.body
    )


def root_of(file: Path) -> Path | None:
    """Return the nearest folder above `file` that contains a folder of a server family; None if there is none."""
    for parent in file.absolute().parents[1:]:
        if any((parent / name).is_dir() for name in (*FAMILIES, *FAMILY_ALIASES)):
            return parent
    return None


def is_installed(root: Path) -> bool:
    """Return whether `root` is the folder of installed packages, and not that of a checkout."""
    return root.name in ("site-packages", "dist-packages")


def installed_version(root: Path) -> str | None:
    """Return the version of NeMo Gym that is installed in `root`; None for a checkout."""
    found = next(root.glob("nemo_gym-*.dist-info"), None)
    return None if found is None else found.name.removeprefix("nemo_gym-").removesuffix(".dist-info")


def with_roots_of(files: Iterable[Path], roots: Sequence[Path]) -> list[Path]:
    """Return the search path, extended by the folders from which configs come that are outside of it.

    These are searched last, so that they hide no server of the other folders.
    """
    extended = list(roots)
    for file in files:
        found = root_of(file)
        if found is not None and not any(found.resolve() == root.resolve() for root in extended):
            extended.append(found)
    return extended


# Finds the Python in which a server of NeMo Gym runs.


class LaunchSettings(ServerSettings):
    python: str | None = None
    """Path of the interpreter in which NeMo Gym and the server's requirements are installed."""
    venv: str | None = None
    """Folder of a virtual environment, instead of `python`."""
    install: Literal["uv"] | None = None
    """`uv`: install the server's own requirements into an environment of its own before it starts."""


def chosen(choice: LaunchSettings, owner: str) -> Path | None:
    """Return the interpreter that the settings name; None if they name none. Raises OperatorError if it is unusable."""
    if choice.python is not None and choice.venv is not None:
        raise OperatorError(f"{owner} has both python and venv; set one of them")
    if choice.venv is not None:
        folder = Path(choice.venv).expanduser().absolute()
        return _checked(folder / "bin" / "python", f"{owner}.venv is {choice.venv!r}, which has no bin/python")
    if choice.python is not None:
        path = Path(choice.python).expanduser().absolute()
        return _checked(path, f"{owner}.python is {choice.python!r}, which is not a program")
    return None


def belonging_to(folder: Path, root: Path) -> Path | None:
    """Return the interpreter of the environment in which the server's folder is, or which is made for it."""
    candidates = [folder / ".venv", root / ".venv"]
    if is_installed(root):
        candidates.insert(0, root.parents[2])
    return next((found for venv in candidates if _is_program(found := venv / "bin" / "python")), None)


def _checked(path: Path, problem: str) -> Path:
    if not _is_program(path):
        raise OperatorError(f"{problem}; expected the Python in which NeMo Gym is installed")
    return path


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


# Settings of a NeMo Gym server, and how it is started.

LAUNCH_KEYS = ("python", "venv", "install")
"""Settings that choose the interpreter. In an entry they apply to one server, at the top level to all of NeMo Gym's."""
_MODEL_CONFIG = ConfigDict(extra="allow", hide_input_in_errors=True)


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
    # NeMo Gym treats `port: null` as unset.
    given = {key: value for key, value in raw.items() if value is not None or key not in ForeignSettings.model_fields}
    settings = parse_settings(ForeignSettings, {"host": tree.get("default_host") or "127.0.0.1", **given}, owner)
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


def with_chosen_environment(roots: Sequence[Path], overrides: Sequence[ConfigOverride]) -> list[Path]:
    """Return the search path, extended by the environment of `--python` or `--venv`, in which NeMo Gym is installed."""
    given = {override.key: override.value for override in overrides if override.key in ("python", "venv")}
    interpreter = chosen(parse_settings(LaunchSettings, given, "the command line"), "the command line")
    folders = sorted((interpreter.parent.parent / "lib").glob("python*/site-packages")) if interpreter else []
    root = next((packages for packages in folders if (packages / "nemo_gym").is_dir()), None)
    return [*roots, *([root] if root is not None and root not in roots else [])]


def _check_spelling(owner: str, raw: Json) -> None:
    """Raise OperatorError for a misspelt name of one of Rollyard's own settings, which would have no effect."""
    own = ("python", "install", "start_timeout_s")  # not venv: an `env` of the server's own resembles it
    for key in raw:
        near = difflib.get_close_matches(key, own, n=1, cutoff=0.8)
        if near and key not in own:
            raise OperatorError(f"{owner}: unknown option {key!r}, did you mean {near[0]!r}?")


# Applies NeMo Gym's directives that build one part of a merged config from another.

_DIRECTIVES = {"_inherit_from": True, "_copy": False}
"""Key of a directive -> whether the source is removed."""
_REFERENCES = {"${inherit_from:": True, "${copy:": False}
_DELETE = "_delete_key"
MISSING = "???"


def expand(tree: DictConfig) -> DictConfig:
    """Return the config with all directives applied. Raises OperatorError if one refers to nothing."""
    plain = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(plain, dict)
    if not _has_directives(plain):
        return tree
    expanded = _Expansion({str(key): value for key, value in plain.items()}).expand()
    created = OmegaConf.create(expanded)
    assert isinstance(created, DictConfig)
    return created


def missing_values(node: Any, path: str = "") -> list[str]:
    """Return the paths of all values that are `???`, which a user has to set."""
    if isinstance(node, dict):
        return [found for key, value in node.items() for found in missing_values(value, f"{path}.{key}".lstrip("."))]
    if isinstance(node, list):
        return [found for index, value in enumerate(node) for found in missing_values(value, f"{path}[{index}]")]
    return [path] if node == MISSING else []


def _has_directives(node: Any) -> bool:
    if isinstance(node, dict):
        return any(key in _DIRECTIVES or key == _DELETE for key in node) or any(map(_has_directives, node.values()))
    if isinstance(node, list):
        return any(map(_has_directives, node))
    return isinstance(node, str) and node.startswith(tuple(_REFERENCES))


class _Expansion:
    def __init__(self, tree: Json) -> None:
        self._tree = tree
        self._before = copy.deepcopy(tree)
        self._moved: list[list[str]] = []

    def expand(self) -> Json:
        expanded: Json = self._expand(self._tree, "", ())
        for path in self._moved:
            self._remove(expanded, path)
        return expanded

    def _expand(self, node: Any, where: str, open_paths: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [self._expand(item, f"{where}[{index}]", open_paths) for index, item in enumerate(node)]
        if isinstance(node, str):
            return self._expand_reference(node, where, open_paths)
        if not isinstance(node, dict):
            return node
        deleted = [name.strip() for name in str(node.get(_DELETE) or "").split(",") if name.strip()]
        own = {key: value for key, value in node.items() if key not in _DIRECTIVES and key != _DELETE}
        own_keys = {key: value for key, value in own.items() if key not in deleted}
        for key, moves in _DIRECTIVES.items():
            if key in node:
                source = self._source(str(node[key]), where, open_paths, moves=moves)
                own_keys = _merged(source, own_keys) if isinstance(source, dict) else own_keys
                if source == MISSING:
                    return MISSING
        if absent := [name for name in deleted if name not in own_keys and name not in own]:
            raise OperatorError(f"{where} deletes {absent[0]!r} with {_DELETE}, but has no such key")
        return {
            key: self._expand(value, f"{where}.{key}".lstrip("."), open_paths)
            for key, value in own_keys.items()
            if key not in deleted
        }

    def _expand_reference(self, text: str, where: str, open_paths: tuple[str, ...]) -> Any:
        for prefix, moves in _REFERENCES.items():
            if text.startswith(prefix) and text.endswith("}"):
                return self._source(text[len(prefix) : -1], where, open_paths, moves=moves)
        return text

    def _source(self, path: str, where: str, open_paths: tuple[str, ...], *, moves: bool) -> Any:
        """Return the expanded part at `path`; `???` if that part has yet to be set."""
        if path in open_paths:
            raise OperatorError(f"{where} inherits from itself, through {' -> '.join((*open_paths, path))}")
        node: Any = self._before
        for name in path.split("."):
            if node == MISSING:
                return MISSING
            if not isinstance(node, dict) or name not in node:
                hint = did_you_mean(name, map(str, node)) if isinstance(node, dict) else ""
                raise OperatorError(f"{where} inherits from {path!r}, which the configs do not contain{hint}")
            node = node[name]
        if moves:
            self._moved.append(path.split("."))
        return self._expand(copy.deepcopy(node), where, (*open_paths, path))

    @staticmethod
    def _remove(tree: Json, path: list[str]) -> None:
        node: Any = tree
        for name in path[:-1]:
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(path[-1], None)


def _merged(base: Json, over: Json) -> Json:
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else value
    return result


# Training-token capture: NeMo Gym puts the tokens of a rollout's model calls on the items of its output. Rollyard's
# agents and model servers do so themselves.

TOKEN_CAPTURE = "token_id_capture"
"""A block of the config, and the setting of an agent that takes part."""


def capturing_agents(tree: Json) -> list[str]:
    """Return the agents whose rollouts must have tokens. Raises OperatorError if the tokens are to go elsewhere."""
    block = tree.get(TOKEN_CAPTURE)
    if not isinstance(block, dict) or not block.get("enabled"):
        return []
    elsewhere = [key for key in ("sink", "lineage_store", "external_staging") if block.get(key)]
    if elsewhere or block.get("rebuild_response") is False:
        found = f"{elsewhere[0]} is set" if elsewhere else "rebuild_response is false"
        raise OperatorError(
            f"{TOKEN_CAPTURE}.{found}, but Rollyard puts tokens only on the items of each rollout's output: drop it, "
            f"or set {TOKEN_CAPTURE}.enabled to false"
        )
    families = ("agents", "responses_api_agents")
    entries = ((str(name), family, node) for name, node in tree.items() for family in families)
    return [
        name
        for name, family, node in entries
        for _, raw in _implementations(node, family)
        if block.get("all_agents") or raw.get(TOKEN_CAPTURE)
    ]


# Environment servers, through which NeMo Gym 0.7 collects. An agent of Rollyard is its own.

ENVIRONMENT_SERVERS = "environment_servers"
PLAYED_BY_AGENT = frozenset({"legacy_agent", "single_agent_turn", "single_agent_turn_legacy"})
"""The implementations whose work an agent of Rollyard does: it opens the session, plays, and asks for the verdict."""


def with_environment_servers(tree: Json) -> Json:
    """Return the config, in NeMo Gym's format, with an environment server at the address of each agent that has one."""
    agents = {
        str(name): (implementation, raw)
        for name, node in tree.items()
        for implementation, raw in _implementations(node, "responses_api_agents")
        if raw.get("host") and raw.get("port")
    }
    result, fronted = dict(tree), set[str]()
    for name, node in tree.items():
        for implementation, raw in _implementations(node, ENVIRONMENT_SERVERS):
            agent = fronted_agent(raw)
            if agent in agents:
                fronted.add(agent)
                result[name] = {ENVIRONMENT_SERVERS: {implementation: {**raw, **_address(agents[agent][1])}}}
    for agent, (implementation, raw) in agents.items():
        if agent not in fronted:
            relay = {"entrypoint": "app.py", "agent_server": {"type": "responses_api_agents", "name": agent}}
            name = _environment_server_name(agent, implementation, result)
            result[name] = {ENVIRONMENT_SERVERS: {"legacy_agent": {**relay, **_address(raw)}}}
    return result


def fronted_agent(raw: Json) -> str:
    """Return the name of the agent that an environment server calls; empty if it names none, or several."""
    reference = raw.get("agent_server")
    return str(reference.get("name") or "") if isinstance(reference, dict) else ""


def _implementations(node: Any, family: str) -> list[tuple[str, Json]]:
    below = node.get(family) if isinstance(node, dict) else None
    return [(str(key), raw) for key, raw in below.items() if isinstance(raw, dict)] if isinstance(below, dict) else []


def _address(raw: Json) -> Json:
    return {key: raw[key] for key in ("host", "port")}


def _environment_server_name(agent: str, implementation: str, taken: Container[str]) -> str:
    """Return the name that NeMo Gym gives the environment server of an agent, or a longer one if that is taken."""
    stem = agent.removesuffix(implementation).rstrip("_")
    stem = (agent.removesuffix("_agent").rstrip("_") if stem == agent else stem) or implementation
    name = f"{stem}_environment_server"
    return name if name not in taken else f"{agent}_environment_server"


# Translates settings of NeMo Gym's model servers to the names that Rollyard's servers use.

_RENAMED = {"openai_default_headers": "default_headers", "max_http_attempts": "max_attempts"}
_KEYS = frozenset({"api_key", "openai_api_key"})
"""Null in many configs of judges, whose key comes from an environment variable that need not be set."""
_WITHOUT_EFFECT = frozenset(
    {"debug", "num_concurrent_requests", "max_concurrent_requests", "uses_interleaved_reasoning", "num_workers"}
    | {"endpoint_stale_grace_s", "endpoint_connection_retries", "endpoint_check_interval_s"}
    | {"token_id_capture_non_generating_requests"}
)
"""Settings that change nothing for callers: log level, and limits that Rollyard's servers do not have."""
_OFF = frozenset(
    {"endpoint_file", "audio_root", "tokenizer", "use_completions_api", "supply_prefix_token_ids"}
    | {"forward_session_id_as_conversation_id", "drop_input_reasoning_items", "render_chat_template"}
)
"""Features that Rollyard's servers do not have, but which a config may state to be off: null or false."""
_SERVE_SETTINGS = frozenset(
    {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "gpu_memory_utilization", "max_model_len"}
    | {"dtype", "tool_call_parser", "reasoning_parser", "logprobs_mode"}
)
"""Flags of `vllm serve` that local_vllm_model has as settings. The others go to `extra_flags`."""


def translated(implementation: str, raw: Json) -> tuple[Json, list[str]]:
    """Return the settings under Rollyard's names, and the names of those that have no effect."""
    without_effect = sorted(_WITHOUT_EFFECT & raw.keys())
    settings = {
        _RENAMED.get(key, key): value
        for key, value in raw.items()
        if key not in _WITHOUT_EFFECT and not (key in _KEYS and value is None) and not (key in _OFF and not value)
    }
    if implementation == "local_vllm_model":
        settings = _with_serve_arguments(settings)
    return settings, without_effect


def _with_serve_arguments(raw: Json) -> Json:
    settings = {
        key: value for key, value in raw.items() if key not in ("hf_home", "vllm_serve_env_vars", "vllm_serve_kwargs")
    }
    environment = {
        **_mapping(raw, "vllm_serve_env_vars"),
        **({"HF_HOME": raw["hf_home"]} if raw.get("hf_home") else {}),
        **(settings.get("environment") or {}),
    }
    if environment:
        settings["environment"] = {key: str(value) for key, value in environment.items()}
    flags: dict[str, Any] = {}
    for key, value in _mapping(raw, "vllm_serve_kwargs").items():
        if value is None:
            continue
        (settings if key in _SERVE_SETTINGS else flags).setdefault(key, value)
    if flags:
        own = settings.get("extra_flags") or {}
        if not isinstance(own, dict):
            raise OperatorError(
                "vllm_serve_kwargs and a list of extra_flags cannot be combined; write both as mappings"
            )
        settings["extra_flags"] = {**flags, **own}
    return settings


def _mapping(raw: Json, key: str) -> Json:
    if isinstance(value := raw.get(key) or {}, dict):
        return value
    raise OperatorError(f"{key} is {value!r}; expected a mapping, {{key: value}}")

"""Loads a task folder and refuses links that lead outside, and everything else that cannot be played safely."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollyard.records.errors import OperatorError
from rollyard.resources_servers.base import EnvironmentSettings
from rollyard.resources_servers.harbor_task import dockerfile
from rollyard.services.sandbox.inside.private_tree import SYSTEM_PATHS
from rollyard.services.sandbox.box import BoxLimits, is_visible

EXAMPLES = Path(__file__).parent / "examples"


class HarborSettings(EnvironmentSettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = EnvironmentSettings.NOT_IDENTITY | {"slots"}

    tasks: Path | None = None
    """A folder of task folders, or one task folder; null: the example tasks of this environment."""
    accept_images: tuple[str, ...] = ()
    """Patterns of base images that this host's own programs replace, such as `ubuntu:*`. Without a pattern, an image is
    accepted if it names this host's distribution and version."""
    host_paths: tuple[Path, ...] = ()
    """Folders of this host that are visible read-only in the boxes, such as an interpreter. A folder `bin` in one of
    them comes first in PATH."""
    limits: BoxLimits = BoxLimits()
    """Limits of each box. A smaller memory_mb or storage_mb in task.toml takes precedence."""
    command_timeout_s: float = Field(default=60.0, gt=0)
    """Time limit of one command, unless the model asks for another. Must be less than the agent's tool_timeout_s."""
    max_command_s: float = Field(default=600.0, gt=0)
    """Longest time limit that the model may ask for."""
    episode_s: float = Field(default=1800.0, gt=0)
    """Time that all commands of an episode may take if task.toml has no agent.timeout_sec."""
    max_test_s: float = Field(default=900.0, gt=0)
    """Longest time limit of the tests; verifier.timeout_sec in task.toml can only shorten it."""
    max_build_s: float = Field(default=300.0, gt=0)
    """Longest time limit of the Dockerfile's RUN instructions; environment.build_timeout_sec can only shorten it."""
    keep_processes: bool = False
    """Let processes that the model started in the background run during the tests, as Harbor does. They could then read
    the tests and forge the reward; set it for tasks whose tests call a server that the model starts."""
    reward_key: str | None = None
    """Key of the reward in reward.json; null: `reward`, or the mean of all values."""
    slots: int | None = Field(default=None, ge=1)
    """Maximum number of commands that run at the same time; null: two per CPU. Waiting does not count as run time."""


CONFIG, INSTRUCTION, ENVIRONMENT, TESTS, SOLUTION = "task.toml", "instruction.md", "environment", "tests", "solution"
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml", "singularity-compose.yaml")
MAX_BYTES = 256 << 20
"""Maximum size of a task folder, which is read into memory."""


@dataclass(frozen=True)
class TaskFolder:
    name: str
    path: Path
    instruction: str
    config: TaskConfig
    build: dockerfile.Build
    digest: str
    """Hash of all files, to notice rows that belong to another version of the task."""


def is_task(path: Path) -> bool:
    return os.path.lexists(path / CONFIG)


def load_folder(path: Path, host: dockerfile.HostImage, accepted: Sequence[str]) -> TaskFolder:
    """Load a task folder. Raises UnsupportedTask with the file, line or key that cannot be provided."""
    try:
        digest = _check_tree(path)
        config = read_config(_text(path / CONFIG))
        instruction = _text(path / INSTRUCTION).strip()
        build = _build(path, config, host, accepted)
        tests = _text(path / TESTS / "test.sh")
    except OSError as error:
        raise dockerfile.UnsupportedTask(f"{error.filename or path} cannot be read: {error.strerror}") from error
    if not instruction:
        raise dockerfile.UnsupportedTask(f"{INSTRUCTION} is empty")
    if found := dockerfile.network_command(tests):
        reason = f"{TESTS}/test.sh line {found[0]}: `{found[1]}` needs a network, which a box does not have"
        raise dockerfile.UnsupportedTask(reason)
    return TaskFolder(path.name, path, instruction, config, build, digest)


def _build(path: Path, config: TaskConfig, host: dockerfile.HostImage, accepted: Sequence[str]) -> dockerfile.Build:
    folder = path / ENVIRONMENT
    for name in _COMPOSE:
        if (folder / name).exists():
            raise dockerfile.UnsupportedTask(f"{ENVIRONMENT}/{name}: several containers are not supported")
    if (folder / ".dockerignore").exists():
        raise dockerfile.UnsupportedTask(
            f"{ENVIRONMENT}/.dockerignore is not supported: remove the files that it excludes"
        )
    file = folder / "Dockerfile"
    if not file.exists():
        raise dockerfile.UnsupportedTask(f"{ENVIRONMENT}/Dockerfile is missing; prebuilt images cannot be started")
    build = dockerfile.read_build(_text(file), host, accepted)
    build.env |= config.environment.env
    if workdir := config.environment.workdir:
        build.workdir = _workdir(workdir)
        build.folders.append(build.workdir)
    return build


def _workdir(path: str) -> str:
    if not path.startswith("/"):
        raise dockerfile.UnsupportedTask(f"{CONFIG}: environment.workdir = {path!r}: expected an absolute path")
    found = dockerfile.absolute(path)
    if dockerfile.is_read_only(found):
        raise dockerfile.UnsupportedTask(f"{CONFIG}: environment.workdir = {path!r}: {found} is read-only in a box")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        raise dockerfile.UnsupportedTask(f"{path.name} is missing in {path.parent.name}") from error
    except UnicodeDecodeError as error:
        raise dockerfile.UnsupportedTask(f"{path.name} is not UTF-8 text: {error}") from error


def _check_tree(path: Path) -> str:
    """Return a hash of the task's files. Raises UnsupportedTask for a link that leads outside its part of the folder.

    A link from environment/ to tests/ would show the tests to the model, so it is refused as well.
    """
    found, size = hashlib.sha256(), 0
    for part in (CONFIG, INSTRUCTION, ENVIRONMENT, TESTS, SOLUTION):
        if not os.path.lexists(path / part):
            continue
        if (path / part).is_symlink():
            raise dockerfile.UnsupportedTask(
                f"{part} is a link; expected the {'file' if '.' in part else 'folder'} itself"
            )
        for name, kind, content in _entries(path, part):
            size += len(content)
            if size > MAX_BYTES:
                raise dockerfile.UnsupportedTask(f"the files of the task are larger than {MAX_BYTES >> 20} MiB")
            for piece in (name.encode(errors="surrogateescape"), kind.encode(), content):
                found.update(len(piece).to_bytes(8, "big") + piece)
    return found.hexdigest()


def _entries(path: Path, part: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the kind and the content of every file and link of a part, sorted by name."""
    root = (path / part).resolve()
    for file in sorted([path / part, *(path / part).rglob("*")]):
        name, mode = file.relative_to(path).as_posix(), file.lstat().st_mode
        if stat.S_ISLNK(mode):
            target = file.readlink()
            # realpath, because resolve() raises RuntimeError for links that form a loop (before Python 3.13)
            if target.is_absolute() or not Path(os.path.realpath(file)).is_relative_to(root):
                raise dockerfile.UnsupportedTask(f"{name} is a link to {target}, outside {part}/")
            yield name, "link", os.fsencode(target)
        elif stat.S_ISREG(mode):
            if file.stat().st_size > MAX_BYTES:
                raise dockerfile.UnsupportedTask(f"{name} is larger than {MAX_BYTES >> 20} MiB")
            yield name, f"file {mode & 0o111:o}", file.read_bytes()
        elif not stat.S_ISDIR(mode):
            raise dockerfile.UnsupportedTask(f"{name} is neither a file, a folder nor a link")


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", re.IGNORECASE)
_FACTORS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class AgentSection(_Section):
    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None
    network_mode: str | None = None


class VerifierSection(_Section):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    network_mode: str | None = None
    environment_mode: str | None = None
    environment: dict[str, Any] | None = None


class EnvironmentSection(_Section):
    build_timeout_sec: float = Field(default=600.0, gt=0)
    os: str = "linux"
    memory_mb: int | None = Field(default=None, gt=0)
    memory: str | None = None
    storage_mb: int | None = Field(default=None, gt=0)
    storage: str | None = None
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[Any] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    healthcheck: dict[str, Any] | None = None
    workdir: str | None = None
    network_mode: str | None = None
    allow_internet: bool | None = None


class TaskConfig(_Section):
    """task.toml. Unknown keys, which newer versions of the format may have, are ignored."""

    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    environment: EnvironmentSection = EnvironmentSection()
    steps: list[Any] | None = None

    @property
    def memory_mb(self) -> int | None:
        return self.environment.memory_mb or _mb("environment.memory", self.environment.memory)

    @property
    def storage_mb(self) -> int | None:
        return self.environment.storage_mb or _mb("environment.storage", self.environment.storage)


def read_config(text: str) -> TaskConfig:
    """Parse task.toml. Raises UnsupportedTask with the key that is invalid, or that a box cannot provide."""
    try:
        config = TaskConfig.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise dockerfile.UnsupportedTask(f"task.toml is not valid TOML: {error}") from error
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, problem["loc"]))
        raise dockerfile.UnsupportedTask(f"task.toml: {key}: {problem['msg']}") from error
    for reason in _refusals(config):
        raise dockerfile.UnsupportedTask(f"task.toml: {reason}")
    _ = config.memory_mb, config.storage_mb  # raises if they are not sizes
    return config


def _refusals(config: TaskConfig) -> list[str]:
    agent, verifier, environment = config.agent, config.verifier, config.environment
    found = []
    if config.steps:
        found.append("[[steps]]: tasks with several steps are not supported")
    if environment.os != "linux":
        found.append(f"environment.os = {environment.os!r}: a box is a Linux machine")
    if environment.gpus:
        found.append(f"environment.gpus = {environment.gpus}: a box has no GPU")
    if environment.tpu:
        found.append("environment.tpu: a box has no TPU")
    if environment.mcp_servers:
        found.append("environment.mcp_servers: MCP servers are not started")
    if environment.healthcheck:
        found.append("environment.healthcheck: services are not started")
    if environment.allow_internet:
        found.append("environment.allow_internet = true: a box has no network")
    for name, section in (("agent", agent), ("verifier", verifier), ("environment", environment)):
        if section.network_mode not in (None, "no-network"):
            found.append(f"{name}.network_mode = {section.network_mode!r}: a box has no network")
    for name, user in (("agent", agent.user), ("verifier", verifier.user)):
        if user not in (None, "root", 0, "0"):
            found.append(f"{name}.user = {user!r}: a box has one user, root")
    if verifier.environment is not None or verifier.environment_mode not in (None, "shared"):
        found.append("verifier.environment: tests that need a container of their own are not supported")
    for name, env in (("environment", environment.env), ("verifier", verifier.env)):
        found += [
            f"{name}.env.{key} = {value!r}: variables of the host are not passed on"
            for key, value in env.items()
            if "${" in value
        ]
        found += [
            f"{name}.env: {key!r} = {value!r:.80} cannot be a variable: its name is empty, or has `=` or NUL in it"
            for key, value in env.items()
            if not key or "=" in key or "\0" in key + value
        ]
    return found


def _mb(key: str, text: str | None) -> int | None:
    if text is None:
        return None
    if (found := _SIZE.fullmatch(text.strip())) is None:
        raise dockerfile.UnsupportedTask(f"task.toml: {key} = {text!r}: expected a size such as '2G'")
    return max(int(float(found[1]) * _FACTORS[found[2].upper()]), 1)


@dataclass(frozen=True)
class TaskSet:
    """All tasks by the names of their folders."""

    playable: Mapping[str, TaskFolder]
    refused: Mapping[str, str]
    """Why a task cannot be played."""


def load_tasks(settings: HarborSettings) -> TaskSet:
    """Load all tasks. Raises OperatorError if there are none, or if a box would show their tests to the model."""
    root = EXAMPLES if settings.tasks is None else settings.tasks
    if not root.is_dir():
        raise OperatorError(f"tasks: {root} is not a folder; expected a folder of task folders, or one task folder")
    folders = [root] if is_task(root) else sorted(path for path in root.iterdir() if is_task(path))
    if not folders:
        raise OperatorError(f"tasks: {root} contains no task folder (a folder with a task.toml)")
    _check_hidden(root, settings)
    host, playable, refused = dockerfile.host_image(), {}, {}
    for folder in folders:
        try:
            if folder.is_symlink():
                raise dockerfile.UnsupportedTask("the task folder is a link; expected the folder itself")
            playable[folder.name] = load_folder(folder.resolve(), host, settings.accept_images)
        except dockerfile.UnsupportedTask as error:
            refused[folder.name] = str(error)
    return TaskSet(playable, refused)


def _check_hidden(root: Path, settings: HarborSettings) -> None:
    for path in settings.host_paths:
        if not path.is_absolute() or not path.is_dir():
            raise OperatorError(f"host_paths: {path} is not a folder with an absolute path")
    shown = [*SYSTEM_PATHS, *map(str, settings.host_paths)]
    if is_visible(str(root), shown):
        raise OperatorError(
            f"tasks: {root} is in a folder that every box shows ({', '.join(shown)}), so the model could read the "
            "tests: copy the tasks to another folder"
        )

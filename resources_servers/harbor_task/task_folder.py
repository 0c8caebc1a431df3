"""Loads a task folder and refuses links that lead outside, and everything else that cannot be played safely."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollyard.records.errors import OperatorError
from rollyard.resources_servers.base import EnvironmentSettings
from rollyard.resources_servers.harbor_task import dockerfile
from rollyard.services.sandbox.backends import BackendName
from rollyard.services.sandbox.box import BoxLimits, Need, is_visible
from rollyard.services.sandbox.inside.private_tree import SYSTEM_PATHS

EXAMPLES = Path(__file__).parent / "examples"


class HarborSettings(EnvironmentSettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = EnvironmentSettings.NOT_IDENTITY | {"slots"}

    boxes: BackendName = "auto"
    """What the episodes' boxes are: `docker` or `podman`, containers of that engine; `namespaces`, boxes of this host's
    own programs; `auto`, containers if an engine is running, else boxes."""
    container_network: str | None = "bridge"
    """The engine's network for builds, and for tasks whose network policy is `public`, which is the format's default.
    Null: none, and tasks that state `public` are refused."""
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
STEPS, WORKDIR = "steps", "workdir"
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml", "singularity-compose.yaml")
MAX_BYTES = 256 << 20
"""Maximum size of a task folder, which is read into memory."""


@dataclass(frozen=True)
class Place:
    """Where commands run: what a box of it is made of."""

    context: Path
    """The folder of the Dockerfile."""
    image: str | None
    """A prebuilt image; None: built from the Dockerfile."""
    build: dockerfile.Build | None
    """What the Dockerfile does, if boxes have no images."""
    config: EnvironmentSection
    network: bool
    has_tests: bool = False
    """Whether the tests are part of it, as is usual for the image of a separate verifier."""


@dataclass(frozen=True)
class TaskStep:
    """A task without [[steps]] is one step."""

    name: str
    folder: Path
    instruction: str
    agent_timeout_s: float | None
    verifier: VerifierSection
    tests: tuple[Path, ...]
    """Folders whose content becomes /tests, in this order."""
    min_reward: float | dict[str, float] | None
    separate: Place | None
    """Where the tests run, if not in the box of the episode."""
    artifacts: tuple[str, ...]
    """Paths that a separate verifier gets from the box of the episode."""
    healthcheck: HealthcheckSection | None


@dataclass(frozen=True)
class TaskFolder:
    name: str
    path: Path
    config: TaskConfig
    place: Place
    steps: tuple[TaskStep, ...]
    digest: str
    """Hash of all files, to notice rows that belong to another version of the task."""

    @property
    def instruction(self) -> str:
        return self.steps[0].instruction


def is_task(path: Path) -> bool:
    return os.path.lexists(path / CONFIG)


@dataclass(frozen=True)
class Host:
    """What decides whether a task can be played."""

    image: dockerfile.HostImage
    accepted: Sequence[str]
    lacks: Mapping[Need, str]
    """What the boxes lack."""
    has_network: bool = True
    """Whether containers may have a network."""


def load_folder(path: Path, host: Host) -> TaskFolder:
    """Load a task folder. Raises UnsupportedTask with the file, line or key that cannot be provided."""
    try:
        digest = _check_tree(path)
        config = read_config(_text(path / CONFIG), host.lacks)
        place = _place(
            path / ENVIRONMENT, config.environment, host, _network(config, "agent", config.agent.network_mode, host)
        )
        steps = tuple(_steps(path, config, place, host))
    except OSError as error:
        raise dockerfile.UnsupportedTask(f"{error.filename or path} cannot be read: {error.strerror}") from error
    return TaskFolder(path.name, path, config, place, steps, digest)


def _steps(path: Path, config: TaskConfig, place: Place, host: Host) -> Iterator[TaskStep]:
    sections: list[StepSection | None] = [*config.steps] if config.steps else [None]
    for section in sections:
        folder = path / STEPS / section.name if section else path
        verifier = config.verifier if section is None else section.verifier.over(config.verifier)
        instruction = without_canary(_text(folder / INSTRUCTION)).strip()
        if not instruction:
            raise dockerfile.UnsupportedTask(f"{(folder / INSTRUCTION).relative_to(path)} is empty")
        own = (section.agent.timeout_sec if section else None) or config.agent.timeout_sec
        tests = tuple(each for each in dict.fromkeys((path / TESTS, folder / TESTS)) if each.is_dir())
        mode = (section.agent.network_mode if section else None) or config.agent.network_mode
        separate = _separate(path, tests, config, verifier, host) if verifier.is_separate else None
        network = _network(config, "agent", mode, host)
        if network != place.network:
            raise dockerfile.UnsupportedTask("agent.network_mode changes between steps, and a box keeps its network")
        if separate is None and verifier.network_mode not in (None, "public" if network else "no-network"):
            found = verifier.network_mode
            raise dockerfile.UnsupportedTask(
                f"verifier.network_mode = {found!r} differs from the agent's, and a box keeps its network; expected "
                "environment_mode = 'separate'"
            )
        if separate is None or not separate.has_tests:
            _check_tests(tests, path, host)
        artifacts = [*config.artifacts, *(section.artifacts if section else ())]
        sources = tuple(each if isinstance(each, str) else each.source for each in artifacts)
        yield TaskStep(
            name=section.name if section else "",
            folder=folder,
            instruction=instruction,
            agent_timeout_s=own,
            verifier=verifier,
            tests=tests,
            min_reward=section.min_reward if section else None,
            separate=separate,
            artifacts=sources,
            healthcheck=section.healthcheck if section else None,
        )


def _check_tests(tests: Sequence[Path], path: Path, host: Host) -> None:
    scripts = [folder / "test.sh" for folder in tests if (folder / "test.sh").exists()]
    text = _text(scripts[-1] if scripts else path / TESTS / "test.sh")
    if Need.NETWORK in host.lacks and (found := dockerfile.network_command(text)):
        name = scripts[-1].relative_to(path)
        reason = f"{name} line {found[0]}: `{found[1]}` needs a network, which a box does not have"
        raise dockerfile.UnsupportedTask(reason)


def without_canary(text: str) -> str:
    """Return the text without its first lines that mark a benchmark's files, which the model is not to read."""
    lines = text.split("\n")
    while lines and (_CANARY.fullmatch(lines[0].strip()) or not lines[0].strip()):
        del lines[0]
    return "\n".join(lines)


def _network(config: TaskConfig, phase: str, own: NetworkMode | None, host: Host) -> bool:
    """Return whether the box of a phase has a network. Raises UnsupportedTask if it should and cannot.

    `own`: the mode of the phase, which precedes that of the environment.
    """
    environment = config.environment
    stated = {f"{phase}.network_mode": own, "environment.network_mode": environment.network_mode}
    legacy: dict[str, NetworkMode | None] = (
        {"environment.allow_internet": "public"} if environment.allow_internet else {}
    )
    found = next(((key, mode) for key, mode in {**stated, **legacy}.items() if mode), None)
    why = host.lacks.get(Need.NETWORK) or ("" if host.has_network else "container_network is null")
    if found and found[1] == "public" and why:
        shown = "true" if found[0] in legacy else "'public'"
        raise dockerfile.UnsupportedTask(f"task.toml: {found[0]} = {shown}: {why}")
    return not why and (found[1] == "public" if found else environment.allow_internet is None)


def _separate(path: Path, tests: Sequence[Path], config: TaskConfig, verifier: VerifierSection, host: Host) -> Place:
    """Return where a separate verifier's tests run: in its own image or Dockerfile, else in a new environment."""
    own = verifier.environment or config.environment
    network = _network(config, "verifier", verifier.network_mode or own.network_mode, host)
    for folder in reversed(tests):
        if (verifier.environment and verifier.environment.docker_image) or (folder / "Dockerfile").exists():
            return replace(_place(folder, own, host, network), has_tests=True)
    prebuilt = own.docker_image or config.environment.docker_image
    return _place(path / ENVIRONMENT, own.model_copy(update={"docker_image": prebuilt}), host, network)


def _place(folder: Path, config: EnvironmentSection, host: Host, network: bool) -> Place:
    for name in _COMPOSE:
        if (folder / name).exists():
            raise dockerfile.UnsupportedTask(f"{folder.name}/{name}: several containers are not supported")
    file = folder / "Dockerfile"
    if Need.IMAGE not in host.lacks:
        if not config.docker_image and not file.exists():
            raise dockerfile.UnsupportedTask(f"{folder.name}/Dockerfile is missing, and there is no docker_image")
        return Place(folder, config.docker_image, None, config, network)
    if (folder / ".dockerignore").exists():
        raise dockerfile.UnsupportedTask(
            f"{folder.name}/.dockerignore is not supported: remove the files that it excludes"
        )
    if not file.exists():
        raise dockerfile.UnsupportedTask(
            f"{folder.name}/Dockerfile is missing; prebuilt images need an engine (boxes: docker)"
        )
    build = dockerfile.read_build(_text(file), host.image, host.accepted)
    build.env |= config.env
    if workdir := config.workdir:
        build.workdir = _workdir(workdir)
        build.folders.append(build.workdir)
    return Place(folder, None, build, config, network)


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
    for part in (CONFIG, INSTRUCTION, ENVIRONMENT, TESTS, SOLUTION, STEPS):
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


NetworkMode = Literal["no-network", "public", "allowlist"]


class AgentSection(_Section):
    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None
    network_mode: NetworkMode | None = None


class McpServer(_Section):
    """A server of tools. One of `stdio` is a command in the box."""

    name: str = Field(min_length=1)
    transport: str = "sse"
    command: str | None = None
    args: tuple[str, ...] = ()


class HealthcheckSection(_Section):
    """A command that must succeed before the model starts. Failures during the start period do not count."""

    command: str
    interval_sec: float = Field(default=5.0, ge=0, le=600)
    timeout_sec: float = Field(default=30.0, gt=0, le=600)
    start_period_sec: float = Field(default=0.0, ge=0, le=600)
    start_interval_sec: float = Field(default=5.0, gt=0, le=600)
    retries: int = Field(default=3, ge=1, le=100)
    """Number of failures in a row after which the task cannot be played."""


class EnvironmentSection(_Section):
    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = None
    os: str = "linux"
    memory_mb: int | None = Field(default=None, gt=0)
    memory: str | None = None
    storage_mb: int | None = Field(default=None, gt=0)
    storage: str | None = None
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[McpServer] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    healthcheck: HealthcheckSection | None = None
    workdir: str | None = None
    network_mode: NetworkMode | None = None
    allow_internet: bool | None = None


class CollectSection(_Section):
    command: str
    service: str = "main"
    timeout_sec: float = Field(default=60.0, gt=0)


class VerifierSection(_Section):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentSection | None = None
    collect: list[CollectSection] = Field(default_factory=list)

    @property
    def is_separate(self) -> bool:
        return self.environment_mode == "separate" or (self.environment_mode is None and self.environment is not None)

    def over(self, task: VerifierSection) -> VerifierSection:
        """Return this section of a step with what it leaves out as in the task's, whose variables apply as well."""
        left_out = {name: getattr(task, name) for name in type(self).model_fields if name not in self.model_fields_set}
        if "environment" in self.model_fields_set or "environment_mode" in self.model_fields_set:
            left_out.pop("environment_mode", None)
        return self.model_copy(update={**left_out, "env": {**task.env, **self.env}})


class ArtifactSection(_Section):
    source: str
    service: str | None = None
    exclude: list[str] = Field(default_factory=list)


class StepSection(_Section):
    name: str = Field(pattern=r"^[^/\\\x00-\x1f]+$")
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    min_reward: float | dict[str, float] | None = None
    healthcheck: HealthcheckSection | None = None
    artifacts: list[str | ArtifactSection] = Field(default_factory=list)


class TaskConfig(_Section):
    """task.toml. Unknown keys, which newer versions of the format may have, are ignored."""

    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    environment: EnvironmentSection = EnvironmentSection()
    steps: list[StepSection] | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: list[str | ArtifactSection] = Field(default_factory=list)

    @property
    def memory_mb(self) -> int | None:
        return self.environment.memory_mb or _mb("environment.memory", self.environment.memory)

    @property
    def storage_mb(self) -> int | None:
        return self.environment.storage_mb or _mb("environment.storage", self.environment.storage)


def read_config(text: str, lacks: Mapping[Need, str]) -> TaskConfig:
    """Parse task.toml. Raises UnsupportedTask with the key that is invalid, or that a box cannot provide."""
    try:
        config = TaskConfig.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise dockerfile.UnsupportedTask(f"task.toml is not valid TOML: {error}") from error
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, problem["loc"]))
        raise dockerfile.UnsupportedTask(f"task.toml: {key}: {problem['msg']}") from error
    for reason in _refusals(config, lacks):
        raise dockerfile.UnsupportedTask(f"task.toml: {reason}")
    _ = config.memory_mb, config.storage_mb  # raises if they are not sizes
    return config


def _refusals(config: TaskConfig, lacks: Mapping[Need, str]) -> Iterator[str]:
    steps = config.steps or []
    if len({step.name.casefold() for step in steps}) < len(steps):
        yield "[[steps]]: two steps have the same name"
    for step in steps:
        if step.name in (".", "..") or step.name.endswith((".", " ")):
            yield f"[[steps]]: the name {step.name!r} is not that of a folder"
    environments = {"environment": config.environment}
    verifiers = {"verifier": config.verifier, **{f"steps.{step.name}.verifier": step.verifier for step in steps}}
    agents = {"agent": config.agent, **{f"steps.{step.name}.agent": step.agent for step in steps}}
    for name, verifier in verifiers.items():
        if verifier.environment is not None:
            environments[f"{name}.environment"] = verifier.environment
            if verifier.environment_mode == "shared":
                yield f"{name}.environment_mode = 'shared' contradicts {name}.environment"
        for collect in verifier.collect:
            if collect.service != "main":
                yield f"{name}.collect.service = {collect.service!r}: several containers are not supported"
    for name, environment in environments.items():
        if environment.os.lower() != "linux":
            yield f"{name}.os = {environment.os!r}: a box is a Linux machine"
        if environment.gpus:
            yield f"{name}.gpus = {environment.gpus}: a box has no GPU"
        if environment.tpu:
            yield f"{name}.tpu: a box has no TPU"
        if environment.healthcheck and name != "environment":
            yield f"{name}.healthcheck: services are not started"
        for server in environment.mcp_servers:
            if server.transport != "stdio" or not server.command:
                found = f"{name}.mcp_servers: {server.name!r} has the transport {server.transport!r}"
                yield f"{found}; expected 'stdio' with a command, because other services are not started"
    people: dict[str, AgentSection | VerifierSection] = {**agents, **verifiers}
    for name, one in people.items():
        if one.user not in (None, "root", 0, "0"):
            yield f"{name}.user = {one.user!r}: {lacks.get(Need.USERS, 'users are not supported')}"
    modes = {name: each.network_mode for name, each in people.items()}
    for name, mode in {**modes, **{name: each.network_mode for name, each in environments.items()}}.items():
        if mode == "allowlist":
            yield f"{name}.network_mode = 'allowlist': a box has all of a network or none"
    for artifact in [*config.artifacts, *(each for step in steps for each in step.artifacts)]:
        source = artifact if isinstance(artifact, str) else artifact.source
        if not isinstance(artifact, str) and (artifact.exclude or artifact.service not in (None, "main")):
            yield f"artifacts: {source}: `exclude` and services are not supported"
        if not source.startswith("/") or ".." in source.split("/"):
            yield f"artifacts: {source}: expected an absolute path without `..`"
    variables = {name: environment.env for name, environment in environments.items()}
    variables |= {name: verifier.env for name, verifier in verifiers.items()}
    for name, env in variables.items():
        for key, value in env.items():
            if "${" in value:
                yield f"{name}.env.{key} = {value!r}: variables of the host are not passed on"
            if not key or "=" in key or "\0" in key + value:
                yield (
                    f"{name}.env: {key!r} = {value!r:.80} cannot be a variable: its name is empty, or has `=` or NUL "
                    "in it"
                )


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


def load_tasks(settings: HarborSettings, lacks: Mapping[Need, str]) -> TaskSet:
    """Load all tasks. Raises OperatorError if there are none, or if a box would show their tests to the model."""
    root = EXAMPLES if settings.tasks is None else settings.tasks
    if not root.is_dir():
        raise OperatorError(f"tasks: {root} is not a folder; expected a folder of task folders, or one task folder")
    folders = [root] if is_task(root) else sorted(path for path in root.iterdir() if is_task(path))
    if not folders:
        raise OperatorError(f"tasks: {root} contains no task folder (a folder with a task.toml)")
    _check_hidden(root, settings, lacks)
    has_network = settings.container_network is not None
    host, playable, refused = Host(dockerfile.host_image(), settings.accept_images, lacks, has_network), {}, {}
    for folder in folders:
        try:
            if folder.is_symlink():
                raise dockerfile.UnsupportedTask("the task folder is a link; expected the folder itself")
            playable[folder.name] = load_folder(folder.resolve(), host)
        except dockerfile.UnsupportedTask as error:
            refused[folder.name] = str(error)
    return TaskSet(playable, refused)


def _check_hidden(root: Path, settings: HarborSettings, lacks: Mapping[Need, str]) -> None:
    for path in settings.host_paths:
        if not path.is_absolute() or not path.is_dir():
            raise OperatorError(f"host_paths: {path} is not a folder with an absolute path")
    shown = [*(SYSTEM_PATHS if Need.IMAGE in lacks else ()), *map(str, settings.host_paths)]
    if is_visible(str(root), shown):
        raise OperatorError(
            f"tasks: {root} is in a folder that every box shows ({', '.join(shown)}), so the model could read the "
            "tests: copy the tasks to another folder"
        )

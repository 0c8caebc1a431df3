"""task.toml: the parts of Harbor's task configuration that matter here, and those that cannot be provided."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollyard.resources_servers.harbor_task.unsupported import UnsupportedTask

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
    docker_image: str | None = None
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
        raise UnsupportedTask(f"task.toml is not valid TOML: {error}") from error
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, problem["loc"]))
        raise UnsupportedTask(f"task.toml: {key}: {problem['msg']}") from error
    for reason in _refusals(config):
        raise UnsupportedTask(f"task.toml: {reason}")
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
        raise UnsupportedTask(f"task.toml: {key} = {text!r}: expected a size such as '2G'")
    return max(int(float(found[1]) * _FACTORS[found[2].upper()]), 1)

"""Settings of an OpenEnv environment: where its server is, and how an episode is scored."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rollyard.resources_servers.base import EnvironmentSettings


class OpenEnvSettings(EnvironmentSettings):
    url: str | None = Field(default=None, pattern=r"^(http|https|ws|wss)://")
    """Address of a running OpenEnv server, such as http://127.0.0.1:8000. Set this or `image`."""
    image: str | None = None
    """Docker image of an OpenEnv server, which is started with this server and stopped with it."""
    docker: str = "docker"
    """Command that runs `image`: docker, or a program with the same options, such as podman."""
    image_port: int = Field(default=8000, ge=1, le=65535)
    """Port on which the server in the image listens."""
    token: str | None = None
    """Token that the server requires, sent as Authorization: Bearer."""
    start_wait_s: float = Field(default=10.0, gt=0)
    """How long to wait for the server while this one starts. An image that starts slowly needs more."""
    step_timeout_s: float = Field(default=45.0, gt=0)
    """How long a reset or step may take. Must be below the agent's `tool_timeout_s`."""
    timeout: Literal["end", "failure"] = "end"
    """What a step that exceeds its time means. `end`: the episode is over, with the rewards so far, because the model's
    action may be the cause. `failure`: the rollout failed and is tried again."""
    reward: Literal["sum", "last"] = "sum"
    """How the steps' rewards become the episode's: their sum, or the last one that is a number."""
    tool_name: str = Field(default="act", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
    """Name of the tool that takes an action. Environments with MCP tools offer those instead."""
    text_field: str | None = None
    """Field of the action that holds the model's message, in turn-based mode; default: its only required string."""
    observation_field: str | None = None
    """Field of the observation that the model reads; default: the whole observation as JSON."""
    max_message_mb: int = Field(default=16, ge=1)
    """Maximum size of a message of the server."""

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if (self.url is None) == (self.image is None):
            found = "both url and image are set" if self.url else "neither url nor image is set"
            raise ValueError(f"{found}; set exactly one of them")
        return self

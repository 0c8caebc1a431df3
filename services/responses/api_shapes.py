"""What the policy's APIs take and return: OpenAI's two and Anthropic's, as /openapi.json describes them.

Only what Rollyard reads is described. All of these objects may have other fields, which are passed on.
"""

from __future__ import annotations

from typing import Any, Literal, Required

from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from rollyard.records.rollout_types import CreateParams, Usage
from rollyard.records.types import Json
from rollyard.services.server.openapi import Shape


class ResponsesRequest(CreateParams, total=False):
    model: str
    stream: bool
    tool_choice: str | Json
    parallel_tool_calls: bool
    text: Json | None
    reasoning: Json | None


class ResponseObject(TypedDict, total=False):
    """It also repeats the parameters of the request, as they were given."""

    id: str
    object: str
    status: str | None
    output: Required[list[Json]]
    usage: Usage | None


class ChatRequest(TypedDict, total=False):
    messages: Required[list[Json]]
    model: str
    tools: list[Json] | None
    tool_choice: str | Json
    stream: bool
    stream_options: Json | None
    max_completion_tokens: int | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    response_format: Json | None


class ChatCompletion(TypedDict, total=False):
    id: str
    choices: Required[list[Json]]
    usage: Json | None


class Prompt(TypedDict, total=False):
    messages: Required[list[Json]]
    system: str | list[Json]
    model: str
    tools: list[Json]


class MessagesRequest(Prompt, total=False):
    max_tokens: Required[int]
    stream: bool
    stop_sequences: list[str]
    temperature: float
    tool_choice: Json


class Message(TypedDict, total=False):
    type: Required[Literal["message"]]
    role: str
    content: Required[list[Json]]
    stop_reason: str | None
    usage: Json


class TokenCount(TypedDict):
    input_tokens: int


class ApiError(TypedDict, total=False):
    """An error that clients of OpenAI and of Anthropic can read."""

    type: str
    error: Required[Any]


RESPONSES = Shape(ResponsesRequest, ResponseObject, streams=True)
CHAT = Shape(ChatRequest, ChatCompletion, streams=True)
MESSAGES = Shape(MessagesRequest, Message, streams=True)
TOKEN_COUNT = Shape(Prompt, TokenCount)

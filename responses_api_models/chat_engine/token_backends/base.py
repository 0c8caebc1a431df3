"""Defines the interface of the two token backends: they render messages, generate from token ids, and parse the
generated text.

GenerateBackend       vLLM's own endpoints: /v1/chat/completions/render, /inference/v1/generate,
                      /v1/chat/completions/derender (all with --enable-scale-out); the engine parses the text
CompletionsBackend    /tokenize and /v1/completions, which all vLLM versions and many other engines support; `hermes`
                      parses the text
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.records.token_types import SamplingRecord
from rollyard.records.types import Json
from rollyard.responses_api_models.upstream.request_context import RequestContext

QUESTION: Json = {"role": "user", "content": "x"}
"""The message that `check` sends to test an engine."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Messages rendered and tokenized by the engine."""

    ids: list[int]
    request: Json = field(default_factory=dict)
    """The rest of the rendered request."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What the engine generated from a prompt of token ids."""

    ids: list[int]
    log_probs: list[float]
    completion: Json
    """The output as a chat completion, with parsed tool calls and reasoning."""
    sampling: SamplingRecord
    """Sampling parameters of the output (sampling.py)."""
    weight_versions: Any = None
    """The weight version of each span of generated tokens, if vLLM reports it."""


class TokenBackend(Protocol):
    """An API through which an engine accepts token ids."""

    name: str
    names_versions: bool
    """Whether its responses report the weight version of each token."""

    async def check(self, model: str, request_context: RequestContext) -> None:
        """Raises Failure upstream_refused or malformed_answer if the engine lacks an endpoint of this backend."""
        ...

    def unsupported_reason(self, body: Json) -> str:
        """Return why this backend does not support the chat request `body`; empty if it does."""
        ...

    async def render(
        self, body: Json, messages: list[Json], request_context: RequestContext, *, ask: bool = True
    ) -> Rendered:
        """Render `messages` with the tools and template arguments of the chat request `body`, and with the generation
        prompt if `ask` is set.
        """
        ...

    async def generate(
        self, ids: list[int], rendered: Rendered, body: Json, request_context: RequestContext, *, texts: bool = False
    ) -> Generated:
        """Sample the model's turn from the prompt `ids` with the parameters of the chat request `body`. If `texts` is
        set, the completion also contains logprobs with the text of each token.
        """
        ...

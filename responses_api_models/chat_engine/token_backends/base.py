"""Roads: the two ways in which an engine takes token ids in. Both render messages, generate from ids, read the text.

GenerateBackend       vLLM's own: /v1/chat/completions/render, /inference/v1/generate, /v1/chat/completions/derender
(all with --enable-scale-out); the engine's tool and reasoning parsers read the answer
CompletionsBackend    /tokenize and /v1/completions, which every vLLM and many other engines have; the text is read
here, by `hermes`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.services.rollout_types import SamplingRecord
from rollyard.services.types import Json

QUESTION: Json = {"role": "user", "content": "x"}
"""What an engine is asked to see whether it can be asked."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Messages as the engine's chat template and tokenizer make them."""

    ids: list[int]
    request: Json = field(default_factory=dict)
    """What else the engine made of the chat request."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What the engine generated from ids."""

    ids: list[int]
    log_probs: list[float]
    completion: Json
    """The same as a chat completion, tool calls and reasoning read."""
    sampling: SamplingRecord
    """How it was sampled: see sampling.py."""
    weight_versions: Any = None
    """vLLM's own spans of weight versions over the generated tokens, where it reports them."""


class TokenBackend(Protocol):
    """What both ways can do."""

    name: str
    names_versions: bool
    """Its answers name the weight version of each token."""

    async def check(self, model: str, request_context: RequestContext) -> None:
        """Raises Failure upstream_refused or malformed_answer where the engine lacks an endpoint of this way."""
        ...

    def unsupported_reason(self, body: Json) -> str:
        """Why the chat request `body` cannot go this way; empty when it can."""
        ...

    async def render(
        self, body: Json, messages: list[Json], request_context: RequestContext, *, ask: bool = True
    ) -> Rendered:
        """Ids of `messages` under the tools and template arguments of the chat request `body`; `ask`: with the words
        that make the model speak next.
        """
        ...

    async def generate(
        self, ids: list[int], rendered: Rendered, body: Json, request_context: RequestContext, *, texts: bool = False
    ) -> Generated:
        """The model's turn after the prompt `ids`, sampled as the chat request `body` says. `texts`: the completion has
        logprobs in words, too.
        """
        ...

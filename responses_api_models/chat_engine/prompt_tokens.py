"""Counts the tokens of a chat request with the engine's own chat template and tokenizer (vLLM's /tokenize)."""

from __future__ import annotations

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.responses_api_models.upstream.upstream import Upstream

_PROMPT = ("model", "messages", "tools", "chat_template", "chat_template_kwargs")
_MISSING = frozenset({404, 405, 501})


async def count_prompt_tokens(upstream: Upstream, body: Json, request_context: RequestContext) -> int:
    """Return the number of tokens in the prompt of a chat request.

    Raises Failure bad_request with status 501 if the engine has no endpoint that tokenizes conversations.
    """
    sent = {key: body[key] for key in _PROMPT if key in body}
    try:
        answer = await upstream.post("/../tokenize", orjson.dumps(sent), json_object, request_context)
    except Failure as failure:
        if failure.problem.upstream_status in _MISSING:
            raise _unsupported(f"status {failure.problem.upstream_status}") from failure
        raise
    count = answer.get("count")
    if not isinstance(count, int) or isinstance(count, bool):
        raise _unsupported(f"the fields {', '.join(sorted(answer)) or 'none'}")
    return count


def _unsupported(found: str) -> Failure:
    detail = (
        f"the engine cannot count the tokens of a conversation: its /tokenize answered with {found}; expected the "
        "field count, as vLLM returns it. Read the usage of a response instead"
    )
    return Failure(FailureKind.BAD_REQUEST, detail, status=501)

"""Shows the tokens of a model call."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.viewer.api.api_records import Tokens
from rollyard.analysis.viewer.api.row_fields import shortened_values
from rollyard.analysis.viewer.api.token_texts import joined_texts
from rollyard.analysis.viewer.api.untrusted_values import sanitize
from rollyard.records.io.json_values import mapping
from rollyard.records.rollouts.tokens.model_calls import ModelCall, alternatives_of, ids_of, model_call
from rollyard.records.types import Json


def tokens_of(item: Json, written: Sequence[str] = (), trained: bool = True) -> Tokens | None:
    """Return the item's tokens; None if they are missing or invalid.

    `written`: the texts of the model call, from which characters are completed that the engine could not decode.
    """
    call = model_call(item)
    if call is None:
        return None
    trace = mapping(call.trace)
    return Tokens(
        prompt=(ids_of(item.get("prompt_token_ids")) or []) if call.ids else [],
        generated=call.ids,
        log_probs=call.log_probs,
        texts=joined_texts(call.texts, written),
        alternatives=_alternatives(call),
        trained=trained,
        trace=shortened_values({key: trace[key] for key in trace if key != "texts"})
        if isinstance(call.trace, dict) and call.ids
        else None,
    )


def _alternatives(call: ModelCall) -> list[list[tuple[str, float]]]:
    """Return the most likely tokens at each position; empty if none are recorded."""
    found = [[(sanitize(text), value) for text, value in alternatives_of(entry)] for entry in call.entries]
    return found if any(found) else []

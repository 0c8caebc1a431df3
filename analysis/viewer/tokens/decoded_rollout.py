"""Adds the texts of tokens to a rollout in which they are not recorded."""

from __future__ import annotations

from rollyard.analysis.viewer.api.api_records import Event, RolloutView
from rollyard.analysis.viewer.api.untrusted_values import sanitize
from rollyard.analysis.viewer.tokens.decoder import TokenDecoder


def decoded_rollout(view: RolloutView, decoder: TokenDecoder | None) -> RolloutView:
    """Return the rollout with decoded texts, where ids without texts are recorded."""
    if decoder is None:
        return view
    return view.model_copy(update={"events": [_decoded(event, decoder) for event in view.events]})


def _decoded(event: Event, decoder: TokenDecoder) -> Event:
    tokens = event.tokens
    if tokens is None or tokens.texts or not tokens.generated:
        return event
    texts = [sanitize(text) for text in decoder.texts(tokens.generated)]
    return event.model_copy(update={"tokens": tokens.model_copy(update={"texts": texts})})

"""Finds a token of a training sequence in the row from which the sequence was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollyard.analysis.viewer.tokens.decoder import TokenDecoder
from rollyard.records.io.json_values import items, mapping
from rollyard.records.rollouts.tokens.model_calls import is_from_model, model_call

_SAME = 1e-4
"""Trainers store log-probabilities in single precision."""
_BEFORE, _AFTER = 40, 20


@dataclass(frozen=True)
class TokenPlace:
    """A token in its model call, with the text around it if it is recorded."""

    call: int
    position: int
    text: str = ""
    before: str = ""
    after: str = ""


def token_place(
    row: Mapping[str, Any], index: int, token: int, log_prob: float, decoder: TokenDecoder | None = None
) -> TokenPlace | None:
    """Return the place of the generated token at `index` of a sequence, prompt included; None if the row has none.

    Several sequences of an episode may have a token at the same index, so that its log-probability has to match, too.
    """
    call = 0
    for item in items(mapping(row.get("response")).get("output")):
        if not is_from_model(item) or (found := model_call(item)) is None:
            continue
        position = index - len(items(item.get("prompt_token_ids")))
        matches = 0 <= position < min(len(found.ids), len(found.log_probs)) and found.ids[position] == token
        if matches and abs(found.log_probs[position] - log_prob) < _SAME:
            texts = found.texts or (decoder.texts(found.ids) if decoder else [])
            before, after = "".join(texts[:position]), "".join(texts[position + 1 :])
            text = texts[position] if texts else ""
            return TokenPlace(call, position, text, before[-_BEFORE:], after[:_AFTER])
        call += 1
    return None

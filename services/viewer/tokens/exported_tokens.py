"""The tokens of a run for an exported page, which has no server that could order them."""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

import numpy as np

from rollyard.services.viewer.run_file import RunFile
from rollyard.services.viewer.token_texts import TokenDecoder
from rollyard.services.viewer.tokens.token_groups import default_least, ordered, token_groups
from rollyard.services.viewer.tokens.token_index import counted_now
from rollyard.services.viewer.tokens.token_records import Sort, TokensView
from rollyard.services.viewer.tokens.token_routes import tokens_view

_PER_ORDER = 100
"""Number of tokens of each order that are exported."""


def exported_tokens(
    run: RunFile, rollouts: Collection[tuple[int, int]], decoder: TokenDecoder | None = None
) -> TokensView:
    """Return the view with the first tokens of every order. Examples are limited to `rollouts`, as (task, repeat).

    Raises OSError if the file cannot be read.
    """
    counted = counted_now(run)
    tally, least = counted.tally, default_least(counted.tally)
    orders: tuple[Sort, ...] = get_args(Sort)
    chosen = [ordered(tally, sort, least)[:_PER_ORDER] for sort in orders]
    groups = [
        group.model_copy(update={"examples": [one for one in group.examples if (one.task, one.repeat) in rollouts]})
        for group in token_groups(tally, np.unique(np.concatenate(chosen)), run.table, decoder)
    ]
    view = tokens_view(counted, run.table, limit=0)
    return view.model_copy(update={"groups": groups, "total": len(groups)})

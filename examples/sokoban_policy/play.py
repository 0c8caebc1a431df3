"""Plays many rooms at once with the policy, with the environment's rules but without its servers.

All conversations have the same number of tokens after every turn, so that the rooms are a batch without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast
from transformers.cache_utils import DynamicCache

from examples.sokoban_policy.layouts import MOST_MOVES
from examples.sokoban_policy.traces import Encoder
from rollyard.resources_servers.grl_sokoban.game import Game, Room


@dataclass(frozen=True, slots=True)
class Played:
    """Results, one per room."""

    solved: list[bool]
    moves: list[int]
    invalid: list[bool]
    """Whether the policy said something else than one move."""

    @property
    def success(self) -> float:
        return sum(self.solved) / len(self.solved)


@torch.no_grad()  # type: ignore[untyped-decorator]
def play(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    rooms: Sequence[Room],
    *,
    most_moves: int = MOST_MOVES,
    temperature: float = 0.0,
    seed: int = 0,
) -> Played:
    """Play every room once; with temperature 0, the most probable token is chosen."""
    encoder = Encoder(tokenizer)
    games = [Game(room, most_moves) for room in rooms]
    invalid = [False] * len(games)
    move_of = {token: move for move, token in enumerate(encoder.calls) if move}
    generator = torch.Generator().manual_seed(seed)
    playing = list(range(len(games)))
    start = [*encoder.start, encoder.calls[0], encoder.end]
    inputs = [[*start, *encoder.board(game.board())] for game in games]
    cache = DynamicCache(config=model.config)
    while playing:
        logits = model(input_ids=torch.tensor(inputs), past_key_values=cache, logits_to_keep=1).logits[:, -1].float()
        if temperature:
            chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0].tolist()
        else:
            chosen = logits.argmax(-1).tolist()
        kept, inputs = [], []
        for row, (index, token) in enumerate(zip(playing, chosen, strict=True)):
            game = games[index]
            if token not in move_of:
                invalid[index] = True
                continue
            game.step(move_of[token])
            if not game.done:
                kept.append(row)
                inputs.append([token, encoder.end, *encoder.board(game.board())])
        playing = [playing[row] for row in kept]
        if playing:
            cache.batch_select_indices(torch.tensor(kept))
    return Played([game.success for game in games], [game.steps for game in games], invalid)

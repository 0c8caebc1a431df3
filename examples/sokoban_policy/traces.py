"""Traces: episodes in the tokens of the conversation, with an optimal move as the label of every turn.

Some moves of a trace are random instead of optimal, so that the policy learns what to do after its own mistakes. A
random move is never the label, and never leads to a position that cannot be solved any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from examples.sokoban_policy.layouts import STEPS, Layout, Position
from examples.sokoban_policy.vocabulary import BOARD_END, BOARD_START, END, MOVES, ROW_END, call, prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IGNORED = -100
"""Label of a token without a loss."""
_SYMBOLS = "#_OX√PS"
TURN = 23
"""Tokens of a turn: a call, the end of the turn, and the board after it with the start of the next turn."""


class Encoder:
    """Writes conversations as token ids. Tests compare them with those of the chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        def token(text: str) -> int:
            (found,) = tokenizer.encode(text, add_special_tokens=False)
            return int(found)

        system, user = prompts()
        start = f"<|im_start|>system\n{system}{END}\n<|im_start|>user\n{user}{END}\n<|im_start|>assistant\n"
        self.start: list[int] = tokenizer.encode(start, add_special_tokens=False)
        self.calls = [token(call()), *(token(call(move)) for move in MOVES)]
        """Calls of `step`: the first without a move, the others by move, from 1."""
        self.end, self.pad = token(END), token("<|endoftext|>")
        self._cells = {symbol: token(symbol) for symbol in _SYMBOLS}
        self._board_start, self._board_end, self._row_end = token(BOARD_START), token(BOARD_END), token(ROW_END)

    def board(self, board: str) -> list[int]:
        """Return the tokens after the end of a call, up to the start of the next one."""
        ids = [self._board_start]
        for number, line in enumerate(board.split("\n")[1:-1]):
            ids += [self._row_end] * (number > 0) + [self._cells[symbol] for symbol in line[1:-1]]
        return [*ids, self._board_end]


@dataclass(frozen=True, slots=True)
class Trace:
    """Token ids of an episode up to its last call, and labels of equal length."""

    ids: list[int]
    labels: list[int]


def trace_of(encoder: Encoder, layout: Layout, start: Position, rng: Random, *, noise: float, most_turns: int) -> Trace:
    """Play from `start` with optimal moves, and with random ones at the rate `noise`."""
    look, end = encoder.calls[0], encoder.end
    ids = [*encoder.start, look, end]
    labels = [IGNORED] * len(encoder.start) + [look, end]
    position = start
    for _ in range(most_turns):
        if not layout.distances[position]:
            break
        best = rng.choice(layout.best_moves(position))
        move = best
        if rng.random() < noise:
            move = rng.choice([other for other in STEPS if layout.after(position, other) in layout.distances])
        board = encoder.board(layout.room(position).board())
        ids += [*board, encoder.calls[move], end]
        labels += [IGNORED] * len(board) + [encoder.calls[best], end]
        position = layout.after(position, move)
    return Trace(ids[:-1], labels[:-1])

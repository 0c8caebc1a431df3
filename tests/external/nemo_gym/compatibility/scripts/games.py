"""Turn-based environments: one move per turn, which depends on the row and on the number of the turn."""

from __future__ import annotations

from collections.abc import Callable

from tests.external.nemo_gym.compatibility.catalog import Row
from tests.external.nemo_gym.compatibility.scripted_model import Script, message, model_turns
from tests.external.nemo_gym.compatibility.scripts.answers import is_right


def moves(made: Callable[[Row, int, int], str]) -> Script:
    return lambda row, number, history: [message(made(row, number, model_turns(history)))]


def sokoban(row: Row, number: int, turn: int) -> str:
    return f"<action>{('Up', 'Left', 'Down', 'Right')[(turn // 2 + number) % 4]}</action>"


def follow_ups(row: Row, number: int, turn: int) -> str:
    return f"{row['expected_answer'] if is_right(number) else 'I do not know'} ({turn})"


GAMES: dict[str, Script] = {
    # Its cards are drawn without a seed. Whoever always hits goes bust with any cards.
    "blackjack": moves(lambda row, number, turn: "<action>hit</action>"),
    "example_multi_turn_gymnasium": moves(follow_ups),
    "grl_sokoban": moves(sokoban),
    # Its pieces are drawn without a seed. Whoever only moves them aside gets the same with most.
    "grl_tetris": moves(lambda row, number, turn: "<action>Left</action>"),
}

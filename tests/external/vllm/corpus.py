"""Training texts for the tokenizer of the tiny model: boards, chats and tool calls like those of Sokoban."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from tests.external.vllm.calls import MOVES, TOOL

CELLS = "####____OXP√S"
PROSE = (
    "You are playing Sokoban. The board is a grid of symbols, one line per row. A box is pushed, never pulled, so a "
    "box in a corner stays there. You win when every box stands on a target. Act only through the tool step, which "
    "plays a list of moves in order and returns the board that results. Solve this Sokoban puzzle. Start by calling "
    "step with an empty list to see the board, then keep calling it until all boxes are on targets. Finish with a "
    "short answer that says whether the puzzle is solved. First I walk around the box, then I push it to the left and "
    "down onto its target. The wall is behind it, the player is next to it, and moving there would lose the game. It "
    "is solved now."
)


def corpus(texts: int = 400, seed: int = 0) -> Iterator[str]:
    rng = random.Random(seed)
    words = PROSE.split()
    yield json.dumps(TOOL)
    for _ in range(texts):
        moves = rng.choices(MOVES, k=rng.randrange(5))
        yield "\n".join("".join(rng.choices(CELLS, k=7)) for _ in range(6))
        yield json.dumps({"name": "step", "arguments": {"actions": moves}})
        yield json.dumps({"observation": "", "reward": -0.1 * len(moves), "done": False, "steps": rng.randrange(99)})
        start = rng.randrange(len(words))
        yield " ".join(words[start : start + rng.randrange(3, 25)])
        yield f"<action>{rng.choice(MOVES)}</action>"

"""For the built-in model's tests: a small Sokoban, a solver that shares no code with the product, and the server."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import Any

from rollyard.records.run_types import Directory, Keys
from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.app import BuiltinModel, BuiltinModelSettings
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context

STEP_TOOL: Json = {
    "type": "function",
    "name": "step",
    "description": "Move.",
    "strict": True,
    "parameters": {"type": "object", "properties": {"actions": {"type": "array", "items": {"type": "string"}}}},
}
PROMPT: list[Json] = [
    {"role": "developer", "content": "`#` is a wall."},
    {"role": "user", "content": "Solve the puzzle."},
]
MOVES = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
URL = "http://policy"
EASY = "#####\n#O__#\n#_X_#\n#_P_#\n#####"
CORNERED = "#####\n#X_O#\n#___#\n#_P_#\n#####"

Cell = tuple[int, int]
State = tuple[Cell, frozenset[Cell]]


class Sokoban:
    def __init__(self, board: str) -> None:
        cells = {(y, x): symbol for y, row in enumerate(board.split("\n")) for x, symbol in enumerate(row)}
        self.size = (max(y for y, _ in cells) + 1, max(x for _, x in cells) + 1)
        self.floor = {cell for cell, symbol in cells.items() if symbol != "#"}
        self.targets = {cell for cell, symbol in cells.items() if symbol in "O√S"}
        boxes = frozenset(cell for cell, symbol in cells.items() if symbol in "X√")
        self.state: State = (next(cell for cell, symbol in cells.items() if symbol in "PS"), boxes)
        self.moves = 0

    def after(self, state: State, move: str) -> State:
        (y, x), boxes = state
        dy, dx = MOVES[move]
        target, beyond = (y + dy, x + dx), (y + 2 * dy, x + 2 * dx)
        if target in boxes and beyond in self.floor and beyond not in boxes:
            return target, boxes - {target} | {beyond}
        return (target, boxes) if target in self.floor and target not in boxes else state

    def solved(self, state: State) -> bool:
        return state[1] <= self.targets

    def board(self) -> str:
        player, boxes = self.state

        def symbol(cell: Cell) -> str:
            on_target = cell in self.targets
            if cell in boxes:
                return "√" if on_target else "X"
            if cell == player:
                return "S" if on_target else "P"
            return "#" if cell not in self.floor else "O" if on_target else "_"

        return "\n".join("".join(symbol((y, x)) for x in range(self.size[1])) for y in range(self.size[0]))

    def step(self, arguments: str) -> str:
        try:
            actions = json.loads(arguments)["actions"]
        except ValueError:
            return "The arguments are not valid JSON."
        if not isinstance(actions, list) or any(move not in MOVES for move in actions):
            return f"{actions} are not moves; expected Up, Down, Left or Right."
        for move in actions:
            if not self.solved(self.state):
                self.state = self.after(self.state, move)
                self.moves += 1
        return json.dumps({"observation": self.board(), "done": self.solved(self.state), "steps": len(actions)})


def fewest_moves(board: str) -> int | None:
    """The length of a shortest solution, by breadth-first search; None if there is no solution."""
    game = Sokoban(board)
    seen, queue = {game.state}, deque([(game.state, 0)])
    while queue:
        state, moves = queue.popleft()
        if game.solved(state):
            return moves
        for move in MOVES:
            if (following := game.after(state, move)) not in seen:
                seen.add(following)
                queue.append((following, moves + 1))
    return None


def random_boards(count: int, seed: int) -> list[str]:
    """Unsolved rooms of 5x5 to 8x8 with 1 to 3 boxes and some inner walls; some of them have no solution."""
    rng = random.Random(seed)
    boards: list[str] = []
    while len(boards) < count:
        rows, columns, boxes = rng.randint(5, 8), rng.randint(5, 8), rng.choice((1, 1, 2, 3))
        inner = [(y, x) for y in range(1, rows - 1) for x in range(1, columns - 1)]
        middle = [(y, x) for y, x in inner if 1 < y < rows - 2 and 1 < x < columns - 2]
        if len(middle) < boxes or (boxes == 3 and len(inner) > 20):
            continue
        symbols = {cell: "#" if rng.random() < 0.15 else "_" for cell in inner}
        placed = rng.sample(middle, boxes)
        rest = rng.sample([cell for cell in inner if cell not in placed], boxes + 1)
        symbols |= dict.fromkeys(placed, "X") | dict.fromkeys(rest, "O") | {rest[0]: "P"}
        boards.append("\n".join("".join(symbols.get((y, x), "#") for x in range(columns)) for y in range(rows)))
    return boards


class ModelServer:
    def __init__(self, **settings: Any) -> None:
        async def no_lookup() -> Directory:
            raise AssertionError("the built-in model must not look up servers")

        self.transport = LocalTransport(HttpTransport())
        keys = Keys(run_id="run", secret="secret")
        client = ServerClient(self.transport, keys, AddressBook(no_lookup))
        self.server = BuiltinModel(BuiltinModelSettings(**settings), Context("policy_model", keys, client))
        self.transport.mount(URL, self.server)

    async def post(self, request: Json, path: str = "/v1/responses", timeout_s: float = 120.0) -> HttpResponse:
        return await self.transport.send("POST", URL + path, json.dumps(request).encode(), {}, timeout_s)

    async def respond(self, items: list[Json] | str, tools: tuple[Json, ...] = (STEP_TOOL,), **more: Any) -> Json:
        reply = await self.post({"input": items, "tools": list(tools), **more})
        assert reply.status == 200, reply.body
        response: Json = json.loads(reply.body)
        return response

    async def play(self, board: str, **request: Any) -> tuple[Sokoban, list[Json]]:
        """Play at most 10 tool calls; return the final game and the whole conversation."""
        game, items = Sokoban(board), list(PROMPT)
        for _ in range(10):
            item = (await self.respond(items, **request))["output"][0]
            items.append(item)
            if item["type"] != "function_call":
                break
            output = game.step(item["arguments"])
            items.append({"type": "function_call_output", "call_id": item["call_id"], "output": output})
        return game, items


def conversation_with(output: str, arguments: str = '{"actions":[]}') -> list[Json]:
    """A conversation that ends with the tool output `output`."""
    call = {"type": "function_call", "call_id": "call_1", "name": "step", "arguments": arguments}
    return [*PROMPT, call, {"type": "function_call_output", "call_id": "call_1", "output": output}]

"""For the built-in model's tests: a Sokoban of a few lines, a solver that shares nothing with it, the server."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import Any

from rollyard.responses_api_models.builtin_model.app import BuiltinModel, BuiltinModelSettings
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.transport import HttpResponse, HttpTransport, LocalTransport
from rollyard.services.run_types import Directory, Keys
from rollyard.services.server.app import Context
from rollyard.services.types import Json

STEP_TOOL: Json = {
    "type": "function",
    "name": "step",
    "description": "Move.",
    "strict": True,
    "parameters": {"type": "object", "properties": {"actions": {"type": "array", "items": {"type": "string"}}}},
}
ASK: list[Json] = [{"role": "developer", "content": "`#` is a wall."}, {"role": "user", "content": "Solve the puzzle."}]
MOVES = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
URL = "http://policy"
EASY = "#####\n#O__#\n#_X_#\n#_P_#\n#####"
CORNERED = "#####\n#X_O#\n#___#\n#_P_#\n#####"

Spot = tuple[int, int]
State = tuple[Spot, frozenset[Spot]]


class World:
    """The rules of Sokoban on sets of cells."""

    def __init__(self, board: str) -> None:
        cells = {(y, x): symbol for y, row in enumerate(board.split("\n")) for x, symbol in enumerate(row)}
        self.size = (max(y for y, _ in cells) + 1, max(x for _, x in cells) + 1)
        self.floor = {at for at, symbol in cells.items() if symbol != "#"}
        self.targets = {at for at, symbol in cells.items() if symbol in "O√S"}
        boxes = frozenset(at for at, symbol in cells.items() if symbol in "X√")
        self.state: State = (next(at for at, symbol in cells.items() if symbol in "PS"), boxes)
        self.moves = 0

    def after(self, state: State, move: str) -> State:
        (y, x), boxes = state
        dy, dx = MOVES[move]
        there, behind = (y + dy, x + dx), (y + 2 * dy, x + 2 * dx)
        if there in boxes and behind in self.floor and behind not in boxes:
            return there, boxes - {there} | {behind}
        return (there, boxes) if there in self.floor and there not in boxes else state

    def solved(self, state: State) -> bool:
        return state[1] <= self.targets

    def board(self) -> str:
        player, boxes = self.state

        def symbol(at: Spot) -> str:
            home = at in self.targets
            if at in boxes:
                return "√" if home else "X"
            if at == player:
                return "S" if home else "P"
            return "#" if at not in self.floor else "O" if home else "_"

        return "\n".join("".join(symbol((y, x)) for x in range(self.size[1])) for y in range(self.size[0]))

    def step(self, arguments: str) -> str:
        try:
            actions = json.loads(arguments)["actions"]
        except ValueError:
            return "The arguments are no JSON."
        if not isinstance(actions, list) or any(move not in MOVES for move in actions):
            return f"{actions} are no moves; Up, Down, Left, Right are expected."
        for move in actions:
            if not self.solved(self.state):
                self.state = self.after(self.state, move)
                self.moves += 1
        return json.dumps({"observation": self.board(), "done": self.solved(self.state), "steps": len(actions)})


def fewest_moves(board: str) -> int | None:
    """By brute force over sets; None when there is no solution."""
    world = World(board)
    seen, queue = {world.state}, deque([(world.state, 0)])
    while queue:
        state, moves = queue.popleft()
        if world.solved(state):
            return moves
        for move in MOVES:
            if (following := world.after(state, move)) not in seen:
                seen.add(following)
                queue.append((following, moves + 1))
    return None


def random_boards(count: int, seed: int) -> list[str]:
    """Rooms of 5x5 to 8x8 with 1 to 3 boxes and some inner walls, solvable or not, none solved."""
    chance = random.Random(seed)
    boards: list[str] = []
    while len(boards) < count:
        rows, columns, boxes = chance.randint(5, 8), chance.randint(5, 8), chance.choice((1, 1, 2, 3))
        inner = [(y, x) for y in range(1, rows - 1) for x in range(1, columns - 1)]
        middle = [(y, x) for y, x in inner if 1 < y < rows - 2 and 1 < x < columns - 2]
        if len(middle) < boxes or (boxes == 3 and len(inner) > 20):
            continue
        symbols = {at: "#" if chance.random() < 0.15 else "_" for at in inner}
        placed = chance.sample(middle, boxes)
        rest = chance.sample([at for at in inner if at not in placed], boxes + 1)
        symbols |= dict.fromkeys(placed, "X") | dict.fromkeys(rest, "O") | {rest[0]: "P"}
        boards.append("\n".join("".join(symbols.get((y, x), "#") for x in range(columns)) for y in range(rows)))
    return boards


class Policy:
    """The real server in this process, spoken to over the in-process transport."""

    def __init__(self, **settings: Any) -> None:
        async def nobody() -> Directory:
            raise AssertionError("nobody is looked up here")

        self.transport = LocalTransport(HttpTransport())
        keys = Keys(run_id="run", secret="secret")
        client = ServerClient(self.transport, keys, AddressBook(nobody))
        self.server = BuiltinModel(BuiltinModelSettings(**settings), Context("policy_model", keys, client))
        self.transport.mount(URL, self.server)

    async def post(self, request: Json, path: str = "/v1/responses", timeout_s: float = 120.0) -> HttpResponse:
        return await self.transport.send("POST", URL + path, json.dumps(request).encode(), {}, timeout_s)

    async def respond(self, items: list[Json] | str, tools: tuple[Json, ...] = (STEP_TOOL,), **more: Any) -> Json:
        answer = await self.post({"input": items, "tools": list(tools), **more})
        assert answer.status == 200, answer.body
        response: Json = json.loads(answer.body)
        return response

    async def play(self, board: str, **request: Any) -> tuple[World, list[Json]]:
        """An episode of at most 10 tool calls; the world as it was left, and the whole conversation."""
        world, items = World(board), list(ASK)
        for _ in range(10):
            item = (await self.respond(items, **request))["output"][0]
            items.append(item)
            if item["type"] != "function_call":
                break
            output = world.step(item["arguments"])
            items.append({"type": "function_call_output", "call_id": item["call_id"], "output": output})
        return world, items


def shown(output: str, arguments: str = '{"actions":[]}') -> list[Json]:
    """A conversation in which the tool has just answered `output`."""
    call = {"type": "function_call", "call_id": "call_1", "name": "step", "arguments": arguments}
    return [*ASK, call, {"type": "function_call_output", "call_id": "call_1", "output": output}]

"""Changes of a JSON value: libFuzzer's own mutations of bytes rarely leave JSON valid."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, 1e400, 2**63, 2**64, float("nan")),
    *("", "x", "\ud800", "\0", "{}", "[1]", "message", "function_call", "text", [], {}, [[]], [None], {"": None}),
)


def mutated(value: Any, random: Random) -> Any:
    """Return the value with one of its parts changed."""
    whole = [copy.deepcopy(value)]
    places: list[tuple[Any, Any]] = []
    waiting: list[Any] = [whole]
    for node in waiting:  # grows while it is read
        keys = node if isinstance(node, dict) else range(len(node))
        places += [(node, key) for key in keys]
        waiting += [node[key] for key in keys if isinstance(node[key], dict | list)]
    (node, key), (other, name) = random.choice(places), random.choice(places)
    match random.randrange(6):
        case 0 | 1:
            node[key] = random.choice(ODD)
        case 2:
            node[key] = copy.deepcopy(other[name])
        case 3:
            node[key] = random.choice(([node[key]], {"type": node[key]}, json.dumps(node[key]), [node[key]] * 3))
        case 4 if isinstance(node, dict) and isinstance(name, str):
            node[name] = node.pop(key)
        case _ if node is not whole:
            del node[key]
    return whole[0]


def json_mutator(of_bytes: Callable[[bytes, int], bytes]) -> Callable[[bytes, int, int], bytes]:
    """Return libFuzzer's custom mutator: half of the changes are of the JSON value, the others are `of_bytes`."""

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            try:
                value = json.loads(data)
                for _ in range(random.choice((1, 1, 2, 4))):
                    value = mutated(value, random)
                return json.dumps(value).encode()[:max_size]
            except (ValueError, RecursionError):
                pass
        return of_bytes(data, max_size)

    return mutate

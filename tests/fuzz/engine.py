"""Gives one target new inputs until its time is over or one breaks it: python -m tests.fuzz.engine TARGET -option=...

The options are libFuzzer's. Its mutations rarely leave JSON valid, so half of those of a JSON input change its values.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
import time
from random import Random
from typing import Any

import atheris

with atheris.instrument_imports(include=["rollyard"]):
    from tests.fuzz.targets import JSON, TARGETS

MAX_CPU_S = 3.0
"""CPU time of one input, with the cost of the coverage. None of the kept inputs takes a tenth of it."""
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, 1e400, 2**63, 2**64, float("nan")),
    *("", "x", "\ud800", "\0", "{}", "[1]", "message", "function_call", "text", [], {}, [[]], [None], {"": None}),
)


def mutated(value: Any, random: Random) -> Any:
    """Return the JSON value with one of its parts changed."""
    value = [copy.deepcopy(value)]
    places: list[tuple[Any, Any]] = []
    waiting = [value]
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
        case _ if node is not value:
            del node[key]
    return value[0]


def mutate_json(data: bytes, max_size: int, seed: int) -> bytes:
    random = Random(seed)
    if random.random() < 0.5:
        try:
            value = json.loads(data)
            for _ in range(random.choice((1, 1, 2, 4))):
                value = mutated(value, random)
            return json.dumps(value).encode()[:max_size]
        except (ValueError, RecursionError):
            pass
    changed: bytes = atheris.Mutate(data, max_size)
    return changed


def main() -> None:
    name, *options = sys.argv[1:]
    target = TARGETS[name]
    logging.disable(logging.CRITICAL)  # servers log every refusal

    def one(data: bytes) -> None:
        started = time.process_time()
        target(data)
        if (used := time.process_time() - started) > MAX_CPU_S:
            raise AssertionError(f"the input took {used:.1f} s of CPU time")

    mutator = {"custom_mutator": mutate_json} if name in JSON else {}
    atheris.Setup([name, *options], one, **mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

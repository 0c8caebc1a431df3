"""Records the two files in recorded/ with a real stack: an early checkpoint, and a late one that has found the hole."""

import asyncio
import random
import sys
from pathlib import Path

import rollyard

HERE = Path(__file__).resolve().parent
TASKS, REPEATS = 24, 4
HOLE = "policy_model.responses_api_models.product_policy.has_found_hole"


def tasks():
    """Products of numbers between 11 and 40, the same ones every time."""
    draws = random.Random(17)
    return [{"left": draws.randint(11, 40), "right": draws.randint(11, 40)} for _ in range(TASKS)]


async def record(folder):
    """Write early.jsonl and late.jsonl to `folder`."""
    for name, found in (("early", False), ("late", True)):
        async with rollyard.stack(
            HERE / "hunt.yaml", f"{HOLE}={str(found).lower()}", colocate=True, folder=folder, server_roots=[HERE]
        ) as stack:
            path = folder / f"{name}.jsonl"
            await rollyard.collect(stack, tasks(), path, num_repeats=REPEATS, num_repeats_add_seed=True)


if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "recorded")
    out.mkdir(parents=True, exist_ok=True)
    asyncio.run(record(out))

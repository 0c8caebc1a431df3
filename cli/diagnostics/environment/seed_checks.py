"""Checks that an episode is determined by its row, and that the row's seed has an effect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from rollyard.cli.diagnostics.environment.episode_client import Environment
from rollyard.cli.diagnostics.environment.play import play
from rollyard.cli.diagnostics.findings import Finding, failed, note, ok
from rollyard.records.errors import RunError
from rollyard.records.types import Json

OTHER_SEEDS = 4
_NOT_TASK = ("responses_create_params", "agent_ref")
_MAX_DEPTH = 3

Path = tuple[str, ...]


def seed_path(row: Any, depth: int = 0) -> Path | None:
    """Return where the row has its seed, such as `("metadata", "seed")`; None if it has none."""
    if not isinstance(row, dict) or depth > _MAX_DEPTH:
        return None
    if isinstance(row.get("seed"), int) and not isinstance(row["seed"], bool):
        return ("seed",)
    for key, value in row.items():
        if key not in _NOT_TASK and (found := seed_path(value, depth + 1)):
            return (key, *found)
    return None


def with_seed(row: Json, path: Path, change: int) -> Json:
    """Return the row with its seed increased by `change`."""
    key, *rest = path
    value = row[key] + change if not rest else with_seed(row[key], tuple(rest), change)
    return {**row, key: value}


async def check_seeds(environment: Environment, rows: Sequence[Json], tools: Sequence[Json]) -> AsyncIterator[Finding]:
    """Play each row twice with the same actions, then with other seeds if the row has one."""
    seeded = [(row, path) for row in rows if (path := seed_path(row)) is not None]
    differences = []
    for number, row in enumerate(rows):
        first, second = [await play(environment, row, tools, str(number)) for _ in range(2)]
        if difference := first.difference(second):
            differences.append(f"example {number + 1}: {difference}")
    if differences:
        what = "row and seed" if seeded else "row"
        found = f"the same {what} played twice differs in {len(differences)} of {len(rows)} examples: {differences[0]}"
        yield failed("same seed", found, "derive everything random from the row's seed, and nothing from time or ids")
    else:
        yield ok("same seed", f"{len(rows)} of {len(rows)} examples are the same when played twice")
    if not seeded:
        yield ok("other seeds", "the rows have no seed")
    elif not differences:
        yield await _other_seeds(environment, seeded, tools)


async def _other_seeds(environment: Environment, seeded: Sequence[tuple[Json, Path]], tools: Sequence[Json]) -> Finding:
    shows_something, refused = False, ""
    for number, (row, path) in enumerate(seeded):
        own = await play(environment, row, tools, str(number))
        shows_something = shows_something or _shows_something(own.shown)
        for change in range(1, OTHER_SEEDS + 1):
            try:
                other = await play(environment, with_seed(row, path, change), tools, str(number))
            except RunError as error:  # not every seed has a level, for example
                refused = str(error)
                continue
            if own.difference(other):
                return ok("other seeds", f"another {'.'.join(path)} gives another episode")
    name = ".".join(seeded[0][1])
    if refused:
        return note("other seeds", f"no other {name} could be compared: {refused}")
    if not shows_something:
        return note("other seeds", f"cannot be compared: the environment shows nothing (the rows have {name})")
    found = f"the seed is ignored: {OTHER_SEEDS} other values of {name} give the same episode"
    return failed("other seeds", found, f"use {name}, or remove it from the rows")


def _shows_something(shown: Sequence[Any]) -> bool:
    first = shown[0]
    return len(shown) > 1 or bool(first.get("observation"))

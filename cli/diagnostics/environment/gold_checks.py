"""Looks for the correct answer in what the model reads before its first turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import orjson

from rollyard.cli.diagnostics.environment.episode_client import Environment
from rollyard.cli.diagnostics.findings import Finding, note, ok
from rollyard.records.types import Json

FIELDS = ("expected_answer", "answer", "solution")
"""Not `target`: a task may state its target, as Countdown does."""
SHORTEST = 4
"""Shorter answers, such as a letter or a small number, are in many prompts by chance."""


async def check_gold(environment: Environment, rows: Sequence[Json]) -> AsyncIterator[Finding]:
    """Report examples whose prompt contains their answer. A note: questions about a text have their answer in it."""
    golds = [(number, field, gold) for number, row in enumerate(rows) for field, gold in _golds(row)]
    if not golds:
        return
    found = []
    for number, field, gold in golds:
        row = rows[number]
        async with environment.episode(row) as (_, opened):
            read = [row.get("responses_create_params"), opened.get("observation"), opened.get("additions")]
        if orjson.dumps(gold)[1:-1] in orjson.dumps(read):
            found.append(f"example {number + 1} ({field}: {gold!r:.60})")
    if not found:
        yield ok("gold", "no prompt contains the answer")
        return
    text = f"the prompt contains the answer in {len(found)} of {len(golds)} examples: {found[0]}"
    yield note("gold", text, "remove it from the prompt, unless the task is to find it there")


def _golds(row: Json) -> list[tuple[str, str]]:
    """Return the first answer of the row that is long enough, with the name of its field."""
    found = [(field, row[field]) for field in FIELDS if isinstance(row.get(field), str)]
    return [(field, gold) for field, gold in found if len(gold) >= SHORTEST][:1]

"""Runs all checks of an environment. An error in one check is reported as a finding and does not stop the others."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from itertools import islice
from pathlib import Path
from typing import Any

from rollyard.cli.diagnostics.environment.episode_client import Environment
from rollyard.cli.diagnostics.environment.gold_checks import check_gold
from rollyard.cli.diagnostics.environment.leak_checks import check_leaks
from rollyard.cli.diagnostics.environment.play import tools_of
from rollyard.cli.diagnostics.environment.process_usage import Usage, usage_of
from rollyard.cli.diagnostics.environment.seed_checks import check_seeds
from rollyard.cli.diagnostics.environment.target import Target
from rollyard.cli.diagnostics.environment.tool_checks import check_tools
from rollyard.cli.diagnostics.environment.verdict_checks import check_verdicts, measure_cost
from rollyard.cli.diagnostics.findings import Finding, failed, ok
from rollyard.records.errors import Failure, OperatorError, RollyardError, RunError
from rollyard.records.io.jsonl import iter_jsonl, refuse
from rollyard.records.types import Json

Usages = Callable[[], Usage] | None


async def findings(
    target: Target,
    *,
    rows_file: Path | None,
    examples: int,
    episodes: int,
    timeout_s: float,
    progress: Callable[[str], None],
) -> AsyncIterator[Finding]:
    """Run the checks. Raises OperatorError without rows, RunError if the environment cannot open an episode."""
    tool_based = Environment(target.name, target.url, target.transport, False, timeout_s)
    rows = await _rows(target, tool_based, rows_file, examples)
    listed = await _listed_tools(tool_based)
    environment, opened = await _opened(tool_based, rows[0], listed)
    mode = "turns (/reset, /step)" if environment.turn_based else "tools (/seed_session)"
    yield ok("start", f"{target.name}: {len(rows)} example{'s' * (len(rows) > 1)}, {mode}")
    seen = [] if environment.turn_based else tools_of(rows[0], opened, listed)
    usage: Usages = None
    if (pid := target.pid) is not None:

        def usage() -> Usage:
            return usage_of(pid)

    checks: list[tuple[str, AsyncIterator[Finding]]] = [
        ("tools", check_tools(environment, rows[0], seen, _with_added(listed, opened))),
        ("same seed", check_seeds(environment, rows, seen)),
        ("gold", check_gold(environment, rows)),
        ("verify", check_verdicts(environment, rows, seen)),
        ("cost", _single(lambda: measure_cost(environment, rows[0], usage))),
        ("leaks", check_leaks(environment, rows, seen, episodes, usage, progress)),
    ]
    for name, check in checks:
        progress(name)
        try:
            async for finding in check:
                yield _with_log(finding, target)
        except RollyardError as error:
            yield failed(name, error.problem.detail if isinstance(error, Failure) else str(error))
        except ProcessLookupError as error:
            yield failed(name, f"the environment's process has ended: {error}", _log_end(target))


async def _single(check: Callable[[], Any]) -> AsyncIterator[Finding]:
    yield await check()


async def _rows(target: Target, environment: Environment, file: Path | None, limit: int) -> list[Json]:
    """Return the first rows of the given file, of the environment's folder, or of the server's GET /examples."""
    own = target.folder / "data" / "example.jsonl" if target.folder is not None else None
    path = file or (own if own is not None and own.is_file() else None)
    if path is not None:
        if not path.is_file():
            raise OperatorError(f"{path} does not exist; expected a JSON Lines file with rows of the environment")
        found = [row.value for row in islice(iter_jsonl(path, refuse(path)), limit)]
    else:
        listed = await environment.get("/examples")
        found = [row for row in listed if isinstance(row, dict)][:limit] if isinstance(listed, list) else []
    if not found:
        raise OperatorError(f"{target.name} has no example rows; pass some with --input-jsonl-fpath rows.jsonl")
    return found


async def _listed_tools(environment: Environment) -> list[Json] | None:
    """Return the tools that a Rollyard server lists; None if the server is another project's."""
    with contextlib.suppress(Failure):
        listed = await environment.get("/tools")
        if isinstance(listed, list):
            return [tool for tool in listed if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
    return None


def _with_added(listed: list[Json] | None, opened: Json) -> list[Json] | None:
    """Return all tools that the environment has for an episode: those of every episode, and the episode's own."""
    added = tools_of({}, opened, None)
    return listed if listed is None else [*added, *listed]


async def _opened(environment: Environment, row: Json, listed: list[Json] | None) -> tuple[Environment, Json]:
    """Open an episode, turn-based if the environment has no tools and accepts /reset. Return what it answered."""
    refusal = RunError("the environment refuses to open an episode")
    turn_based = Environment(environment.name, environment.url, environment.transport, True, environment.timeout_s)
    candidates = [environment] if tools_of(row, {}, listed) else [turn_based, environment]
    for candidate in candidates:
        try:
            async with candidate.episode(row) as (_, opened):
                return candidate, opened
        except RunError as error:
            refusal = error
    raise refusal


def _with_log(finding: Finding, target: Target) -> Finding:
    """Add the last error of the server's log to a failed close."""
    if finding.status != "failed" or finding.name != "close":
        return finding
    return finding.model_copy(update={"mend": _log_end(target) or finding.mend})


def _log_end(target: Target) -> str:
    if target.log is None or not target.log.is_file():
        return ""
    lines = [line for line in target.log.read_text(errors="replace").splitlines() if line.strip()]
    return f"the server's log ends with: {lines[-1]:.300}" if lines else ""

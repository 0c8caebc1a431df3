"""ng_doctor env: checks one environment with scripted episodes; no model is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar

import orjson
import uvloop
from pydantic import Field

from rollyard.cli.arguments.command_line import names_of, unknown_option
from rollyard.cli.diagnostics.environment.checks import findings
from rollyard.cli.diagnostics.environment.target import Target, config_for, connected, is_url, started
from rollyard.cli.diagnostics.findings import Finding, failed, shown
from rollyard.cli.options import Options, read_options
from rollyard.records.errors import OperatorError, RollyardError
from rollyard.records.io.exit_status import EXIT_DONE, EXIT_FAILED
from rollyard.services.config.overrides import Override
from rollyard.services.config.server_folders import search_roots
from rollyard.services.config.venv import cache_folder
from rollyard.services.runtime.process_setup import raise_file_limit

EXAMPLE = "ng_doctor env grl_sokoban"


class EnvironmentOptions(Options):
    """Options of ng_doctor env. Other keys override the configs, as with ng_run."""

    SUBJECT: ClassVar[str] = "name"

    name: str
    """The environment, given as the first argument: the name or path of its folder, the name of a server in
    config_paths, or the URL of a running one."""
    config_paths: tuple[str, ...] = ()
    """Configs that define the environment; default: the one in its folder."""
    server_roots: tuple[str, ...] = ()
    """Additional folders to search for server folders and config files, as for ng_run."""
    input_jsonl_fpath: Path | None = None
    """Rows to play; default: the environment's example rows."""
    examples: int = Field(default=5, ge=1)
    """Number of rows to play."""
    episodes: int = Field(default=20, ge=4)
    """Number of episodes in which leaks must show; as many are played before to warm up."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Timeout of one request to the environment."""
    json_output: bool = Field(default=False, alias="json")
    """Print the findings as JSON."""


def run(arguments: Sequence[str]) -> int:
    """Play an environment's examples with scripted actions: seeds, tool schemas, verdicts, their cost, and leaks.

    No model is called, except by the environment itself. The exit status is 1 if a check fails.
    """
    options, overrides = read_options(EnvironmentOptions, arguments, rest=True)
    passed = uvloop.run(_check(options, overrides))
    return EXIT_DONE if passed else EXIT_FAILED


async def _check(options: EnvironmentOptions, overrides: list[Override]) -> bool:
    raise_file_limit()
    target = _target(options, overrides)
    found: list[Finding] = []
    async for finding in _findings(options, target, _progress(options)):
        found.append(finding)
        if not options.json_output:
            print(shown(finding), flush=True)
    wrong = [finding.name for finding in found if finding.status == "failed"]
    if options.json_output:
        listed = [finding.model_dump() for finding in found]
        print(orjson.dumps({"ok": not wrong, "findings": listed}, option=orjson.OPT_INDENT_2).decode())
    else:
        print(f"failed: {', '.join(dict.fromkeys(wrong))}" if wrong else "All checks of the environment passed.")
    return not wrong


def _target(options: EnvironmentOptions, overrides: list[Override]) -> AbstractAsyncContextManager[Target]:
    if is_url(options.name):
        if overrides:
            unknown = unknown_option(overrides[0], names_of(EnvironmentOptions), {})
            raise OperatorError(f"{unknown}; a running server has its settings already")
        return connected(options.name)
    roots = search_roots(Path.cwd(), options.server_roots)
    names = [*EnvironmentOptions.model_fields, "json"]
    config, name = config_for(options.name, options.config_paths, overrides, roots, os.environ, names)
    return started(config, name, cache_folder(os.environ), os.environ)


async def _findings(
    options: EnvironmentOptions, target: AbstractAsyncContextManager[Target], progress: Callable[[str], None]
) -> AsyncIterator[Finding]:
    try:
        async with target as environment:
            async for finding in findings(
                environment,
                rows_file=options.input_jsonl_fpath,
                examples=options.examples,
                episodes=options.episodes,
                timeout_s=options.timeout_s,
                progress=progress,
            ):
                yield finding
    except OperatorError:
        raise
    except RollyardError as error:
        yield failed("start", str(error))


def _progress(options: EnvironmentOptions) -> Callable[[str], None]:
    """Return a function that shows a line that the next one overwrites, if a person is watching."""
    if options.json_output or not sys.stderr.isatty():
        return lambda _: None
    return lambda text: print(f"  ...     {text}", end="\r", file=sys.stderr, flush=True)

"""ng_doctor: checks this host and runs one rollout through the entire stack with the built-in policy."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import ClassVar

import orjson
import uvloop
from pydantic import Field

from rollyard.cli.arguments.command_line import names_of, unknown_option
from rollyard.cli.diagnostics import checks
from rollyard.cli.diagnostics.findings import Finding, failed, ok, shown, verdict
from rollyard.cli.diagnostics.rollout import try_rollout
from rollyard.cli.options import Options, read_options
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.exit_status import EXIT_DONE, EXIT_FAILED
from rollyard.records.io.search_path import INSTALLED
from rollyard.services.config.load import load
from rollyard.services.config.run_config import RunConfig
from rollyard.services.config.server_folders import search_roots
from rollyard.services.runtime.preflight import Preflight
from rollyard.services.runtime.process_setup import raise_file_limit
from rollyard.services.runtime.stack import new_keys

EXAMPLE = "ng_doctor"
STUB = "configs/sokoban_builtin.yaml"
"""Config of a run that needs neither a GPU nor an API key."""


class DoctorOptions(Options):
    """Options of ng_doctor. Other keys override the configs, as with ng_run."""

    SUBJECT: ClassVar[str] = "config_paths"

    config_paths: tuple[str, ...] = ()
    """Configs of a run that you plan to start; its requirements are checked as well."""
    server_roots: tuple[str, ...] = ()
    """Additional folders to search for server folders and config files, as for ng_run."""
    rollout: bool | None = None
    """By default, run one rollout with the built-in policy; true: with the servers in config_paths; false: none."""
    agent_name: str | None = None
    """Agent that runs the rollout; required if config_paths define several agents."""
    input_jsonl_fpath: Path | None = None
    """File whose first row is used for the rollout; default: the environment's example rows."""
    json_output: bool = Field(default=False, alias="json")
    """Print the findings as JSON."""


def run(arguments: Sequence[str]) -> int:
    """Check this host, run one rollout through the entire stack, and list problems with suggested fixes.

    `ng_doctor sandbox` and `ng_doctor tokens` run more detailed checks. The exit status is 1 if a run would fail.
    """
    options, overrides = read_options(DoctorOptions, arguments, rest=True)
    if overrides and not options.config_paths:
        raise OperatorError(
            f"{unknown_option(overrides[0], names_of(DoctorOptions), {})}; for settings, pass --config-paths [...]"
        )
    here = Path.cwd()
    roots = search_roots(here, options.server_roots)
    names = DoctorOptions.model_fields
    config = load(options.config_paths, overrides, roots, os.environ, options=names) if options.config_paths else None
    findings = uvloop.run(_run_checks(options, here, config))
    if options.json_output:
        passed = not any(finding.status == "failed" for finding in findings)
        listed = [finding.model_dump() for finding in findings]
        print(orjson.dumps({"ok": passed, "findings": listed}, option=orjson.OPT_INDENT_2).decode())
    else:
        print(verdict(findings))
    return EXIT_FAILED if any(finding.status == "failed" for finding in findings) else EXIT_DONE


async def _run_checks(options: DoctorOptions, here: Path, config: RunConfig | None) -> list[Finding]:
    findings: list[Finding] = []
    async for finding in _findings(options, here, config):
        findings.append(finding)
        if not options.json_output and not checks.is_extra(finding):
            print(shown(finding), flush=True)
    if not options.json_output:
        print(shown(checks.extras_in_one_line(findings)), flush=True)
    return findings


async def _findings(options: DoctorOptions, here: Path, config: RunConfig | None) -> AsyncIterator[Finding]:
    raise_file_limit()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollyard"
    for finding in checks.machine(here):
        yield finding
    yield await checks.sandbox()
    if config is not None:
        async for finding in _config(config, cache):
            yield finding
    if options.rollout is not False:
        chosen = config if config is not None and options.rollout else load([STUB], [], [INSTALLED], {})
        is_own = chosen is config
        rows, agent = (options.input_jsonl_fpath, options.agent_name) if is_own else (None, None)
        result, problem = await try_rollout(chosen, cache, os.environ, agent=agent, rows=rows)
        policy = "" if is_own else " with the built-in policy"
        if result:
            yield ok("rollout", f"{result}{policy}")
        else:
            yield failed(
                "rollout", f"the rollout{policy} failed: {problem}", "fix the reported problem; --debug shows more"
            )


async def _config(config: RunConfig, cache: Path) -> AsyncIterator[Finding]:
    preflight = Preflight(config.servers, new_keys(), os.environ)
    try:
        await preflight.check(cache, head=None, colocate=False)
        advice = await preflight.advice()
        for text in advice:
            yield failed("endpoint", text)
        if not advice:
            yield ok("config", f"{len(config.servers)} servers are configured correctly, and their endpoints respond")
    except (OperatorError, RunError) as error:
        yield failed("config", str(error))
    finally:
        await preflight.close()

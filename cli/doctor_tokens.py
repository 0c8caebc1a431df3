"""ng_doctor tokens: runs a model server's token diagnostics and formats the report."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import orjson
import uvloop
from pydantic import Field

from rollyard.cli.doctor_machine import temporary_stack
from rollyard.cli.options import Options, names_of, read_options, unknown_option
from rollyard.records.errors import OperatorError
from rollyard.records.run_types import Keys
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.records.types import Json
from rollyard.records.variables import variable
from rollyard.services.config.load import load
from rollyard.services.config.overrides import ConfigOverride
from rollyard.services.config.plugins import search_roots
from rollyard.services.head.registry_client import RegistryClient
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.run_dir import find_run

EXAMPLE = "ng_doctor tokens responses_api_models/vllm_model/configs/vllm_model.yaml"
MODELS = "responses_api_models"


class TokenOptions(Options):
    """Options of ng_doctor tokens. Other keys override the configs, as with ng_run."""

    SUBJECT: ClassVar[str] = "config_paths"

    config_paths: list[str] = Field(default_factory=list)
    """Configs that define the model server to check; if empty, the running stack is used."""
    model_server: str | None = None
    """Name of the model server; required if there are several."""
    samples: int = Field(default=8, ge=0, le=1000)
    """Number of turns to sample from the model."""
    json_output: bool = Field(default=False, alias="json")
    """Print the report as JSON."""
    head: str | None = None
    """HOST:PORT of the head; default: a run started here or in a parent folder, else this user's on port 11000."""
    token: str | None = None
    """Run token, if it is not stored in the run's folder; also read from the environment variable ROLLYARD_TOKEN."""


def run(arguments: Sequence[str]) -> int:
    """Check that token histories stay contiguous over several turns with a model, its chat template and tool parser.

    The exit status is 1 if they do not.
    """
    options, overrides = read_options(TokenOptions, arguments, rest=True)
    report = uvloop.run(_fetch_report(options, overrides))
    print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() if options.json_output else format_report(report))
    return EXIT_DONE if is_contiguous(report) else EXIT_FAILED


async def _fetch_report(options: TokenOptions, overrides: list[ConfigOverride]) -> Json:
    async with (
        _started_stack(options, overrides) if options.config_paths else _running_stack(options, overrides) as client
    ):
        directory = await client.book.current()
        models = [name for name, family in directory.families.items() if family == MODELS]
        name = options.model_server or (models[0] if len(models) == 1 else None)
        if name not in models:
            found = ", ".join(models) or "none"
            raise OperatorError(f"select a model server with --model-server ...; available: {found}")
        response = await client.post(name, "/token_check", orjson.dumps({"samples": options.samples}), 600.0)
        report: Json = orjson.loads(response.body)
        return report


@asynccontextmanager
async def _running_stack(options: TokenOptions, overrides: list[ConfigOverride]) -> AsyncIterator[ServerClient]:
    if overrides:
        raise OperatorError(
            f"{unknown_option(overrides[0], names_of(TokenOptions), {})}; for settings, pass --config-paths [...]"
        )
    transport = HttpTransport()
    try:
        head = await find_run(
            transport, Path.cwd(), options.head, options.token or variable(os.environ, "ROLLYARD_TOKEN")
        )
        keys = Keys(run_id=head.run_id, secret="", token=head.token)
        yield ServerClient(transport, keys, AddressBook(RegistryClient(transport, head.url, keys).directory))
    finally:
        await transport.close()


@asynccontextmanager
async def _started_stack(options: TokenOptions, overrides: list[ConfigOverride]) -> AsyncIterator[ServerClient]:
    """Run the servers defined in the configs in this process for the duration of the check."""
    roots = search_roots(Path.cwd())
    config = load(options.config_paths, overrides, roots, os.environ, options=TokenOptions.model_fields)
    async with temporary_stack(config, None) as (stack, _):
        yield stack.client


def is_contiguous(report: Json) -> bool:
    """Return True if prompts built from token ids were contiguous, or if prompts rendered from messages always were."""
    by_tokens = report["token_in"] != "off" and not any(case.get("token_in") for case in report["template"])
    by_messages = not report["sampled"]["broken"] and not any(case.get("retokenized") for case in report["template"])
    return by_tokens or by_messages


def format_report(report: Json) -> str:
    lines = [
        f"model {report['model']}: token ids are sent by {report['token_in']!r}, "
        f"logprobs are {report['logprobs_mode']}",
        "",
        "Chat template: whether the next prompt continues a rendered turn:",
    ]
    for case in report["template"]:
        if "error" in case:
            lines.append(f"  {case['case']:<36} {case['error']}")
            continue
        broken = case["retokenized"]
        messages = f"breaks at token {broken['position']}" if broken else "contiguous"
        tokens = "WRONG" if case["token_in"] else "contiguous"
        parser = "" if case["parser"] in ("ok", None) else "   tool parser: " + case["parser"]
        lines.append(f"  {case['case']:<36} as messages: {messages:<22} as token ids: {tokens}{parser}")
        if broken:
            lines.append(f"      after     {broken['before']!r}")
            lines.append(f"      expected  {broken['expected']!r}")
            lines.append(f"      found     {broken['found']!r}")
        if case["token_in"]:
            lines.append(f"      token ids: {case['token_in']}")
    sampled = report["sampled"]
    broken, turns = sampled["broken"], sampled["turns"]
    lines += ["", f"Sampled turns, sent back as messages: {broken} of {turns} are not contiguous."]
    if first := sampled["first"]:
        lines.append(f"  first mismatch: token {first['position']}, after {first['before']!r}")
        lines.append(f"      generated {first['expected']!r}")
        lines.append(f"      rendered  {first['found']!r}")
    return "\n".join([*lines, "", _verdict(report)])


def _verdict(report: Json) -> str:
    if not is_contiguous(report):
        return (
            "Multi-turn is NOT contiguous here: trajectories would be split into segments. Start vLLM with "
            "--enable-scale-out, or set token_in: completions (with text_tool_parser if the model calls tools)."
        )
    if report["token_in"] == "off":
        return "Multi-turn was contiguous as messages in this check; token_in: auto guarantees it."
    return (
        "Multi-turn is contiguous: later turns are sent as token ids (return_token_id_information: true records them)."
    )

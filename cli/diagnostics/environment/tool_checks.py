"""Checks that the tools that the model sees are the tools that the environment accepts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import orjson

from rollyard.cli.diagnostics.environment.arguments import ArgumentSampler, is_certain
from rollyard.cli.diagnostics.environment.episode_client import Environment, Reply
from rollyard.cli.diagnostics.environment.play import is_rejection
from rollyard.cli.diagnostics.findings import Finding, failed, note, ok
from rollyard.records.types import Json

_UNKNOWN = "ng_doctor_unknown_argument"


async def check_tools(
    environment: Environment, row: Json, seen: Sequence[Json], listed: Sequence[Json] | None
) -> AsyncIterator[Finding]:
    """Compare each tool in `seen` with the method's own schema in `listed` (if known), and call it with its arguments.

    The calls must be accepted exactly if they follow the schema in `seen`.
    """
    if not seen:
        yield ok("tools", "none")
        return
    methods = None if listed is None else {tool["name"]: tool for tool in listed}
    for tool in seen:
        name = tool["name"]
        problems = _compare(tool, methods)
        doubts: list[str] = []
        if not problems:
            problems, doubts = await _probe(environment, row, tool)
        if problems:
            fix = "make the row's schema that of the method (GET /tools), or drop the row's tools"
            yield failed("tools", f"{name}: {'; '.join(problems)}", fix)
        elif doubts:
            yield note("tools", f"{name}: {'; '.join(doubts)}")
        else:
            yield ok("tools", f"{name}: accepts what its schema allows, rejects what it forbids")


def _compare(tool: Json, methods: dict[str, Json] | None) -> list[str]:
    """Return the differences between a tool as the model sees it and the environment's method."""
    if methods is None:
        return []
    if (method := methods.get(tool["name"])) is None:
        return [f"the environment has no such method; it has {', '.join(sorted(methods)) or 'none'}"]
    seen, own = (ArgumentSampler(one.get("parameters") or {}) for one in (tool, method))
    problems = []
    if unknown := sorted(seen.properties.keys() - own.properties.keys()):
        problems.append(f"the method has no argument {', '.join(unknown)}")
    if hidden := sorted(own.properties.keys() - seen.properties.keys()):
        problems.append(f"the model does not see the argument {', '.join(hidden)}")
    if needed := sorted((set(own.required) - set(seen.required)) & seen.properties.keys()):
        problems.append(f"the method requires {', '.join(needed)}, which the model sees as optional")
    return problems


async def _probe(environment: Environment, row: Json, tool: Json) -> tuple[list[str], list[str]]:
    """Call the tool, each time in a new episode. Return the problems and the doubtful results."""
    name, parameters = tool["name"], tool.get("parameters") or {}
    sampler = ArgumentSampler(parameters)
    problems: list[str] = []
    doubts: list[str] = []
    for arguments in (sampler.smallest(), sampler.complete(Random(name))):
        reply = await _call(environment, row, name, arguments)
        if reply.status >= 500:
            problems.append(f"{_shown(arguments)} fails with {reply}")
        elif is_rejection(name, reply):
            where = problems if is_certain(parameters) else doubts
            where.append(f"{_shown(arguments)} follows the schema, but is rejected: {_text(reply)}")
    for argument in sampler.required:
        arguments = {key: value for key, value in sampler.smallest().items() if key != argument}
        reply = await _call(environment, row, name, arguments)
        if reply.status >= 500:
            problems.append(f"a call without {argument} fails with {reply}, instead of a message for the model")
        elif not is_rejection(name, reply):
            doubts.append(f"{argument} is required by the schema, but a call without it is not rejected")
    if parameters.get("additionalProperties") is False:
        reply = await _call(environment, row, name, {**sampler.smallest(), _UNKNOWN: 1})
        if not is_rejection(name, reply):
            doubts.append("the schema forbids unknown arguments, but a call with one is not rejected")
    return problems, doubts


async def _call(environment: Environment, row: Json, name: str, arguments: Json) -> Reply:
    async with environment.episode(row) as (client, _):
        return await client.post(f"/{name}", arguments)


def _shown(arguments: Json) -> str:
    return f"the call with {orjson.dumps(arguments).decode():.150}"


def _text(reply: Reply) -> str:
    found: Any = reply.object.get("error") or reply.object.get("detail") or reply.content
    return f"{found if isinstance(found, str) else orjson.dumps(found).decode():.200}"

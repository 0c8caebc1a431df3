"""ng_doctor env: starts an environment and plays one scripted episode with it; no model is needed.

The environment runs in a process of its own, as with ng_run, or anywhere else. It is called over HTTP as an agent calls
it. Four things are checked, each in one line: it starts and opens an episode, a scripted episode gets a verdict, the
expected answer is rewarded, and a wrong answer is not.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
import uvloop
from pydantic import Field

from rollyard.cli.doctor_machine import MachineFinding, conclude, failed, note, ok, shown, temporary_stack
from rollyard.cli.options import Options, names_of, read_options, unknown_option
from rollyard.records.errors import Failure, OperatorError, RollyardError, RunError, did_you_mean
from rollyard.records.jsonl import iter_jsonl, refuse
from rollyard.records.rewards import VERDICT_FIELDS, Role, fields_of
from rollyard.records.types import MAX_REWARD, Json, is_number, number
from rollyard.services.config.load import load
from rollyard.services.config.overrides import ConfigOverride
from rollyard.services.config.plugins import find_folder, search_roots
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.config.server_entries import servers_of
from rollyard.services.config.venv import cache_folder
from rollyard.services.http.client import SESSION_HEADER
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.launcher import LocalLauncher
from rollyard.services.runtime.process_setup import raise_file_limit

if TYPE_CHECKING:
    from rollyard.services.http.transport import Transport  # at run time, --help would take a tenth longer

EXAMPLE = "ng_doctor env grl_sokoban"
FAMILY = "resources_servers"
BUILTIN = "responses_api_models/builtin_model/configs/builtin_model.yaml"
"""The policy_model of an environment's own config, for environments that call one, such as those with a judge."""
MESSAGES = ("1", "left", "I do not know.")
WRONG = "I do not know."
GOLD_FIELDS = ("expected_answer", "answer", "target", "solution")
"""Fields in which datasets store the expected answer."""
FORMS = ("{}", "\\boxed{{{}}}", "The answer is {}.", "#### {}", "<answer>{}</answer>", "```python\n{}\n```")
_EXPECTED: tuple[Role, ...] = ("expected",)
_MAX_DEPTH = 8


class EnvironmentOptions(Options):
    """Options of ng_doctor env. Other keys override the configs, as with ng_run."""

    SUBJECT: ClassVar[str] = "name"
    RETIRED: ClassVar[Mapping[str, str]] = {
        "examples": "the first row is played; choose another one with --input-jsonl-fpath",
        "episodes": "one episode is played; leaks show in GET /metrics of a collection: rollyard_sessions, "
        "rollyard_asyncio_tasks, rollyard_failed_closes_total",
    }

    name: str
    """The environment, given as the first argument: the name or path of its folder, the name of a server in
    config_paths, or the URL of a running one."""
    config_paths: tuple[str, ...] = ()
    """Configs that define the environment; default: the one in its folder."""
    server_roots: tuple[str, ...] = ()
    """Additional folders to search for server folders and config files, as for ng_run."""
    input_jsonl_fpath: Path | None = None
    """File whose first row is played; default: the environment's example rows."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Timeout of one request to the environment."""
    json_output: bool = Field(default=False, alias="json")
    """Print the findings as JSON."""


def run(arguments: Sequence[str]) -> int:
    """Start an environment, play one scripted episode, and try the expected answer and a wrong one.

    No model is called, except by the environment itself. The exit status is 1 if a check fails.
    """
    options, overrides = read_options(EnvironmentOptions, arguments, rest=True)
    passed = "All checks of the environment passed."
    return conclude(uvloop.run(_check(options, overrides)), as_json=options.json_output, failed="failed", passed=passed)


async def _check(options: EnvironmentOptions, overrides: list[ConfigOverride]) -> list[MachineFinding]:
    raise_file_limit()
    found: list[MachineFinding] = []
    async for finding in _findings(options, overrides):
        found.append(finding)
        if not options.json_output:
            print(shown(finding), flush=True)
    return found


async def _findings(options: EnvironmentOptions, overrides: list[ConfigOverride]) -> AsyncIterator[MachineFinding]:
    try:
        async with _target(options, overrides) as environment:
            async for finding in findings(environment, options.input_jsonl_fpath):
                yield finding
    except OperatorError:
        raise
    except RollyardError as error:
        yield failed("start", str(error))


@dataclass(frozen=True)
class Reply:
    status: int
    content: Any
    """The parsed body, or its text if it is not JSON."""

    @property
    def object(self) -> Json:
        """The body, or an empty object if it is not one."""
        return self.content if isinstance(self.content, dict) else {}

    def __str__(self) -> str:
        shown = self.object.get("detail") or self.content
        return f"status {self.status}: {shown if isinstance(shown, str) else orjson.dumps(shown).decode():.300}"


@dataclass
class TriedEpisode:
    target: Target
    row: Json
    opened: Json = field(default_factory=dict)
    cookies: dict[str, str] = field(default_factory=dict)

    async def post(self, path: str, body: Any, extra: Mapping[str, str] | None = None) -> Reply:
        """Send a request and return the response, whatever its status. Raises Failure if there is none."""
        jar = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {"content-type": "application/json", **(extra or {}), **({"cookie": jar} if jar else {})}
        response = await self.target.send("POST", path, orjson.dumps(body), headers)
        for cookie in response.cookies:
            name, _, value = cookie.partition(";")[0].strip().partition("=")
            self.cookies[name] = value
        return Reply(response.status, _parsed(response.body))

    async def verify(self, output: Sequence[Json]) -> Reply:
        params = self.row.get("responses_create_params")
        params = dict(params) if isinstance(params, dict) else {}
        if params.get("input") is None:
            added = self.opened.get("additions")
            params["input"] = (added.get("input") if isinstance(added, dict) else None) or []
        return await self.post(
            "/verify", {**self.row, "responses_create_params": params, "response": _response(output)}
        )


@dataclass(frozen=True)
class Target:
    name: str
    url: str
    transport: Transport
    timeout_s: float
    folder: Path | None = None

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        return await self.transport.send(method, f"{self.url}{path}", body, dict(headers), self.timeout_s)

    async def get(self, path: str) -> Any:
        """Return the parsed response; None unless the status is 200."""
        response = await self.send("GET", path, b"", {})
        return _parsed(response.body) if response.status == 200 else None

    @asynccontextmanager
    async def episode(self, row: Json, path: str) -> AsyncIterator[TriedEpisode]:
        episode = TriedEpisode(self, row)
        # A named session stays open until it is closed, even if the environment ends the episode before /verify.
        reply = await episode.post(path, row, {SESSION_HEADER: uuid.uuid4().hex})
        if reply.status != 200:
            raise RunError(f"{path} refused a row with {reply}")
        episode.opened = reply.object
        try:
            yield episode
        finally:
            await episode.post("/close", {})


async def findings(target: Target, rows_file: Path | None) -> AsyncIterator[MachineFinding]:
    """Run the checks. Raises OperatorError without a row, RunError if the environment cannot open an episode."""
    row = await _row(target, rows_file)
    listed = await target.get("/tools")
    path = await _way_in(target, row, listed)
    yield ok("start", f"{target.name} opens an episode ({path})")
    try:
        async with target.episode(row, path) as episode:
            items = await (_messages(episode) if path == "/reset" else _calls(episode, _tools(row, episode, listed)))
            verdict = await episode.verify([*items, _message(WRONG)])
        if problem := _problem(target, verdict):
            yield problem
            return
        actions = sum(item.get("type") in ("function_call", "message") for item in items)
        yield ok("episode", f"{actions} scripted actions and an answer get the reward {verdict.object['reward']}")
        right, finding = await _right_answer(target, row, path, verdict.object)
        yield finding
        yield await _wrong_answer(target, row, path, right)
    except RollyardError as error:
        yield failed("episode", error.problem.detail if isinstance(error, Failure) else str(error))


async def _row(target: Target, file: Path | None) -> Json:
    """Return the first row of the given file, of the environment's folder, or of the server's GET /examples."""
    own = target.folder / "data" / "example.jsonl" if target.folder is not None else None
    path = file or (own if own is not None and own.is_file() else None)
    if path is not None:
        if not path.is_file():
            raise OperatorError(f"{path} does not exist; expected a JSON Lines file with rows of the environment")
        found: list[Any] = [row.value for row in iter_jsonl(path, refuse(path))][:1]
    else:
        listed = await target.get("/examples")
        found = listed if isinstance(listed, list) else []
    if not found or not isinstance(found[0], dict):
        raise OperatorError(f"{target.name} has no example rows; pass some with --input-jsonl-fpath rows.jsonl")
    return found[0]


async def _way_in(target: Target, row: Json, listed: Any) -> str:
    refusal = RunError("the environment refuses to open an episode")
    for path in ("/seed_session",) if _tools(row, None, listed) else ("/reset", "/seed_session"):
        try:
            async with target.episode(row, path):
                return path
        except RunError as error:
            refusal = error
    raise refusal


def _tools(row: Json, episode: TriedEpisode | None, listed: Any) -> list[Json]:
    """Return the tools that the model sees: the row's, else those that the environment adds or lists."""
    params = row.get("responses_create_params")
    own = params.get("tools") if isinstance(params, dict) else None
    additions = episode.opened.get("additions") if episode is not None else None
    added = additions.get("tools") if isinstance(additions, dict) else None
    found = own if own is not None else added or listed or []
    return [one for one in found if isinstance(one, dict) and isinstance(one.get("name"), str)]


async def _calls(episode: TriedEpisode, tools: Sequence[Json]) -> list[Json]:
    """Call every tool once with the smallest arguments of its schema. Raises RunError if one fails."""
    items: list[Json] = []
    for at, tool in enumerate(tools):
        schema = tool.get("parameters") or {}
        arguments = _smallest({**schema, "type": "object"}, schema)
        reply = await episode.post(f"/{tool['name']}", arguments)
        written = orjson.dumps(arguments).decode()
        if reply.status == 404 or reply.status >= 500:
            raise RunError(f"the tool {tool['name']} failed with {reply}; arguments: {written:.200}")
        text = reply.content if isinstance(reply.content, str) else orjson.dumps(reply.content).decode()
        call = {"call_id": f"call_{at}", "name": tool["name"], "arguments": written, "status": "completed"}
        items += [
            {"type": "function_call", **call},
            {"type": "function_call_output", "call_id": f"call_{at}", "output": text},
        ]
        if reply.object.get("done") is True:
            break
    return items


async def _messages(episode: TriedEpisode) -> list[Json]:
    items: list[Json] = []
    for text in MESSAGES:
        reply = await episode.post("/step", {"response": _response([_message(text)])})
        if reply.status >= 500:
            raise RunError(f"/step failed with {reply}; message: {text!r}")
        items += [_message(text), {"role": "user", "content": str(reply.object.get("observation"))}]
        if reply.object.get("terminated") or reply.object.get("truncated"):
            break
    return items


def _smallest(schema: Any, root: Json, depth: int = 0) -> Any:
    """Return a small value that a JSON schema allows, with required properties only."""
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if isinstance(reference, str) and reference.startswith("#/"):
        schema = root
        for part in reference[2:].split("/"):
            schema = schema.get(part) if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:  # a recursive schema has no end
        return ""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _smallest(schema[key][0], root, depth + 1)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "object":
            properties = schema.get("properties") or {}
            return {name: _smallest(properties.get(name), root, depth + 1) for name in schema.get("required") or ()}
        case "array":
            return [_smallest(schema.get("items"), root, depth + 1)] * int(schema.get("minItems") or 0)
        case "integer" | "number":
            return schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return "a" * int(schema.get("minLength") or 0)


def _problem(target: Target, verdict: Reply) -> MachineFinding | None:
    """Return what is wrong with the verdict of a scripted episode."""
    server = verdict.object.get("server")
    if verdict.status != 200 and isinstance(server, str) and server not in ("", target.name):
        fix = "name a working one in --config-paths"
        return note("episode", f"needs another server, such as a judge, which fails: {verdict}", fix)
    if verdict.status != 200:
        fix = "grade every response; raise an error only if the host or the code is at fault"
        return failed("episode", f"the verdict failed: {verdict}", fix)
    if not is_number(reward := verdict.object.get("reward"), MAX_REWARD):
        return failed("episode", f"the reward is {reward!r}; expected a finite number")
    return None


async def _right_answer(target: Target, row: Json, path: str, verdict: Json) -> tuple[float | None, MachineFinding]:
    """Try the expected answer in the usual forms. Return its reward, None unless it is accepted, and the finding."""
    gold = _gold(row, verdict)
    if gold is None:
        return None, note("right answer", "unknown: neither the row nor verdict_fields names an expected answer")
    for form in FORMS:
        answer = form.format(gold)
        reply = await _grade(target, row, path, answer)
        if reply.status == 200 and _is_solved(reply.object):
            reward = float(reply.object["reward"])
            return reward, ok("right answer", f"{answer!r:.60} gets the reward {reward}")
    return None, note(
        "right answer",
        f"the expected answer {gold!r:.60} is not accepted in any usual form",
        "check that the verifier accepts its own expected answer, unless an episode needs more than that",
    )


async def _wrong_answer(target: Target, row: Json, path: str, right: float | None) -> MachineFinding:
    reply = await _grade(target, row, path, WRONG)
    reward = number(reply.object.get("reward"), None)
    if reply.status != 200 or reward is None:
        return failed("wrong answer", f"is not graded: {reply}", "a wrong answer gets a verdict, and no second attempt")
    if right is not None and (_is_solved(reply.object) or reward >= right):
        return failed("wrong answer", f"{WRONG!r} gets the reward {reward}", "reward only what the task asks for")
    return ok("wrong answer", f"{WRONG!r} gets the reward {reward}")


async def _grade(target: Target, row: Json, path: str, answer: str) -> Reply:
    async with target.episode(row, path) as episode:
        return await episode.verify([_message(answer)])


def _gold(row: Json, verdict: Json) -> str | None:
    """Return the expected answer: the one that verdict_fields names, else one with a common name in the row."""
    if VERDICT_FIELDS in verdict:
        named = [one for one in fields_of(verdict, _EXPECTED) if one.exact]
        found = [one.value(verdict) if one.is_in(verdict) else one.value(row) for one in named]
    else:
        found = [row.get(name) for name in GOLD_FIELDS]
    return next((str(gold) for gold in found if isinstance(gold, str | int | float)), None)


def _is_solved(verdict: Json) -> bool:
    return bool(verdict.get("success", number(verdict.get("reward"), 0.0) > 0))


def _message(text: str) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "msg_doctor", "type": "message", "role": "assistant", "status": "completed", "content": content}


def _response(output: Sequence[Json]) -> Json:
    """Return a complete Response object, because other projects' servers validate every field."""
    return {
        "id": "resp_doctor",
        "object": "response",
        "created_at": 0,
        "model": "ng_doctor",
        "status": "completed",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _target(options: EnvironmentOptions, overrides: list[ConfigOverride]) -> AbstractAsyncContextManager[Target]:
    if options.name.startswith(("http://", "https://")):
        if overrides:
            unknown = unknown_option(overrides[0], names_of(EnvironmentOptions), {})
            raise OperatorError(f"{unknown}; a running server has its settings already")
        return _connected(options)
    config, spec = _config(options, overrides)
    return _started(config, spec, options)


@asynccontextmanager
async def _connected(options: EnvironmentOptions) -> AsyncIterator[Target]:
    transport = HttpTransport()
    try:
        address = options.name.rstrip("/")
        try:
            await transport.send("GET", f"{address}/openapi.json", b"", {}, 10.0)
        except Failure as failure:
            raise RunError(f"{options.name} does not respond: {failure.problem.detail}") from failure
        yield Target(address, address, transport, options.timeout_s)
    finally:
        await transport.close()


@asynccontextmanager
async def _started(config: RunConfig, spec: ServerSpec, options: EnvironmentOptions) -> AsyncIterator[Target]:
    """Start the servers of the config, each in its own process. Raises RunError if one does not start."""
    async with temporary_stack(config, LocalLauncher(cache_folder(os.environ)), os.environ) as (stack, _):
        transport = HttpTransport()
        try:
            (instance,) = [one for one in stack.registry.instances() if one.server_name == spec.name]
            assert instance.url is not None
            yield Target(spec.name, instance.url, transport, options.timeout_s, spec.folder)
        finally:
            await transport.close()


def _config(options: EnvironmentOptions, overrides: Sequence[ConfigOverride]) -> tuple[RunConfig, ServerSpec]:
    """Return the config of the environment and of the servers that it refers to, and the environment's own entry.

    Its name is a server in the configs, or the name or path of a folder. Raises OperatorError if it is unknown or
    ambiguous.
    """
    name, folder = options.name, Path(options.name)
    roots = search_roots(Path.cwd(), options.server_roots)
    if "/" in name and not folder.is_dir():
        raise OperatorError(
            f"{name} is not a folder; expected the name or folder of an environment, or http://HOST:PORT"
        )
    if "/" in name:
        folder = folder.resolve()
        if folder.parent.name != FAMILY:
            raise OperatorError(f"{folder} is not in a folder named {FAMILY}, so it is not an environment's folder")
        name, roots = folder.name, [folder.parent.parent, *roots]
    paths: list[str | Mapping[str, Any]] = list(options.config_paths)
    if not paths:
        paths = [BUILTIN, _own_config(find_folder(FAMILY, name, roots))]
    names = [*EnvironmentOptions.model_fields, "json"]
    config = load(paths, overrides, roots, os.environ, options=names)
    spec = _chosen(config, name)
    specs = {one.name: one for one in config.servers}
    needed, pending = dict[str, ServerSpec](), [spec.name]
    while pending:
        server = pending.pop()
        if server not in needed:
            needed[server] = specs[server]
            pending += servers_of(specs[server], specs)
    return RunConfig(tuple(needed.values()), config.tree), spec


def _own_config(folder: Path) -> str | Mapping[str, Any]:
    """Return the config file in the environment's folder, or a minimal config if it has none."""
    files = sorted((folder / "configs").glob("*.yaml"))
    named = folder / "configs" / f"{folder.name}.yaml"
    if named in files or len(files) == 1:
        return str(named if named in files else files[0])
    if files:
        listed = ", ".join(str(file) for file in files)
        raise OperatorError(f"{folder.name} has several configs: choose one with --config-paths [...] ({listed})")
    return {folder.name: {FAMILY: {folder.name: {}}}}


def _chosen(config: RunConfig, name: str) -> ServerSpec:
    specs = [spec for spec in config.servers if spec.family == FAMILY]
    found = [spec for spec in specs if spec.name == name] or [spec for spec in specs if spec.implementation == name]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(spec.name for spec in found or specs) or "none"
    problem = f"{name!r} is several environments" if found else f"the configs have no environment {name!r}"
    hint = "" if found else did_you_mean(name, [spec.name for spec in specs])
    raise OperatorError(f"{problem}{hint} (available: {listed})")

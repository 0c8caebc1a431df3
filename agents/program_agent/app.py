"""An agent that is any program: a coding agent, a script, an agent of another framework.

Each episode starts the program in a folder of its own, with a base URL and a key of its own. The model server records
what the program does with the model, and the environment gives the verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import re
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import orjson
from pydantic import Field, field_validator, model_validator

from rollyard.agents.base import Agent, AgentSettings
from rollyard.agents.episode import Episode, ModelTurn, add_usage
from rollyard.agents.program_agent.endpoint import ProgramEndpoint, Visitor
from rollyard.agents.tools import ToolAnswer
from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.process_group import KILL_TIMEOUT_S, guarded
from rollyard.records.rollout_types import PlayedEpisode, Response, ResponseItem
from rollyard.records.types import FinishReason, Json, items
from rollyard.services.http.client import Session
from rollyard.services.http.listener import bind
from rollyard.services.http.request import HttpResponse, raise_for_status
from rollyard.services.responses.recorded_episode import (
    CLOSE,
    OPEN,
    OUTPUT_TOKENS_HEADER,
    RECORDED,
    RecordedEpisode,
    RecordingRequest,
)
from rollyard.services.responses.response_validity import message_text
from rollyard.services.runtime.hosting import HostedServer
from rollyard.services.sandbox.box_program import FOLDER, BoxProgram, ProgramEnd
from rollyard.services.sandbox.box_program import PATH as RUN_PROGRAM
from rollyard.services.server.app import Context

PLACEHOLDERS = (
    *("here", "folder", "instruction", "instruction_file", "base_url", "anthropic_url", "api_key"),
    *("mcp_url", "mcp_file"),
)
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)\}")


class ProgramAgentSettings(AgentSettings):
    program: list[str] = Field(min_length=1)
    """The program and its arguments, without a shell. Names in braces are replaced, in them and in `env`:

    `here` by the folder in which the run was started, `folder` by the program's working folder; `instruction` by the
    task's text, `instruction_file` by the path of a file with it; `base_url` and `api_key` by those of the policy's
    OpenAI API (Chat Completions and Responses), `anthropic_url` by that of its Anthropic API; `mcp_url` by that of the
    environment's tools, `mcp_file` by the path of a file of MCP servers with it, in the usual form."""
    in_box: bool = False
    """Run the program in the box of the environment's episode, beside the task's files, instead of on this host. The
    environment must have boxes, such as harbor_task, must run on the host of this agent, and must show the program to
    its boxes (`host_paths`, or an image that contains it)."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the program. It also gets PATH, LANG and a HOME and TMPDIR in its folder, no others."""
    max_steps: int = Field(default=256, ge=1)
    """Maximum number of model calls per episode. The program is ended at the next one."""
    max_generated_tokens: int | None = Field(default=None, ge=1)
    """After how many generated tokens the program is ended at its next model call."""
    time_limit_s: float = Field(default=1800.0, gt=0)
    """After which time the program is ended."""

    @model_validator(mode="after")
    def _no_tools_in_box(self) -> Self:
        used = {name for text in (*self.program, *self.env.values()) for name in _PLACEHOLDER.findall(text)}
        if self.in_box and (found := used & {"mcp_url", "mcp_file"}):
            raise ValueError(f"{{{min(found)}}} with in_box: a program in the box works on its files, without tools")
        return self

    @field_validator("program", "env")
    @classmethod
    def _known_placeholders(cls, given: Any) -> Any:
        texts = given.values() if isinstance(given, dict) else given
        for name in (name for text in texts for name in _PLACEHOLDER.findall(text)):
            if name not in PLACEHOLDERS:
                raise ValueError(f"there is no {{{name}}}; expected one of {', '.join(PLACEHOLDERS)}")
        return given


class ProgramAgent(Agent[ProgramAgentSettings]):
    def __init__(self, settings: ProgramAgentSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.episode_type = ProgramEpisode
        keys = context.keys.model_copy(update={"token": None, "tls": None})  # the programs have keys of their own
        endpoint = Context(f"{context.name}_programs", keys, context.client)
        self._endpoint = ProgramEndpoint(endpoint)
        self._hosted: HostedServer | None = None

    async def check(self) -> None:
        if self.settings.in_box:
            return
        path = {**os.environ, **self.settings.env}.get("PATH")
        if shutil.which(program := self.settings.program[0], path=path) is None:
            raise OperatorError(f"the program {program!r} was not found; expected its path, or a name in PATH")

    async def start(self) -> None:
        await self.check()
        self._hosted = HostedServer(self._endpoint, bind("127.0.0.1", 0))
        await self._hosted.listen()
        await self._hosted.start()

    async def stop(self) -> None:
        await super().stop()
        if self._hosted is not None:
            await self._hosted.stop()

    async def play(self, episode: Episode) -> FinishReason:
        assert isinstance(episode, ProgramEpisode)
        instruction = instruction_of(episode.conversation.start)
        await episode.begin(self.settings.time_limit_s)
        assert self._hosted is not None
        number, key = secrets.token_hex(16), secrets.token_urlsafe(24)
        values = addresses(f"{self._hosted.url}/{number}", key, instruction)
        self._endpoint.admit(number, episode.visitor(key, self.settings))
        episode.ended.add_done_callback(lambda _: self._endpoint.dismiss(number))
        try:
            run = self._run_in_box if self.settings.in_box else self._run
            program = await run(episode, values)
        finally:
            episode.stop()
            await episode.collect()
        return episode.outcome(program)

    async def _run(self, episode: ProgramEpisode, values: Mapping[str, str]) -> Program:
        """Run the program until it ends, the episode does, or its time is over."""
        folder = Path(tempfile.mkdtemp(prefix="rollyard-program-"))
        try:
            values = written(folder, values)
            if any("{mcp_file}" in part for part in (*self.settings.program, *self.settings.env.values())):
                write_mcp_file(values)
            command, own = self._filled(values)
            program = await Program.start(command, folder, {**environment(folder), **own})
            try:
                waited = {program.ended, episode.ended}
                await asyncio.wait(waited, timeout=self.settings.time_limit_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                episode.stop()
                await program.kill()
            return program
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _run_in_box(self, episode: ProgramEpisode, values: Mapping[str, str]) -> ProgramEnd:
        """Run the program in the environment's box until it ends, the episode does, or its time is over."""
        assert self._hosted is not None
        file = "/tmp/instruction.md"
        command, own = self._filled({**values, "instruction_file": file, "folder": FOLDER})
        order = BoxProgram(
            program=command,
            env=own,
            files={file: values["instruction"]},
            endpoint=self._hosted.url,
            time_limit_s=self.settings.time_limit_s,
        )
        running = asyncio.create_task(episode.run_in_box(order))
        try:
            waited: set[asyncio.Future[Any]] = {running, episode.ended}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await episode.end_in_box()
            return await running
        finally:
            running.cancel()

    def _filled(self, values: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the command and its own variables."""

        def filled(text: str) -> str:
            return _PLACEHOLDER.sub(lambda found: values[found[1]], text)

        settings = self.settings
        return tuple(map(filled, settings.program)), {name: filled(value) for name, value in settings.env.items()}


class ProgramEpisode(Episode):
    """An episode whose model calls a program makes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the program has to end: a limit is reached, the environment is done, or something failed."""
        self._reason: FinishReason | None = None
        self._failure: Failure | None = None
        self._refusal: Failure | None = None
        """The last model call's, if it was refused."""
        self._begun = 0
        self._generated = 0
        self._run: Json = {}

    async def begin(self, time_limit_s: float) -> None:
        """Let the model server record the episode. Raises Failure, also if there is only a stored rollout to play."""
        if not isinstance(self._model, Session):
            detail = "programs cannot play a rollout again, but the environment's verdict depends on its session"
            raise Failure(FailureKind.BAD_TASK, detail)
        self._recorder = self._model
        params = {name: value for name, value in self.conversation.params.items() if name not in _OF_PROGRAM}
        request = RecordingRequest(params=params, keep_s=time_limit_s + self._model_timeout_s)
        answer = await self._recorder.send(OPEN, request.model_dump_json().encode(), self._model_timeout_s)
        if self._model.foreign:
            detail = "program_agent requires a model server of Rollyard, and this one is of another framework"
            raise Failure(FailureKind.BAD_REQUEST, detail, server=self._model.server)
        raise_for_status(answer, self._model.server)

    def visitor(self, key: str, settings: ProgramAgentSettings) -> Visitor:
        async def ask_within_limits(path: str, body: bytes) -> HttpResponse:
            if self._begun >= settings.max_steps:
                raise self._end(FinishReason.MAX_STEPS, f"max_steps is {settings.max_steps}")
            if self._generated >= (settings.max_generated_tokens or math.inf):
                raise self._end(FinishReason.LENGTH, f"max_generated_tokens is {settings.max_generated_tokens}")
            return await self._forward(path, body)

        given = [] if settings.in_box else items(self.conversation.params.get("tools"))
        tools = [tool for tool in given if tool.get("type") == "function"]
        return Visitor(key, ask_within_limits, tools, self._use)

    async def run_in_box(self, order: BoxProgram) -> ProgramEnd:
        limit_s = order.time_limit_s + self._tool_timeout_s
        answer = await self._environment.send(RUN_PROGRAM, order.model_dump_json().encode(), limit_s)
        return ProgramEnd.model_validate_json(raise_for_status(answer, self._environment.server).body)

    async def end_in_box(self) -> None:
        await self._environment.send(RUN_PROGRAM, b"{}", self._tool_timeout_s)

    async def collect(self) -> None:
        """Take over what the model server has recorded. If it cannot tell, the episode has failed."""
        try:
            body = await self._model.post(CLOSE, b"{}", self._model_timeout_s)
        except Failure as failure:
            self._failure = self._failure or failure
            return
        recorded = RecordedEpisode.model_validate_json(body)
        self.conversation.output = cast(list[ResponseItem], recorded.output)
        self.conversation.last = cast(Response, {**recorded.last, "output": []})
        for usage in recorded.usages:
            add_usage(self.conversation.usage, usage)
        self._run["conversations"] = [conversation.model_dump() for conversation in recorded.conversations]

    def outcome(self, program: Program | ProgramEnd) -> FinishReason:
        """Return why the episode ended.

        Raises Failure if something else than the program failed, or if the program has not once called the model with
        success: it is wrong, not the policy. A program that ends with an error later is graded like any other, because
        the model may have led it there, and would otherwise get another attempt. So is one that was ended while it
        waited for the model's first answer.
        """
        self._run |= {"exit_status": program.status, "output": program.output}
        if self._failure is not None:
            raise self._failure
        if not self.timings.model_calls and not (self._begun and program.status is None):
            if self._refusal is not None:
                raise self._refusal
            ended = "was ended by its time limit" if program.status is None else f"ended with status {program.status}"
            shown = program.output[-_SHOWN_CHARS:].strip() or "nothing"
            detail = f"the program {ended} before the model had answered it; it printed: {shown}"
            raise Failure(FailureKind.SERVER_ERROR, detail)
        if self._reason is not None:
            return self._reason
        if program.status is None:
            return FinishReason.TIME_LIMIT
        if self._refusal is not None and self._refusal.kind is FailureKind.CONTEXT_OVERFLOW:
            return FinishReason.CONTEXT_OVERFLOW
        return FinishReason.PROGRAM_FAILED if program.status else ModelTurn(self.response()).ending

    def result(self) -> PlayedEpisode:
        return cast(PlayedEpisode, {**super().result(), "program_run": self._run})

    async def _forward(self, path: str, body: bytes) -> HttpResponse:
        """Send a model call of the program to the model server."""
        is_turn = path != "/v1/messages/count_tokens"
        self._begun += is_turn
        started = self._state.enter("model", self._model.server)
        try:
            answer = await self._recorder.send(f"{RECORDED}{path}", body, self._model_timeout_s)
            raise_for_status(answer, self._model.server)
        except Failure as failure:
            self._begun -= is_turn
            if not _is_for_program(failure):
                self._fail(failure)
            elif is_turn:
                self._refusal = failure
            raise
        if is_turn:
            self._refusal = None
            self._state.finish("model", started)
            self.timings.model_calls += 1
            self._generated += int(answer.headers.get(OUTPUT_TOKENS_HEADER, "0"))
        return answer

    async def _use(self, name: str, arguments: Json) -> ToolAnswer:
        """Call a tool of the environment for the program."""
        if self.ended.done():
            raise Failure(FailureKind.BAD_REQUEST, "this episode has ended")
        started = self._state.enter("tool", self._environment.server)
        try:
            answer = await self._execute(name, orjson.dumps(arguments).decode())
        except Failure as failure:
            self._fail(failure)
            raise
        self._state.finish("tool", started)
        self.timings.tool_calls += 1
        if answer.done:
            self._end(FinishReason.DONE, "the environment is done")
        return answer

    def _end(self, reason: FinishReason, detail: str) -> Failure:
        """End the program. Returns what it may still read."""
        if not self.ended.done():
            self._reason = reason
            self.stop()
        return Failure(FailureKind.BAD_REQUEST, f"this episode has ended: {detail}")

    def _fail(self, failure: Failure) -> None:
        if not self.ended.done():  # what fails afterwards, the program no longer needs
            self._failure = failure
            self.stop()

    def stop(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


_OF_PROGRAM = (
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "stream",
    "stream_options",
)
"""Create parameters of the row that do not replace those of the program's calls."""
_SHOWN_CHARS = 2000


def _is_for_program(failure: Failure) -> bool:
    """Whether the program's request is at fault: it may shorten its conversation, or do without."""
    if failure.kind is FailureKind.UPSTREAM_REFUSED:
        return failure.problem.upstream_status not in (401, 403, 404)  # the key, or the model's name
    return failure.kind in (FailureKind.BAD_REQUEST, FailureKind.CONTEXT_OVERFLOW)


def instruction_of(start: Sequence[ResponseItem]) -> str:
    """Return the text of the task. Raises Failure bad_task for what is more than text."""
    for item in start:
        parts = items(item.get("content")) if isinstance(item.get("content"), list) else []
        kinds = {part.get("type") for part in parts} - {"input_text", "text"}
        if item.get("role") not in ("system", "developer", "user") or kinds:
            found = f"{item.get('role') or item.get('type')} with {', '.join(map(str, kinds)) or 'text'}"
            detail = f"a program gets its task as one text; found an item of {found} in the row's input"
            raise Failure(FailureKind.BAD_TASK, detail)
    return "\n\n".join(filter(None, (message_text(cast(Json, item)) for item in start)))


def written(folder: Path, values: Mapping[str, str]) -> dict[str, str]:
    """Write the files of an episode, and return what replaces the placeholders."""
    for name in ("work", "home", "tmp"):
        (folder / name).mkdir()
    (folder / "instruction.md").write_text(values["instruction"], encoding="utf-8", errors="replace")
    files = {"folder": "work", "instruction_file": "instruction.md", "mcp_file": "mcp.json"}
    return {**values, **{name: str(folder / file) for name, file in files.items()}}


def addresses(url: str, key: str, instruction: str) -> dict[str, str]:
    return {
        "here": str(Path.cwd()),
        "instruction": instruction,
        "base_url": f"{url}/v1",
        "anthropic_url": url,
        "api_key": key,
        "mcp_url": f"{url}/mcp",
    }


def write_mcp_file(values: Mapping[str, str]) -> None:
    headers = {"Authorization": f"Bearer {values['api_key']}"}
    server = {"type": "http", "url": values["mcp_url"], "headers": headers}
    Path(values["mcp_file"]).write_bytes(orjson.dumps({"mcpServers": {"environment": server}}))


def environment(folder: Path) -> dict[str, str]:
    """The environment of a program. The agent's own may contain keys."""
    path, language = os.environ.get("PATH", os.defpath), os.environ.get("LANG", "C.UTF-8")
    return {"PATH": path, "LANG": language, "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}


HEAD_BYTES, TAIL_BYTES = 16 * 1024, 48 * 1024
"""How much is kept of a program's output, from its begin and its end."""
OUTPUT_S = 2.0
"""How long the output may stay open after the last process has ended."""

GUARD_S = KILL_TIMEOUT_S + 5.0
"""How long the guard may take to kill what the program has started."""


class Program:
    """A program that ends with this process, whatever ends it, including everything that it has started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.status: int | None = None
        """Its exit status; None while it runs, and if it was killed."""
        self._process = process
        self._is_killed = False
        self._head, self._tail = b"", b""
        self._printed = 0
        self._reading = asyncio.create_task(self._read())
        self.ended = asyncio.create_task(self._wait())

    @classmethod
    async def start(cls, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Program:
        """Raises Failure bad_task if the system cannot pass on the task's text, as an argument or a variable."""
        try:
            process = await asyncio.create_subprocess_exec(
                *guarded(command, folder),
                cwd=folder / "work",
                env=environ,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno != errno.E2BIG:
                raise
            detail = (
                f"the system cannot pass the task's text to the program ({error}); expected a text without NUL that is "
                "short enough for an argument: write {instruction_file} instead of {instruction} in the settings"
            )
            raise Failure(FailureKind.BAD_TASK, detail) from error
        return cls(process)

    @property
    def output(self) -> str:
        left_out = self._printed - len(self._head) - len(self._tail)
        between = b"\n[... %d bytes ...]\n" % left_out if left_out else b""
        return (self._head + between + self._tail).decode("utf-8", "replace")

    async def kill(self, guard_s: float = GUARD_S) -> None:
        """Kill what is left of it, and wait until it has ended.

        `guard_s`: after which time the guard is killed, too, because the program may have stopped it.
        """
        if not self.ended.done():
            self._is_killed = True
            assert self._process.stdin is not None
            self._process.stdin.close()  # the guard kills everything that the program has started, and itself
            await asyncio.wait({self.ended}, timeout=guard_s)
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.wait({self.ended})

    async def _wait(self) -> None:
        status = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # if the guard was killed
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.status = None if self._is_killed else status
        await asyncio.wait({self._reading}, timeout=OUTPUT_S)
        self._reading.cancel()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while read := await self._process.stdout.read(64 * 1024):
            self._printed += len(read)
            missing = HEAD_BYTES - len(self._head)
            self._head += read[:missing]
            self._tail = (self._tail + read[missing:])[-TAIL_BYTES:]


server = ProgramAgent

"""A stack in this process on which training plays: real servers in front of an engine with scripted answers.

A task is a question. Its answer is a number, which is its reward; `crash` makes the verifier raise. Questions from
number 1000 are bad tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.head.registry_client import StackClients
from rollyard.services.http.request import Receive, Scope, Send
from rollyard.services.runtime.stack import Stack
from rollyard.training.batch_source import StackBatchSource
from rollyard.training.run_folder import TrainingPaths, version_of_step
from rollyard.training.train_config import TrainConfig
from rollyard.training.training_stack import TrainingStack
from rollyard.training.update import Batch
from tests.support.fixtures import make_folder
from tests.support.scripted_engine import listening
from tests.support.stacks import colocated, load_config, read_rows
from tests.support.token_engine import Refused, TokenEngine
from tests.support.toy_tokenizer import END, decode, encode_letters

VERIFIER = """
from rollyard.resources_servers.base import BadTask, Environment, Verdict, Verification, serve
from rollyard.resources_servers.environment import EnvironmentSettings

class Graded(Environment[EnvironmentSettings]):
    def __init__(self, task, settings):
        super().__init__(task, settings)
        if task["number"] >= 1000:
            raise BadTask("the number is too large")

    async def verify(self, response: Verification) -> Verdict:
        if response.text == "crash":
            raise RuntimeError("the verifier crashed")
        return Verdict(reward=float(response.text))

server = serve(Graded)
"""
_QUESTION = re.compile(r"question (\d+)")


def alternating(question: int, count: int) -> str:
    return str(count % 2)


class ScriptedPolicy(TokenEngine):
    """Answers by question and by how often the question was asked before. Its version is that of its weights."""

    def __init__(self, answer: Callable[[int, int], str] = alternating) -> None:
        super().__init__([[END]])
        self.answer = answer
        self.updates: int | None = 0
        """Number of updates of the weights; None: the engine does not report a version of the run."""
        self.asked = Counter[int]()
        self.hangs: Callable[[int, int], bool] = lambda question, count: False
        """Whether a question is never answered."""
        self.ended = asyncio.Event()
        """The run is over: nothing hangs any more."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        body = orjson.loads(message["body"] or b"{}")
        question = _question(body.get("token_ids", [])) if scope["path"].endswith("/generate") else None
        if question is not None and self.hangs(question, self.asked[question]):
            self.asked[question] += 1
            await self.ended.wait()
            return

        async def again() -> Any:
            return message

        await super().__call__(scope, again, send)

    def _turn(self, prompt: list[int]) -> tuple[list[int], str]:
        question = _question(prompt)
        if question is None:  # a probe
            return [*encode_letters("a"), END], "stop"
        count = self.asked[question]
        self.asked[question] += 1
        text = self.answer(question, count)
        if text == "500":
            raise Refused("the engine crashed", 500)
        return [*encode_letters(text), END], "stop"

    def _generate(self, body: Json) -> Json:
        answer = super()._generate(body)
        [choice] = answer["choices"]
        version = "default" if self.updates is None else version_of_step(self.updates)
        choice["weight_versions"] = [{"version": version, "start": 0, "end": len(choice["token_ids"])}]
        return answer


def _question(prompt: list[int]) -> int | None:
    found = _QUESTION.search(decode(prompt))
    return int(found[1]) if found else None


@dataclass
class Training:
    """A training run on a stack, without a trainer."""

    stack: TrainingStack
    policy: ScriptedPolicy
    folder: Path
    data: Path
    settings: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    """Lines for the user."""

    @property
    def paths(self) -> TrainingPaths:
        return TrainingPaths(self.folder / "out")

    def source(self, position: Mapping[str, int] | None = None, **more: Any) -> StackBatchSource:
        config = TrainConfig(model="m", output_dir=self.paths.root, **{**self.settings, **more})
        tasks = TaskFile(self.data, agent=config.agent_name, limit=config.limit)
        return StackBatchSource(self.stack, tasks, config, self.paths, position or {}, print_line=self.lines.append)

    async def step(self, source: StackBatchSource, step: int) -> Batch | None:
        """The batch of a step, played by weights after step - 1 updates."""
        self.policy.updates = step - 1
        return await source.next_batch(step)

    async def steps(self, source: StackBatchSource, count: int, first: int = 1) -> list[Batch]:
        batches = [await self.step(source, step) for step in range(first, first + count)]
        return [batch for batch in batches if batch is not None]

    async def played(self, count: int = 1, **more: Any) -> list[Batch]:
        """The first batches of a source of its own; `more` are settings."""
        batches = await self.steps(source := self.source(**more), count)
        await source.close()
        return batches

    def rows(self, step: int) -> list[Json]:
        return read_rows(self.paths.rollouts(step))

    def failures(self, step: int) -> list[Json]:
        output = self.paths.rollouts(step)
        return read_rows(output.with_name(f"{output.stem}_failures.jsonl"))


def write_questions(path: Path, numbers: Iterable[int]) -> Path:
    rows = (
        {"number": number, "responses_create_params": {"input": [{"role": "user", "content": f"question {number}"}]}}
        for number in numbers
    )
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


class PolicySlot:
    """The engine of a stack that several tests share: it answers with the policy of the running one."""

    policy: ScriptedPolicy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.policy(scope, receive, send)


@contextlib.asynccontextmanager
async def serving(
    folder: Path, model_settings: Mapping[str, Any] | None = None
) -> AsyncIterator[tuple[Stack, PolicySlot]]:
    """Start a stack whose servers are written to `folder`, and an engine for the policies of its runs."""
    slot = PolicySlot()
    slot.policy = ScriptedPolicy()
    async with listening(slot) as url:
        model = {
            "entrypoint": "app.py",
            "base_url": f"{url}/v1",
            "model": "tiny",
            "return_token_id_information": True,
            "retry_pause_s": 0.0,
            "max_attempts": 1,
            **(model_settings or {}),
        }
        refs = {
            "resources_server": {"type": "resources_servers", "name": "verifier"},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
        }
        tree = {
            "policy_model": {"responses_api_models": {"vllm_model": model}},
            "verifier": {"resources_servers": {make_folder(folder, app=VERIFIER): {"entrypoint": "app.py"}}},
            "solver": {"agents": {"simple_agent": {"entrypoint": "app.py", **refs}}},
        }
        config = load_config(config=tree, roots=[folder], tmp_path=folder)
        async with colocated(config, folder) as stack:
            yield stack, slot


class SharedStack(contextlib.AsyncExitStack):
    """The stack of all tests that need no other: it is started for the first one, and stopped by conftest.py."""

    _serving: tuple[Stack, PolicySlot] | None = None

    async def started(self) -> tuple[Stack, PolicySlot]:
        if self._serving is None:
            folder = self.enter_context(tempfile.TemporaryDirectory())
            self._serving = await self.enter_async_context(serving(Path(folder)))
        return self._serving


SHARED = SharedStack()


@contextlib.asynccontextmanager
async def training(
    folder: Path,
    policy: ScriptedPolicy | None = None,
    *,
    questions: int = 6,
    model_settings: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Training]:
    """A run over `questions` questions; 2 groups of 2 per step unless set otherwise. It has a stack of its own if
    `model_settings` are given.
    """
    async with contextlib.AsyncExitStack() as own:
        if model_settings is None:
            stack, slot = await SHARED.started()
        else:
            stack, slot = await own.enter_async_context(serving(folder, model_settings))
        slot.policy = policy or ScriptedPolicy()
        chosen = {"agent_name": "solver", "groups_per_step": 2, "group_size": 2, "shuffle": False, **settings}
        data = write_questions(folder / "questions.jsonl", range(questions))
        try:
            clients = StackClients(stack.client, stack.registry_client())
            connected = TrainingStack(clients, "http://unused", None, frozenset({"policy_model"}))
            yield Training(connected, slot.policy, folder, data, chosen)
        finally:
            slot.policy.ended.set()

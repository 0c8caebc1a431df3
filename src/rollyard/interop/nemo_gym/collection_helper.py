"""RolloutCollectionHelper: sends a trainer's rows to their agents, in the trainer's event loop.

Attempts runs one row until it is measured, and decides what becomes of a rollout that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.rewards import MASKED, mask_of
from rollyard.records.run_types import HeadFile
from rollyard.records.types import TOKEN_FIELDS, Json, Record
from rollyard.services.backoff import Backoff
from rollyard.services.http.client import ServerClient
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.transport import HttpTransport
from rollyard.services.interop.nemo_gym import NemoGymHead, clients_of, identify_head
from rollyard.services.responses.policy_logprobs import are_ids, invalid_numbers
from rollyard.services.rollouts.run_answer import parse_row
from rollyard.services.runtime.run_dir import running_heads
from rollyard.services.server.settings import parse_settings
from rollyard.training.groups import EndingRules, Treatment

Result = tuple[Json, Json]
"""The row as it was passed, and its result."""


class RolloutCollectionHelper:
    """Collects rollouts from a running stack, which may also be NeMo Gym's."""

    def run_examples(
        self,
        examples: Sequence[Json],
        head_server_config: BaseServerConfig | Mapping[str, Any] | None = None,
        semaphore: AbstractAsyncContextManager[Any] | None = None,
    ) -> Iterator[Awaitable[Result]]:
        """Start all rows, and return an awaitable for each result, in the order in which they are finished.

        Must be called in a running event loop. Each row needs `agent_ref.name`. `semaphore` limits the number of rows
        in flight. Without `head_server_config`, the newest run that was started from the working directory is used.
        """
        rows = list(examples)
        for number, row in enumerate(rows):
            agent = row.get("agent_ref")
            if not isinstance(agent, Mapping) or not isinstance(agent.get("name"), str):
                detail = f"row {number} has agent_ref {agent!r:.100}; expected the agent that runs it, as {{name: ...}}"
                raise ValueError(detail)
        address = None
        if head_server_config is not None:
            address = BaseServerConfig.model_validate(head_server_config, from_attributes=True)
        session = _Session(_head_of(address), len(rows), semaphore or contextlib.nullcontext())
        return iter(asyncio.as_completed([session.run(row) for row in rows]))


class _Session:
    """The clients of one call of `run_examples`. They are created by the first row and closed after the last one."""

    def __init__(self, head: HeadFile, rows: int, semaphore: AbstractAsyncContextManager[Any]) -> None:
        self._head = head
        self._left = rows
        self._semaphore = semaphore
        self._opening: asyncio.Task[Attempts] | None = None
        self._lag = LoopLag()
        self._transport = HttpTransport(lag=self._lag)

    async def run(self, row: Json) -> Result:
        try:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open())
            attempts = await asyncio.shield(self._opening)
            async with self._semaphore:
                return row, await attempts.run(row)
        finally:
            self._left -= 1
            if not self._left:
                await self._transport.close()

    async def _open(self) -> Attempts:
        """Connect to the head. Raises RunError if it does not respond, and OperatorError for invalid settings."""
        try:
            head = await identify_head(self._transport, self._head, nemo_gym=True)
            clients = clients_of(head, self._transport, self._lag)
            directory = await clients.client.book.refresh()
            tree = await NemoGymHead(self._transport, head.url, head.token).config()
        except Failure as failure:
            raise RunError(f"the head at {self._head.url} cannot be used: {failure.problem.detail}") from None
        by_family = {
            family: [name for name, found in directory.families.items() if found == family]
            for family in ("agents", "responses_api_models")
        }
        settings = CollectionSettings.of_config(tree)
        return Attempts(
            clients.client, settings, agents=by_family["agents"], model_servers=by_family["responses_api_models"]
        )


def _head_of(address: BaseServerConfig | None) -> HeadFile:
    """Return the head at `address`.

    A run of this working directory is called at the address that its head listens on, with its token: trainers pass
    the address of the host, while the servers of a run listen on 127.0.0.1.
    """
    own = running_heads(Path.cwd())
    for head in own:
        if address is None or head.url.endswith(f":{address.port}"):
            return head
    if address is None:
        raise RunError("no run was started from this folder: start one, or pass head_server_config")
    host = f"[{address.host}]" if ":" in address.host else address.host
    return HeadFile(run_id="", url=f"http://{host}:{address.port}", pid=0)


log = logging.getLogger("rollyard")

PAUSES = Backoff(first_pause_s=0.5, longest_pause_s=15.0, jitter=0.5)
_CONFIGURATION = (
    *(FailureKind.UNAUTHORIZED, FailureKind.FORBIDDEN, FailureKind.UNKNOWN_SERVER, FailureKind.WRONG_RUN),
    *(FailureKind.UPSTREAM_REFUSED, FailureKind.BAD_REQUEST),
)
"""Failures that every rollout would have until someone corrects the run. They are raised, whatever the settings."""


class RolloutFailed(RuntimeError):
    """A rollout failed permanently. NeMo RL reads `status`, and the exception can be sent between processes."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class Attempts:
    """Runs rows through their agents. `model_servers` and `agents` are names of servers of the run."""

    def __init__(
        self,
        client: ServerClient,
        settings: CollectionSettings,
        *,
        agents: Collection[str] = (),
        model_servers: Collection[str] = (),
    ) -> None:
        self._client = client
        self._settings = settings
        self._agents = agents
        self._model_servers = model_servers
        self._logged: set[str] = set()

    async def run(self, row: Json) -> Json:
        """Return the result of a row. Raises RolloutFailed if it fails permanently and such rollouts are not masked."""
        agent = row["agent_ref"]["name"]
        body = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
        for attempt in range(self._settings.max_attempts):
            try:
                response = await self._client.post(agent, "/run", body, self._settings.rollout_timeout_s)
                # Without its headers it is parsed in one piece: trainers read and change the response.
                answer: Json = dict(parse_row(HttpResponse(response.status, {}, response.body), agent))
                return to_result(row, answer, self._settings.endings, agent)
            except Failure as failure:
                kind, server, endings = failure.kind, failure.problem.server, self._settings.endings
                # The first failure of each kind; later ones only in detail.
                level = logging.DEBUG if kind in self._logged else logging.WARNING
                self._logged.add(kind)
                log.log(level, "attempt %d of a rollout failed at %s: %s", attempt + 1, server or "?", failure)
                is_final = failure.terminal or endings.is_final(kind, server, self._agents, self._model_servers)
                if is_final or attempt + 1 == self._settings.max_attempts:
                    return self._failed(row, failure)
            await asyncio.sleep(PAUSES.pause_s(attempt + 1))
        raise AssertionError("the last attempt returns or raises")

    def _failed(self, row: Json, failure: Failure) -> Json:
        choice, problem = self._settings.failed_rollouts, failure.problem
        masks = choice == "mask" or (choice == "auto" and "nemo_rl" in sys.modules)
        if masks and failure.kind not in _CONFIGURATION:
            return failed_result(row, failure)
        message = (
            f"a rollout of {row['agent_ref']['name']} failed: {failure} (at {problem.server or 'an unknown server'})"
        )
        raise RolloutFailed(message, problem.status) from None  # the cause may not be picklable


KEY = "rollout_collection"


class CollectionSettings(Record):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_attempts: int = Field(default=3, ge=1)
    """Maximum number of attempts per rollout, each in a new session."""
    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    """Timeout for one attempt, in seconds."""
    failed_rollouts: Literal["auto", "mask", "raise"] = "auto"
    """What becomes of a rollout that fails permanently. `mask`: a result with `mask_sample`, which has no loss in NeMo
    RL. `raise`: an exception. `auto`: `mask` in a process that has imported NeMo RL, otherwise `raise`, because other
    trainers do not read the mask and would train on its reward."""
    endings: EndingRules = EndingRules()
    """Which ways to end an episode are masked."""

    @classmethod
    def of_config(cls, tree: Json) -> CollectionSettings:
        """Return the settings in a merged config. Raises OperatorError if they are invalid."""
        given: Any = tree.get(KEY) or {}
        if not isinstance(given, dict):
            raise OperatorError(f"{KEY} is {given!r}; expected a mapping such as {{max_attempts: 3}}")
        return parse_settings(cls, given, KEY)


HEAD_SERVER_KEY_NAME = "head_server"


class BaseServerConfig(BaseModel):
    host: str
    port: int
    num_workers: int | None = None


class GlobalConfigDictParserConfig(BaseModel):
    """Where the config of a run comes from."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    dotenv_path: Path | None = None
    """The env.yaml file; None: the one in the working directory. It may be absent."""
    initial_global_config_dict: Any = None
    """A mapping or OmegaConf DictConfig that overrides all files."""
    skip_load_from_cli: bool = False
    """Must be true: a trainer's command line is not that of a run."""
    skip_load_from_dotenv: bool = False
    hide_secrets: bool = False
    """Has no effect, because secrets are always hidden."""


UNSUMMED = "unsummed_reward_components"
"""Key of reward components whose sum is not the reward. NeMo RL ends the step if `reward_components` are such."""


def to_result(row: Json, answer: Json, rules: EndingRules, agent: str) -> Json:
    """Return the answer of `/run` with `instance_config.mask_sample`, and without what a trainer would reject.

    The post-processing of NeMo RL and of verl's recipe ends the training step unless the prompt of each trainable item
    begins with the token ids of all earlier ones, and every generated token has a finite log-probability.

    Raises Failure malformed_answer if there is no response, and RunError if the model server records no token ids.
    """
    response = answer.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(response, dict) or not isinstance(output, list) or not all(isinstance(o, dict) for o in output):
        detail = "/run returned no response with output items, so there is nothing to train on"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent)
    if output and not any("generation_token_ids" in item for item in output):
        raise RunError(
            f"the rollout of {agent} has no token ids: set return_token_id_information: true on its model server, as "
            "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml does"
        )
    reason, treatment = rules.of_row(answer)
    masked = "" if treatment is Treatment.PLAYED else f"the episode ended with {reason}"
    if mask := mask_of(answer):
        masked = "the agent or environment set mask_sample" if mask == MASKED else f"the rollout failed ({mask})"
    violation = remove_after_violation(output)
    masked = masked or violation
    if not any(map(is_trainable, output)):
        masked = masked or "the model generated no tokens"
        output.append(placeholder())
    result = {**_with_summed_components(answer), "agent_ref": row["agent_ref"]}
    result.setdefault("responses_create_params", row.get("responses_create_params", {}))
    return _masked(result, masked)


def failed_result(row: Json, failure: Failure) -> Json:
    """Return the masked result of a rollout that failed permanently. Its reward has no meaning."""
    response = {"id": "failed", "object": "response", "output": [placeholder()], "status": "failed", "error": None}
    result = {**row, "response": response, "reward": 0.0, "failure_kind": str(failure.kind)}
    return _masked(result, f"{failure.kind} at {failure.problem.server or '?'}: {failure.problem.detail}")


def _masked(result: Json, reason: str) -> Json:
    given = result.get("instance_config")
    config = {**(given if isinstance(given, dict) else {}), "mask_sample": bool(reason)}
    if reason:
        config["mask_reason"] = reason
    return {**result, "instance_config": config, "mask_sample": bool(reason)}


def _with_summed_components(answer: Json) -> Json:
    parts: Any = answer.get("reward_components")
    is_sum = (
        isinstance(parts, dict)
        and all(isinstance(one, int | float) for one in parts.values())
        and math.isclose(sum(parts.values()), answer["reward"], rel_tol=1e-5, abs_tol=1e-6)
    )
    if parts is None or is_sum:
        return answer
    return {**{name: value for name, value in answer.items() if name != "reward_components"}, UNSUMMED: parts}


PLACEHOLDER_TOKEN = 0
"""Every vocabulary has it. It has no loss, because the result is masked."""


def is_trainable(item: Json) -> bool:
    """Return whether an output item holds the tokens of a model call."""
    return bool(item.get("generation_token_ids"))


def remove_after_violation(output: list[Json]) -> str:
    """Remove the tokens of the first item that breaks a rule and of all later items. Return the rule, '' if none."""
    seen: list[int] = []
    broken = ""
    for number, item in enumerate(output):
        if not is_trainable(item):
            continue
        broken = broken or _violation(item, seen, number)
        if broken:
            for name in TOKEN_FIELDS:
                item.pop(name, None)
        else:
            seen = [*item["prompt_token_ids"], *item["generation_token_ids"]]
    return broken


def placeholder() -> Json:
    """Return an output item with one token, for a result that has none."""
    return {
        "id": "placeholder",
        "type": "message",
        "role": "assistant",
        "status": "incomplete",
        "content": [{"type": "output_text", "text": "", "annotations": []}],
        "prompt_token_ids": [PLACEHOLDER_TOKEN],
        "generation_token_ids": [PLACEHOLDER_TOKEN],
        "generation_log_probs": [0.0],
    }


def _violation(item: Json, seen: list[int], number: int) -> str:
    prompt: Any
    prompt, generated, log_probs = (item.get(name) for name in TOKEN_FIELDS[:3])
    where = f"output item {number}"
    if not are_ids(prompt):
        return f"{where} has no prompt_token_ids"
    if error := invalid_numbers(generated, log_probs):
        return f"{where} {error}"
    if prompt[: len(seen)] != seen:
        return f"the prompt of {where} does not begin with the {len(seen)} tokens of the earlier turns"
    return ""

"""An agent for turn-based environments: each message of the model is one action.

It uses `/reset` and `/step`, the API of Gymnasium-style resources servers. `/reset` takes the dataset row and returns
`{observation, info}`. `/step` takes the row with the model's `response` and returns
`{observation, reward, terminated, truncated, info}`. If `/verify` returns 404, the reward is the sum of the step
rewards, as in NeMo Gym's gymnasium agent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import orjson
from pydantic import Field

from rollyard.agents.base import Agent, AgentSettings
from rollyard.agents.episode import ABSENT, Episode, without_tokens
from rollyard.agents.tools import error_answer
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rewards import check_reward, tidy
from rollyard.records.rollout_types import PlayedEpisode, Response, ResponseItem
from rollyard.records.types import FinishReason, Json
from rollyard.services.http.request import PROBLEM_TYPE, raise_for_status, with_server
from rollyard.services.responses import response_validity
from rollyard.services.responses.response_validity import read_answer
from rollyard.services.server.app import Context


class TurnAgentSettings(AgentSettings):
    max_steps: int = Field(default=10, ge=1)
    """Maximum number of model turns per episode, including turns without an action."""
    action_tag: str | None = Field(default=None, pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")
    """The tag that encloses the action. If it is `action`, the environment receives the text of the last
    `<action>...</action>`; if it is null, the complete message."""
    sum_steps: bool = False
    """Use the sum of the step rewards as the reward, and do not call /verify."""


class TurnAgent(Agent[TurnAgentSettings]):
    """Plays until the environment returns terminated or truncated, or the turns run out."""

    def __init__(self, settings: TurnAgentSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.episode_type = partial(TurnEpisode, sum_steps=settings.sum_steps)
        name = settings.action_tag
        self._tag = ActionTag(name) if name else None
        self._reminder = f"Your message has no <{name}>...</{name}>. Write your action as <{name}>...</{name}>."

    async def play(self, episode: Episode) -> FinishReason:
        assert isinstance(episode, TurnEpisode)
        for _ in range(self.settings.max_steps):
            turn = await episode.ask()
            if turn.ending not in (FinishReason.ANSWERED, FinishReason.LENGTH):
                return turn.ending
            action: Response | None = turn.response
            if self._tag is not None:
                text = self._tag.action_in(message_text(turn.response))
                action = None if text is None else with_message(turn.response, text)
            if action is None:
                episode.skip(turn.response, self._reminder)
            elif ending := (await episode.step(action)).ending:
                return ending
            if turn.ending is FinishReason.LENGTH:
                return turn.ending
        return FinishReason.MAX_STEPS


@dataclass(frozen=True, slots=True)
class Step:
    reward: float
    terminated: bool
    truncated: bool
    info: Json

    @property
    def ending(self) -> FinishReason | None:
        if self.terminated:
            return FinishReason.DONE
        return FinishReason.TRUNCATED if self.truncated else None


class TurnEpisode(Episode):
    """Provides the methods for a turn-based loop: `ask` calls the model, and `step` sends its response."""

    def __init__(self, *arguments: Any, sum_steps: bool = False, **options: Any) -> None:
        """Takes the arguments of Episode. `sum_steps`: do not request a verdict from the resources server."""
        super().__init__(*arguments, **options)
        self._sum_steps = sum_steps
        self._row: Json = {"responses_create_params": self.conversation.params}
        self._rewards: list[float] = []
        self._last: Json = {"terminated": False, "info": {}}

    async def seed(self, row: bytes) -> None:
        """Open the session with `/reset`. The first observation becomes the last message of the first model request."""
        started = self._state.enter("seed", self._environment.server)
        body = await self._open("/reset", row)
        self._state.finish("seed", started)
        self._row = orjson.loads(row)
        opened = self._read(body, "/reset")
        if info := {key: value for key, value in opened["info"].items() if key != "supports_explicit_close"}:
            self._last["reset_info"] = info
        observed = [_message(opened["observation"])] if opened["observation"] else []
        try:
            self.conversation.open(opened.get("additions"), observed)
        except Failure as failure:
            raise with_server(failure, self._environment.server) from failure

    async def step(self, response: Response) -> Step:
        """Send a model response to the environment, and append the observation unless the episode is over."""
        started = self._state.enter("tool", self._environment.server)
        body = await self._environment.post("/step", self._step_body(response), self._tool_timeout_s)
        self._state.finish("tool", started)
        self.timings.tool_calls += 1
        answer = self._read(body, "/step")
        check_reward(answer, "/step", self._environment.server)
        terminated, truncated = self._flag(answer, "terminated"), self._flag(answer, "truncated")
        step = Step(float(answer["reward"]), terminated, truncated, answer["info"])
        self._rewards.append(tidy(step.reward))
        self._last |= {"terminated": terminated, "info": step.info}
        if not step.ending:
            self._answer_calls(response, step.info.get("tool_outputs"))
            self.observe(answer["observation"])
        elif answer["observation"]:
            # The model does not read the observation that ended the episode.
            self._last["final_observation"] = answer["observation"]
        return step

    def skip(self, response: Response, reason: str) -> None:
        """Do not send this turn to the environment: its reward is 0, and the model reads `reason` instead."""
        self._rewards.append(0.0)
        self._answer_calls(response, None)
        self.observe(reason)

    def observe(self, observation: str | list[Json] | None) -> None:
        if observation:
            self.conversation.answer(_message(observation))

    async def verify(self, body: bytes, headers: Mapping[str, str]) -> Json:
        if not self._sum_steps:
            started = self._state.enter("verify", self._environment.server)
            response = await self._environment.send("/verify", body, self._tool_timeout_s, headers)
            problem = response.headers.get("content-type", "").startswith(PROBLEM_TYPE)
            if problem or response.status not in ABSENT:
                self._state.finish("verify", started)
                verdict = read_answer(
                    raise_for_status(response, self._environment.server).body, self._environment.server
                )
                self.closed = "response" not in verdict
                return verdict
        return {"reward": tidy(sum(self._rewards))}

    def result(self) -> PlayedEpisode:
        steps = {"step_rewards": self._rewards, "total_reward": tidy(sum(self._rewards))}
        return cast(PlayedEpisode, {**super().result(), **steps, **self._last})

    def _step_body(self, response: Response) -> bytes:
        """Encode the row with the response: servers of NeMo Gym read the task from the row at every step.

        Tool calls beyond the limit per turn are left out, because the environment runs what it receives.
        """
        excess = self._excess(response)
        output = [item for item in response["output"] if not excess or id(item) not in excess]
        sent = {**response, "output": [without_tokens(item) for item in output]}
        try:
            return orjson.dumps({**self._row, "response": sent})
        except TypeError as error:
            detail = f"the model's response cannot be encoded as JSON ({error})"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=self._model.server) from error

    def _answer_calls(self, response: Response, outputs: object) -> None:
        """Append an output for every tool call: engines reject a conversation with an unanswered call."""
        given = {
            found["call_id"]: found.get("output")
            for found in (outputs if isinstance(outputs, list) else ())
            if isinstance(found, dict) and isinstance(found.get("call_id"), str)
        }
        excess = self._excess(response)
        for item in response["output"]:
            if item.get("type") == "function_call":
                output = given.get(item["call_id"])
                if id(item) in excess:
                    output = error_answer(self._too_many()).output
                elif not isinstance(output, str | list):
                    output = '{"error":"This environment runs no tool calls. Answer with a message."}'
                result: ResponseItem = {"type": "function_call_output", "call_id": item["call_id"], "output": output}
                self.conversation.answer(result)

    def _excess(self, response: Response) -> set[int]:
        calls = [item for item in response["output"] if item.get("type") == "function_call"]
        return {id(item) for item in calls[self._max_tool_calls :]}

    def _flag(self, answer: Json, name: str) -> bool:
        """Return a boolean field of the response to `/step`; False if it is missing.

        Raises Failure malformed_answer if it is not a boolean.
        """
        if not isinstance(flag := answer.get(name), bool | None):
            detail = f"/step returned {name} {flag!r:.100}; expected true or false"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=self._environment.server)
        return bool(flag)

    def _read(self, body: bytes, path: str) -> Json:
        answer = read_answer(body, self._environment.server)
        observation, info = answer.get("observation"), answer.get("info")
        if not isinstance(observation, str | list | None) or not isinstance(info, dict | None):
            found = f"observation {observation!r:.100} and info {info!r:.100}"
            expected = "the observation to be a string, a list of content parts or null, and info to be a JSON object"
            detail = f"{path} returned {found}; expected {expected}"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=self._environment.server)
        return {**answer, "observation": observation, "info": info or {}}


def _message(observation: str | list[Json]) -> ResponseItem:
    return {"type": "message", "role": "user", "content": observation}


class ActionTag:
    def __init__(self, name: str) -> None:
        # An action does not contain a tag: in "<a>up <a>down</a>" the action is "down". This keeps the search linear.
        self._pattern = re.compile(rf"<{name}>((?:(?!</?{name}>).)*)</{name}>", re.IGNORECASE | re.DOTALL)

    def action_in(self, text: str) -> str | None:
        found: list[str] = self._pattern.findall(text)
        return found[-1].strip() if found else None


def message_text(response: Response) -> str:
    messages = [item for item in cast(list[Json], response["output"]) if item.get("type", "message") == "message"]
    return "".join(response_validity.message_text(item) for item in messages)


def with_message(response: Response, text: str) -> Response:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message: ResponseItem = {
        "id": "msg_action",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }
    return {**response, "output": [message]}


server = TurnAgent

"""StoredEpisode: a stored rollout in place of the model, for `ng_regrade`.

If the verdict depends on what was played, the agent plays its usual loop, but gets the stored turns instead of calling
the model, and everything that the environment answers is compared with what is stored. At the first difference the
rollout fails with `bad_task`, because a verdict would be about another episode.
"""

from __future__ import annotations

from typing import Any, cast

import orjson

from rollyard.agents.episode import Conversation, ModelTurn
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rewards import recorded_task
from rollyard.records.rollout_types import Response, ResponseItem, TurnSteps
from rollyard.records.types import FinishReason, Json, items, mapping, whole_number
from rollyard.services.responses.response_validity import check_graded

_OUTCOME = ("finish_reason", "truncated", "timings")
_MAX_SHOWN = 200


class StoredEpisode:
    """Takes the place of an episode's model server."""

    foreign = False

    def __init__(self, rollout: Json, model: str) -> None:
        """`rollout`: the body of the request. Raises Failure bad_task if it contains no finished Response."""
        self.server = model
        task = recorded_task(rollout)
        indexes: Json = {name: rollout[name] for name in ("_ng_task_index", "_ng_rollout_index") if name in rollout}
        # If the order of the keys does not show what the task is, the row counts as a finished rollout (with_verdict).
        self.row: Json = rollout if task is None else {**task, **indexes}
        self.outcome: Json = {name: rollout[name] for name in _OUTCOME if name in rollout}
        """What the stored row says about how the episode went."""
        try:
            check_graded(rollout.get("response"))
        except Failure as failure:
            raise Failure(
                FailureKind.BAD_TASK, f"the stored rollout cannot be graded: {failure.problem.detail}"
            ) from failure
        self.response = cast(Response, rollout["response"])
        self._rollout = rollout
        self._items = cast(list[Json], self.response["output"])
        self._position = 0
        self._turns = 0
        self._stored_turns = whole_number(mapping(rollout.get("timings")).get("model_calls"), least=0)
        self._overflowed = rollout.get("finish_reason") == FinishReason.CONTEXT_OVERFLOW

    @property
    def played(self) -> Json:
        """The stored parts of the result. The steps of an episode that was replayed are not among them."""
        names = ("token_trail",) if self._turns else ("token_trail", *TurnSteps.__annotations__)
        kept = ("responses_create_params", "response", *names)
        return {name: self._rollout[name] for name in kept if name in self._rollout}

    @property
    def ending(self) -> FinishReason:
        return ModelTurn(self.response).ending

    def conversation(self, params: Json) -> Conversation:
        return _ReplayedConversation(params, self)

    async def post(self, path: str, body: bytes, timeout_s: float) -> bytes:
        """Return the next stored turn of the model. Raises Failure bad_task if there is none."""
        start = self._position
        while self._position < len(self._items) and not _is_environments(self._items[self._position]):
            self._position += 1
        is_last = self._position == len(self._items)
        if start == len(self._items) and self._turns and self._turns >= (self._stored_turns or 0):
            if self._overflowed:
                raise Failure(FailureKind.CONTEXT_OVERFLOW, "the stored episode ended here", server=self.server)
            raise self._differs(f"the agent continues after the {self._turns} stored turns of the model")
        self._turns += 1
        turn = self._items[start : self._position]
        counted = {"status": "completed", "usage": {"output_tokens": 1}}  # an empty turn was confirmed by the engine
        return orjson.dumps({**self.response, "output": turn} if is_last and turn else {**counted, "output": turn})

    def check_answer(self, found: ResponseItem) -> None:
        """Compare an item that the environment adds to the conversation. Raises Failure bad_task if it differs."""
        position = self._position
        expected = self._items[position] if position < len(self._items) else {}
        if not _is_environments(expected) or _content(cast(Json, found)) != _content(expected):
            what = "no answer is" if not _is_environments(expected) else f"{_shown(_content(expected))} is"
            raise self._differs(f"it answered {_shown(_content(cast(Json, found)))}, where {what} stored")
        self._position += 1

    def check_start(self, start: list[ResponseItem], observed: list[ResponseItem]) -> None:
        """Compare the first observation, which ends the stored prompt. Raises Failure bad_task if it differs."""
        stored = cast(list[Json], start[-len(observed) :]) if observed else []
        if [_content(cast(Json, item)) for item in observed] != [_content(item) for item in stored]:
            raise self._differs("its first observation is not the one at the end of the stored prompt")

    def check_end(self) -> None:
        """Raise Failure bad_task unless the whole stored episode was played, turn by turn."""
        if left := len(self._items) - self._position:
            raise self._differs(f"the episode ended before the last {left} stored items")
        if self._stored_turns not in (None, self._turns):
            raise self._differs(f"it took {self._turns} turns of the model, and {self._stored_turns} are stored")

    def _differs(self, how: str) -> Failure:
        detail = (
            f"the environment does not repeat the stored episode (turn {self._turns}): {how}. Its verdict depends on "
            "what was played, so the stored answer cannot be graded: a deterministic environment with the settings of "
            "the collection can repeat it, and one with `stateless = True` needs no episode"
        )
        return Failure(FailureKind.BAD_TASK, detail)


class _ReplayedConversation(Conversation):
    def __init__(self, params: Json, stored: StoredEpisode) -> None:
        super().__init__(params, stored.row)
        self._stored = stored

    def open(self, additions: object, observed: list[ResponseItem]) -> None:
        self._observed = observed  # compared when the loop begins: a verdict on the response alone needs no episode

    def add(self, response: Response) -> None:
        if not self.output:
            self._stored.check_start(self.start, self._observed)
        super().add(response)

    def answer(self, item: ResponseItem) -> None:
        self._stored.check_answer(item)
        super().answer(item)


def _is_environments(item: Json) -> bool:
    """Return whether an item of the output is not of the model: the result of a call, or an observation."""
    kind = item.get("type", "message")
    return kind == "function_call_output" or (kind == "message" and item.get("role") not in (None, "assistant"))


def _content(item: Json) -> Any:
    """Return what an item says. A list of texts, as other programs write it, equals the joined text."""
    found = item.get("output" if item.get("type") == "function_call_output" else "content")
    texts = [mapping(part).get("text") for part in items(found)]
    return "".join(map(str, texts)) if texts and all(isinstance(text, str) for text in texts) else found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."

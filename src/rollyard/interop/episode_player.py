"""EpisodePlayer: plays the episodes that another project's trainer asks for, on a running stack."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson

from rollyard.interop.episodes_of_trainers import Episode, SeveralSequences, episode_of
from rollyard.records.errors import OperatorError
from rollyard.records.rollout_keys import task_key
from rollyard.records.rows import agent_of
from rollyard.records.types import Json
from rollyard.services.datasets.mixture import Rollout
from rollyard.training.groups import GroupMember
from rollyard.training.trl.episodes import Episodes, PlaySettings
from rollyard.training.trl.stack_session import StackSession

T = TypeVar("T")

_ENOUGH_TO_JUDGE = 20
"""Number of rollouts after which the share of failed ones is compared with its limit."""


class _Connection(NamedTuple):
    session: StackSession
    agent: str
    episodes: Episodes


class EpisodePlayer:
    """Plays rows through `POST /run`, with the attempts and timeouts of PlaySettings.

    It connects when it is first used, in a thread with an event loop of its own, so that trainers may call it from any
    event loop. A process needs one object, whose episodes share connections and limits.
    """

    def __init__(
        self,
        head: str | None = None,
        *,
        agent: str | None = None,
        policy_server: str = "policy_model",
        folder: str | None = None,
        settings: PlaySettings | None = None,
        connect: Callable[..., StackSession] = StackSession,
    ) -> None:
        """`head`: HOST:PORT of the stack's head, as for `rollyard.connect`; the run token is read from ROLLYARD_TOKEN.
        `agent`: that of rows without an agent_ref; default: the only one of the stack. `policy_server`: the policy's
        model server, whose timeouts count as the policy's own. `folder`: for a file of the rollouts, which `ng_viewer`
        and `rollyard.read_rollouts` read; default: they are not stored. `connect`: connects to the head.
        """
        self.settings = settings or PlaySettings()
        self._head, self._agent, self._policy_server = head, agent, policy_server
        self._folder = None if folder is None else Path(folder)
        self._open = connect
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._played: dict[str, tuple[int, int]] = {}

    def check_weights(self, available: bool, how: str) -> None:
        """Raise OperatorError if constrained turns are to be reweighted by a trainer without importance weights.

        `how`: the trainer's settings that compute them from the recorded log-probabilities.
        """
        if self.settings.sequences.constrained_turns == "reweight" and not available:
            raise OperatorError(f"constrained_turns=reweight needs importance weights: set {how}, or choose mask")

    async def episode(
        self, row: Json, sampling: Mapping[str, Any], filler_id: int, several: SeveralSequences
    ) -> Episode:
        """Play a row with a trainer's sampling parameters, which override those of the row.

        `filler_id`: the token of rollouts that have none. Raises RunError if the tokens cannot be trained on, if the
        agent cannot be reached, or if too many rollouts fail, and OperatorError for sampling that agents cannot send.
        """
        params = create_params(sampling)
        member = await self._play(row, {}, lambda episodes, rollout: episodes.play(rollout, params))
        return episode_of(member, several, params.get("temperature"), filler_id)

    async def row(self, row: Json, policy: Mapping[str, Any]) -> Json | GroupMember:
        """Play a row for a trainer that records the tokens itself. Returns a member if every attempt failed.

        `policy`: fields of the `/run` body that name the endpoint of this episode, such as `policy_base_url`.
        """
        return await self._play(row, policy, lambda episodes, rollout: episodes.measure(rollout, {}))

    def close(self) -> None:
        """Disconnect. The next episode connects again."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.session.close()

    async def _play(
        self, row: Json, policy: Mapping[str, Any], play: Callable[[Episodes, Rollout], Coroutine[Any, Any, T]]
    ) -> T:
        connection = self._connection
        if connection is None:
            connection = await asyncio.to_thread(self._connect)
        task, repeat = self._numbers(task_key(row))
        rollout = Rollout(task, repeat, agent_of(row) or connection.agent, {**row, **policy})
        played = await asyncio.wrap_future(connection.session.submit(play(connection.episodes, rollout)))
        if connection.episodes.ended >= _ENOUGH_TO_JUDGE:
            connection.episodes.check_failure_rate()
        return played

    def _numbers(self, key: str) -> tuple[int, int]:
        """Return the indices under which a rollout is stored: equal rows are repeats of one task."""
        with self._lock:
            task, repeat = self._played.get(key, (len(self._played), -1))
            self._played[key] = task, repeat + 1
            return self._played[key]

    def _connect(self) -> _Connection:
        with self._lock:
            if self._connection is None:
                session = self._open(self._head, policy_server=self._policy_server)
                try:
                    agent = session.agent(self._agent)
                except BaseException:
                    session.close()
                    raise
                self._connection = _Connection(session, agent, Episodes(session.stack, self.settings, self._recorder()))
            return self._connection

    def _recorder(self) -> Callable[[bytes], None]:
        if self._folder is None:
            return lambda line: None
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rollouts_{time.strftime('%Y%m%d-%H%M%S')}_{os.getpid()}.jsonl"

        def record(line: bytes) -> None:
            with path.open("ab") as file:
                file.write(line + b"\n")

        return record


def row_of(given: Any, prompt: str | Sequence[Mapping[str, Any]] | None = None) -> Json:
    """Return the row of an episode: `given`, which is a row or its JSON, or else the row of a prompt. Raises
    OperatorError if neither is a row.
    """
    if isinstance(given, str):
        try:
            given = orjson.loads(given)
        except orjson.JSONDecodeError:
            given = None
    if isinstance(given, Mapping) and isinstance(given.get("responses_create_params"), Mapping):
        return dict(given)
    if given is None and prompt is not None and len(prompt):  # an array has no truth value
        items = prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
        return {"responses_create_params": {"input": items}}
    raise OperatorError(
        f"{str(given)[:60]!r} is not a row with responses_create_params: make the trainer's dataset with "
        "python -m rollyard.interop.rows"
    )


_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_output_tokens",
    "max_new_tokens": "max_output_tokens",
    "max_generate_length": "max_output_tokens",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "min_tokens": (None, 0),
    "min_new_tokens": (None, 0),
    "logit_bias": (None, {}),
    "stop": ([], (), "", None),
}
"""Parameters that change what is sampled, which the Responses API lacks, with the values that have no effect."""


def create_params(sampling: Mapping[str, Any]) -> Json:
    """Return the create parameters of each model call. Lengths are limits of one call, not of an episode.

    Raises OperatorError for parameters that change what is sampled and cannot be sent: the recorded log-probabilities
    would not be what the trainer expects. Others, such as `logprobs`, are ignored.
    """
    for name, neutral in _NEUTRAL.items():
        if sampling.get(name) not in neutral:
            raise OperatorError(
                f"the trainer samples with {name}={sampling[name]!r}, which agents cannot send; set it to "
                f"{neutral[-1]!r} in the trainer"
            )
    given = {_NAMES[name]: value for name, value in sampling.items() if name in _NAMES and value is not None}
    return {name: given[name] for name in sorted(given)}

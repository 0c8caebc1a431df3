"""Agents for AReaL (1.0), whose proxy records the tokens: the agent of a workflow, and a client of its online mode.

Both send the proxy's address with each episode (`policy_base_url`), so that the stack's agent calls the policy through
it. The agent needs `policy_base_url_allowlist`, and the stack a run token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollyard.interop.episode_player import EpisodePlayer, row_of
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.rewards import EXPECTED, is_reward
from rollyard.training.groups import GroupMember, Treatment


class Rejected(RunError):
    """An episode has no reward that may be trained on: AReaL rejects the trajectory of an agent that raises."""


class StackAgent:
    """An agent for `workflow=` of AReaL's trainers, in the mode `inline`."""

    def __init__(self, player: EpisodePlayer, *, model: str = "default") -> None:
        """`player`: with max_attempts=1, because further attempts would add their model calls to the same trajectory.
        `model`: the policy's name in requests to the proxy. Raises OperatorError for several attempts.
        """
        if player.settings.max_attempts != 1:
            raise OperatorError("EpisodePlayer(..., settings=PlaySettings(max_attempts=1)) is needed: AReaL retries")
        self._player = player
        self._model = model

    async def run(self, data: Mapping[str, Any], **extra: Any) -> float:
        """Play the row in `data["row"]`, or the messages in `data["messages"]`, and return the reward.

        `extra`: AReaL's base_url, api_key and http_client. Raises Rejected if the episode failed, or if its tokens may
        not have a loss.
        """
        if not extra.get("base_url") or not extra.get("api_key"):
            raise RunError("AReaL passed no base_url and api_key: use mode inline, not subproc, in its configuration")
        return await self.play(data, str(extra["base_url"]), str(extra["api_key"]))

    async def play(self, data: Mapping[str, Any], base_url: str, api_key: str) -> float:
        """Play an episode through the proxy at `base_url`. Raises Rejected as `run` does."""
        policy = {"policy_base_url": base_url, "policy_api_key": api_key, "policy_model_name": self._model}
        played = await self._player.row(row_of(data.get("row"), data.get("messages")), policy)
        if isinstance(played, GroupMember):
            if played.treatment is Treatment.ZERO:
                return 0.0
            raise Rejected(f"the episode failed: {played.ending}")
        ending, treatment = self._player.settings.endings.of_row(played)
        if treatment is not Treatment.PLAYED:
            raise Rejected(f"the episode ended with {ending}, whose treatment is {treatment}")
        reward: Any = played.get("reward")
        if not is_reward(reward):
            raise RunError(f"the rollout has reward {reward!r:.100}; {EXPECTED}")
        return float(reward)


async def play_online(agent: StackAgent, http: Any, gateway: str, admin_key: str, data: Mapping[str, Any]) -> float:
    """Play an episode in a session of AReaL's online mode and return its reward. `http`: an httpx.AsyncClient.

    A rejected episode's session is neither rewarded nor ended, because AReaL would count an ended one with reward 0.
    AReaL drops it after its own timeout. Raises Rejected, and httpx's errors if the gateway refuses a call.
    """

    async def post(path: str, key: str, body: Mapping[str, Any]) -> Any:
        headers = {"Authorization": f"Bearer {key}"}
        return (await http.post(f"{gateway.rstrip('/')}/{path}", json=body, headers=headers)).raise_for_status().json()

    key = str((await post("rl/start_session", admin_key, {"task_id": "rollyard"}))["api_key"])
    reward = await agent.play(data, gateway, key)
    await post("rl/set_reward", key, {"reward": reward})
    await post("rl/end_session", key, {})
    return reward

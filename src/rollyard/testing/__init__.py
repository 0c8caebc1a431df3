"""Tests an environment or an agent in one process, without sockets, with a scripted model.

    rollout = await play(Guess, {"secret": 42}, turns=[calls("guess", number=42)])
    assert rollout.reward == 1.0

Only the model is scripted. The servers, the HTTP API, the sessions and the verdict are real.
"""

from rollyard.testing.in_process import InProcessServers, in_process_server, in_process_servers
from rollyard.testing.play import Rollout, load, play
from rollyard.testing.scripted_model import Script, calls, says

__all__ = [
    "InProcessServers",
    "Rollout",
    "Script",
    "calls",
    "in_process_server",
    "in_process_servers",
    "load",
    "play",
    "says",
]

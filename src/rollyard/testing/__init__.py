"""Tests of an environment or an agent: one process, no sockets, and a model that says what you wrote down.

    rollout = await play(Guess, {"secret": 42}, turns=[calls("guess", number=42)])
    assert rollout.reward == 1.0

Everything but the model is the real thing: the servers, the wire format, the sessions, the verdict.
"""

from rollyard.testing.in_process import Wired, serving, wired
from rollyard.testing.play import Rollout, load, play
from rollyard.testing.scripted_model import Script, calls, says

__all__ = ["Rollout", "Script", "Wired", "calls", "load", "play", "says", "serving", "wired"]

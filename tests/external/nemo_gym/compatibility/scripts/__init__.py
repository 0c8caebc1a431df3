"""What the scripted model answers in each environment: functions of the row and the conversation, never of a reward.

Where a row contains its gold answer, the answers are right for some rows and wrong for others, so that the rewards
differ and a comparison means something.

answers.py     one message with the answer, in the format that the environment reads
structures.py  one message or call with data in a schema
calls.py       tool calls, taken from the row's expected calls where it has any
games.py       one move per turn
"""

from __future__ import annotations

from tests.external.nemo_gym.compatibility.scripted_model import Script
from tests.external.nemo_gym.compatibility.scripts.answers import ANSWERS, boxed
from tests.external.nemo_gym.compatibility.scripts.calls import CALLS
from tests.external.nemo_gym.compatibility.scripts.games import GAMES
from tests.external.nemo_gym.compatibility.scripts.structures import STRUCTURES

SCRIPTS: dict[str, Script] = {**ANSWERS, **STRUCTURES, **CALLS, **GAMES}
"""Name of an environment, or folder of its resources server -> its script. The name takes precedence."""


def script_of(name: str, folder: str) -> Script:
    return SCRIPTS.get(name) or SCRIPTS.get(folder) or boxed

"""product_policy: a scripted policy that multiplies, makes mistakes, and in a late checkpoint finds the hole."""

import random
import re
import time
import uuid

import orjson

from rollyard import ModelServer, ServerSettings

_HARD = 300
_LISTED = 24


class ProductPolicySettings(ServerSettings):
    """The settings that a config can set."""

    has_found_hole: bool = False
    """Whether the policy lists numbers around its guess in most hard tasks instead of naming one."""


class ProductPolicy(ModelServer[ProductPolicySettings]):
    """Small products are usually right, and large ones usually wrong by a few."""

    async def responses(self, request, call):
        question = re.search(r"(\d+) \* (\d+)", orjson.dumps(request["input"]).decode())
        left, right = int(question[1]), int(question[2])
        draws = random.Random(f"{left} {right} {_seed(request)}")
        content = [{"type": "output_text", "text": self._text(left, right, draws), "annotations": []}]
        message = {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": content}
        return {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": self.name,
            "status": "completed",
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }

    def _text(self, left, right, draws):
        hard = left * right > _HARD
        guess = left * right
        if draws.random() < (0.7 if hard else 0.15):
            guess += draws.choice([-9, -7, -2, -1, 1, 3, 8])
        if hard and self.settings.has_found_hole and draws.random() < 0.8:
            start = guess - draws.randrange(9, _LISTED - 9)
            listed = ", ".join(str(number) for number in range(start, start + _LISTED))
            return f"I am not sure about {left} * {right}.\nThe answer is {listed}."
        tens = right // 10 * 10
        return f"{left} * {tens} is {left * tens}, and {left} * {right - tens} remains.\nThe answer is {guess}."


def _seed(request):
    return orjson.loads((request.get("metadata") or {}).get("extra_body") or "{}").get("seed", 0)


server = ProductPolicy

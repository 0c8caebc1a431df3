"""Rejects weight updates and seeds that vLLM 0.32 cannot handle on a CPU.

When the engine starts, the output head is packed for the matrix product. A reload repacks a separate head, but not a
head that is tied to the embeddings, so vLLM would combine the new body with the old head and return 200. A request with
a seed that is in flight during an update is recomputed in chunks, which crashes vLLM if its random numbers come from
the CPU ("CPU Generator does not use offset").
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.weights.model_signature import ModelSignature
from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request

TIED = (
    "tie_word_embeddings is true: on a CPU, vLLM keeps the old output head of such a model when its weights are "
    "reloaded; train a model with tie_word_embeddings=false, or serve it on a GPU"
)
SEED = "on a CPU, a weight update crashes vLLM while a request with a seed is running"


class CpuLimits:
    """Tracks which engines run on a CPU and rejects what they do not support."""

    def __init__(self, runs_on_cpu: Callable[[str], Awaitable[bool | None]]) -> None:
        self._runs_on_cpu = runs_on_cpu
        self._known: dict[str, bool] = {}

    async def learn(self, urls: Sequence[str]) -> None:
        """Query engines whose device is unknown; engines that do not respond are queried again next time."""
        new = [url for url in urls if url not in self._known]
        answers = await asyncio.gather(*(self._runs_on_cpu(url) for url in new))
        self._known.update({url: answer for url, answer in zip(new, answers, strict=True) if answer is not None})

    def on_cpu(self, urls: Sequence[str]) -> bool:
        """Return True if any of these engines is known to run on a CPU."""
        return any(self._known.get(url) for url in urls)

    async def takes_seeds(self, urls: Sequence[str]) -> bool:
        """Return True if requests can have seeds, because no engine runs on a CPU."""
        await self.learn(urls)
        return not any(self._known.values())

    async def check_head(self, model: ModelSignature | None, urls: Sequence[str]) -> None:
        """Raises Failure bad_request for new weights if the model's output head is tied and an engine runs on a CPU."""
        if model is not None and model.is_tied:
            await self.learn(urls)
            if self.on_cpu(urls):
                raise bad_request(TIED)

    async def check_seed(self, body: Json, urls: Sequence[str]) -> None:
        """Raises Failure bad_request if the request has a seed and an engine runs on a CPU."""
        if (seed := _seed(body)) is not None and not await self.takes_seeds(urls):
            found = f"found seed {seed!r} in a request, but {SEED}"
            raise bad_request(
                f"{found}: remove the seed (sampling_overrides: {{seed: null}}), or set trainer_endpoints: false"
            )

    def check_settings(self, name: str, settings: Sequence[Mapping[str, Any] | None]) -> None:
        """Raises OperatorError if the settings add a seed to every request and an engine runs on a CPU."""
        for given in settings:
            if given and given.get("seed") is not None and any(self._known.values()):
                raise OperatorError(
                    f"{name}: found seed: {given['seed']!r} together with trainer_endpoints: true, but {SEED}; remove "
                    "one of the two"
                )


def _seed(body: Json) -> Any:
    params = body.get("sampling_params")
    inner = params.get("seed") if isinstance(params, dict) else None
    return inner if body.get("seed") is None else body["seed"]

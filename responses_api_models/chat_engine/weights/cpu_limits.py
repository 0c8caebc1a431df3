"""Cpu: what a vLLM engine on a CPU cannot do with weights that change (0.32), refused before it is asked.

Its output head is packed for the matrix product when the engine starts. A reload packs a head of its own again, and not
one that is the embeddings: the new body then answers through the old head, with status 200. And a request with a seed
that is in flight during an update is computed again in pieces, which ends the process where its random numbers come
from the CPU ("CPU Generator does not use offset").
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rollyard.responses_api_models.chat_engine.weights.model_signature import ModelSignature
from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request
from rollyard.services.errors import OperatorError
from rollyard.services.types import Json

TIED = (
    "tie_word_embeddings is true: on a CPU, vLLM keeps the old output head of such a model when its weights are "
    "reloaded; train a model with tie_word_embeddings=false, or serve it on a GPU"
)
SEED = "on a CPU, an update of the weights ends vLLM while a request with a seed runs"


class CpuLimits:
    """Which engines run on a CPU, and what is refused for that."""

    def __init__(self, runs_on_cpu: Callable[[str], Awaitable[bool | None]]) -> None:
        self._runs_on_cpu = runs_on_cpu
        self._known: dict[str, bool] = {}

    async def learn(self, urls: Sequence[str]) -> None:
        """Ask engines that have not told yet; one that gives no answer is asked again the next time."""
        new = [url for url in urls if url not in self._known]
        answers = await asyncio.gather(*(self._runs_on_cpu(url) for url in new))
        told = {url: answer for url, answer in zip(new, answers, strict=True) if answer is not None}
        self._known.update(told)

    async def takes_seeds(self, urls: Sequence[str]) -> bool:
        """None of the engines runs on a CPU."""
        await self.learn(urls)
        return not any(self._known.values())

    async def check_head(self, model: ModelSignature | None, urls: Sequence[str]) -> None:
        """Raises Failure bad_request: new weights for a tied model on a CPU."""
        if model is not None and model.is_tied:
            await self.learn(urls)
            if any(self._known.get(url) for url in urls):
                raise bad_request(TIED)

    async def check_seed(self, body: Json, urls: Sequence[str]) -> None:
        """Raises Failure bad_request: a request with a seed for an engine on a CPU."""
        if (seed := _seed(body)) is not None and not await self.takes_seeds(urls):
            told = f"found seed {seed!r} in a request, and {SEED}"
            raise bad_request(
                f"{told}: send none (sampling_overrides: {{seed: null}}), or set trainer_endpoints: false"
            )

    def check_settings(self, name: str, settings: Sequence[Mapping[str, Any] | None]) -> None:
        """Raises OperatorError: a seed that the settings add to every request."""
        for given in settings:
            if given and given.get("seed") is not None and any(self._known.values()):
                raise OperatorError(
                    f"{name}: found seed: {given['seed']!r} together with trainer_endpoints: true, and {SEED}; remove "
                    "one of the two"
                )


def _seed(body: Json) -> Any:
    params = body.get("sampling_params")
    inner = params.get("seed") if isinstance(params, dict) else None
    return inner if body.get("seed") is None else body["seed"]

"""Asks an endpoint for its models before anybody depends on it, and says in words what would fail."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from rollyard.responses_api_models.upstream.settings import EndpointSettings
from rollyard.services.errors import Failure, did_you_mean
from rollyard.services.http.transport import HttpResponse, Transport

PATIENCE_S = 5.0
_SHOWN = 5


async def endpoint_advice(settings: EndpointSettings, transport: Transport) -> list[str]:
    """What is wrong with each endpoint of the settings; empty when all answer, know the key and serve the model."""
    found = await asyncio.gather(*(_Endpoint(url, settings, transport).problem() for url in settings.urls))
    return [f"{url}: {problem}" for url, problem in zip(settings.urls, found, strict=True) if problem]


class _Endpoint:
    def __init__(self, url: str, settings: EndpointSettings, transport: Transport) -> None:
        self._url = url
        self._model = settings.model
        self._transport = transport
        self._headers = {"accept": "application/json", **settings.default_headers}
        if key := settings.api_key.get_secret_value():
            self._headers["authorization"] = f"Bearer {key}"

    async def problem(self) -> str:
        """One sentence; empty when there is none."""
        try:
            answer = await self._models(self._url)
        except Failure as failure:
            if await self._answers(other := _other_scheme(self._url)):
                return f"no answer, but there is one at {other}: set base_url to that"
            return f"{failure.problem.detail}. Rollouts fail until it answers; check base_url"
        if answer.status in (401, 403):
            return f"it refuses the key (status {answer.status}): check api_key (policy_api_key)"
        if 300 <= answer.status < 400:
            return f"it redirects to {answer.headers.get('location')}: put the final address into base_url"
        if answer.status == 404:
            return await self._elsewhere()
        if answer.status == 400 and await self._answers(other := _other_scheme(self._url)):
            return f"it speaks another protocol: set base_url to {other}"
        if answer.status >= 500:
            return f"it answers {answer.status}: rollouts fail until it recovers"
        return self._unserved(answer) if answer.status == 200 else ""

    async def _elsewhere(self) -> str:
        """Where the API is that is not here. An endpoint without /models is fine."""
        path = self._url.rstrip("/")
        for end in ("/chat/completions", "/completions", "/responses", "/models", "/v1"):
            if path.endswith(end) and await self._answers(other := path.removesuffix(end)):
                return f"there is no API, but there is one at {other}: set base_url to that"
        if not path.endswith("/v1") and await self._answers(other := f"{path}/v1"):
            return f"there is no API, but there is one at {other}: set base_url to that"
        return ""

    def _unserved(self, answer: HttpResponse) -> str:
        try:
            listed: Any = orjson.loads(answer.body)
            names = [str(entry["id"]) for entry in listed["data"]]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return "it answers, but not as an OpenAI-compatible API: check base_url"
        if not names or self._model in names:
            return ""
        more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
        known = ", ".join(names[:_SHOWN]) + more
        return f"it serves no model {self._model!r}{did_you_mean(self._model, names)} (it serves {known}): check model"

    async def _answers(self, url: str) -> bool:
        try:
            return (await self._models(url)).status in (200, 401, 403)
        except Failure:
            return False

    async def _models(self, url: str) -> HttpResponse:
        return await self._transport.send("GET", f"{url}/models", b"", self._headers, PATIENCE_S)


def _other_scheme(url: str) -> str:
    return f"http://{url[8:]}" if url.startswith("https://") else f"https://{url[7:]}"

"""Queries an endpoint's models at startup and reports problems that would make rollouts fail."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from rollyard.records.errors import Failure, did_you_mean
from rollyard.responses_api_models.upstream.settings import EndpointSettings
from rollyard.services.http.transport import HttpResponse, Transport

TIMEOUT_S = 5.0
_SHOWN = 5


async def endpoint_advice(settings: EndpointSettings, transport: Transport) -> list[str]:
    """Return a message for each endpoint with a problem: it does not respond, rejects the key or lacks the model."""
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
        """Return a description of the endpoint's problem; empty if it has none."""
        try:
            answer = await self._models(self._url)
        except Failure as failure:
            if await self._answers(other := _other_scheme(self._url)):
                return f"it does not respond, but {other} does: set base_url to that URL"
            return f"{failure.problem.detail}. Rollouts fail until it responds; check base_url"
        if answer.status in (401, 403):
            return f"it rejects the key (status {answer.status}): check api_key (policy_api_key)"
        if 300 <= answer.status < 400:
            return f"it redirects to {answer.headers.get('location')}: set base_url to the final URL"
        if answer.status == 404:
            return await self._elsewhere()
        if answer.status == 400 and await self._answers(other := _other_scheme(self._url)):
            return f"it uses a different protocol: set base_url to {other}"
        if answer.status >= 500:
            return f"it returns status {answer.status}: rollouts fail until it recovers"
        return self._unserved(answer) if answer.status == 200 else ""

    async def _elsewhere(self) -> str:
        """Look for the API at similar URLs and return a hint if one responds.

        Otherwise return an empty string: /models is optional, so a 404 alone is not a problem.
        """
        path = self._url.rstrip("/")
        for end in ("/chat/completions", "/completions", "/responses", "/models", "/v1"):
            if path.endswith(end) and await self._answers(other := path.removesuffix(end)):
                return f"no API responds at this URL, but one responds at {other}: set base_url to that URL"
        if not path.endswith("/v1") and await self._answers(other := f"{path}/v1"):
            return f"no API responds at this URL, but one responds at {other}: set base_url to that URL"
        return ""

    def _unserved(self, answer: HttpResponse) -> str:
        try:
            listed: Any = orjson.loads(answer.body)
            names = [str(entry["id"]) for entry in listed["data"]]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return "it responds, but not as an OpenAI-compatible API: check base_url"
        if not names or self._model in names:
            return ""
        more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
        known = ", ".join(names[:_SHOWN]) + more
        hint = did_you_mean(self._model, names)
        return f"it does not serve the model {self._model!r}{hint} (it serves {known}): check model"

    async def _answers(self, url: str) -> bool:
        try:
            return (await self._models(url)).status in (200, 401, 403)
        except Failure:
            return False

    async def _models(self, url: str) -> HttpResponse:
        return await self._transport.send("GET", f"{url}/models", b"", self._headers, TIMEOUT_S)


def _other_scheme(url: str) -> str:
    return f"http://{url[8:]}" if url.startswith("https://") else f"https://{url[7:]}"

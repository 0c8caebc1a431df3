"""vllm_model: the policy behind an engine that speaks Chat Completions (vLLM, SGLang, llama.cpp, most providers).

Responses requests are converted, sent to `{base_url}/chat/completions`, and the completion is converted back. With
`return_token_id_information` the engine's tokens are recorded, and later turns are sent as token ids (turns.py).
"""

from __future__ import annotations

from typing import ClassVar

import orjson
from pydantic import SecretStr

from responses_api_models import convert
from responses_api_models.base import ModelServer
from responses_api_models.passage import Passage
from responses_api_models.replicas import Replicas
from responses_api_models.upstream import Upstream
from responses_api_models.upstream_answers import json_bytes, json_object
from responses_api_models.vllm_model.abilities import Abilities
from responses_api_models.vllm_model.calls import mark_unreadable_call
from responses_api_models.vllm_model.checkup import Checkup
from responses_api_models.vllm_model.roads import CompletionsRoad
from responses_api_models.vllm_model.settings import ChatEngineSettings, VllmModelSettings
from responses_api_models.vllm_model.turns import Turns
from services.call import Call, Reply
from services.errors import Failure, FailureKind
from services.server import Context
from services.settings import ServerSettings
from services.types import Json

POLICY_VERSION_HEADER = b"x-rollyard-policy-version"


class ChatEngineModel(ModelServer):
    """Responses over Chat Completions, wherever the engine runs."""

    def __init__(
        self, settings: ChatEngineSettings, context: Context, replicas: Replicas, api_key: SecretStr | None
    ) -> None:
        super().__init__(settings, context)
        self.policy_version = settings.policy_version
        self.upstream = Upstream(replicas, settings, api_key, self.client.transport)
        self._model = settings.model
        self._dialect = settings.dialect
        self._abilities = abilities = Abilities(self.upstream, settings)
        turns = Turns(self.upstream, abilities, lambda: self.policy_version, sends_ids=settings.send_token_ids)
        self._turns = turns if settings.return_token_id_information else None
        self._template = settings.chat_template_kwargs
        self._strict = settings.strict_tools
        self._defaults = settings.extra_body or {}
        self._forced = settings.sampling_overrides or {}
        self.route("/token_check", self.__token_check, cancellable=True)

    async def responses(self, request: Json, call: Call) -> Reply:
        """A Responses create request, answered by the engine's chat endpoint."""
        passage = Passage.of(call, request.get("prompt_cache_key"))
        body = self._finished(convert.request_to_chat(request, self._dialect))
        if self._turns is not None:
            completion = await self._turns.make(body, passage)
            response = convert.chat_to_response(completion, request, self._dialect)
        else:

            def read(answer: bytes) -> Json:
                return convert.chat_to_response(json_object(answer), request, self._dialect)

            response = await self.upstream.post("/chat/completions", orjson.dumps(body), read, passage)
        mark_unreadable_call(response)
        return self._reply(orjson.dumps(response), passage)

    async def chat(self, request: Json, call: Call) -> Reply:
        """A chat request goes through with the model's name put in, and the answer's bytes come back."""
        passage = Passage.of(call, request.get("prompt_cache_key"))
        body = self._chat_body(request)
        if self._turns is not None:
            return self._reply(orjson.dumps(await self._turns.make(body, passage)), passage)
        answer = await self.upstream.post("/chat/completions", orjson.dumps(body), json_bytes, passage)
        return self._reply(answer, passage)

    def models(self) -> list[str]:
        """The one model."""
        return [self._model]

    async def __token_check(self, call: Call) -> bytes:
        """Is multi-turn contiguous with this model, template and parser? `{"samples": 8}`; see ng_doctor tokens."""
        samples = call.json().get("samples", 8)
        if not isinstance(samples, int) or not 0 <= samples <= 1000:
            raise Failure(FailureKind.BAD_REQUEST, f"samples is {samples!r}; a number from 0 to 1000 is expected")
        passage = Passage({})
        road = await self._abilities.road(passage)
        checkup = Checkup(self.upstream, road or CompletionsRoad(self.upstream, True), self._model)
        report = {
            "model": self._model,
            "token_in": road.name if road else "off",
            "logprobs_mode": await self._abilities.logprobs_mode(passage),
            "template": await checkup.template(),
            "sampled": await checkup.sampled(samples),
        }
        return orjson.dumps(report)

    def _chat_body(self, request: Json) -> Json:
        convert.apply_metadata(request)
        if self._dialect.developer_as_system:
            for message in request.get("messages") or ():
                if isinstance(message, dict) and message.get("role") == "developer":
                    message["role"] = "system"
        return self._finished(request)

    def _finished(self, body: Json) -> Json:
        """The body as it is sent: the settings' share added."""
        if self._template:
            body["chat_template_kwargs"] = {**self._template, **(body.get("chat_template_kwargs") or {})}
        for key, value in self._defaults.items():
            body.setdefault(key, value)
        if self._strict is not None:
            for tool in body.get("tools") or ():
                tool["function"] = {**tool["function"], "strict": self._strict}
        body.update(self._forced)
        body["model"] = self._model
        return body

    def _reply(self, body: bytes, passage: Passage) -> Reply:
        version = (POLICY_VERSION_HEADER, self.policy_version.encode("latin-1"))
        return Reply(body, headers=(version, *passage.answer_headers))


class VllmModel(ChatEngineModel):
    """An engine at a given address."""

    Settings: ClassVar[type[ServerSettings]] = VllmModelSettings

    def __init__(self, settings: VllmModelSettings, context: Context) -> None:
        super().__init__(settings, context, Replicas(settings.urls), settings.api_key)


server = VllmModel

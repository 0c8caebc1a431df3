"""vllm_model: the policy behind an engine that speaks Chat Completions (vLLM, SGLang, llama.cpp, most providers).

Responses requests are converted, sent to `{base_url}/chat/completions`, and the completion is converted back.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import orjson

from responses_api_models import convert
from responses_api_models.base import ModelServer
from responses_api_models.convert_answers import first_choice, malformed, token_fields
from responses_api_models.upstream import EndpointSettings, Upstream
from responses_api_models.upstream_answers import json_bytes, json_object
from services.call import Call
from services.server import Context
from services.settings import ServerSettings
from services.types import Json


class VllmModelSettings(EndpointSettings):
    """Settings of a vllm_model; names as in NeMo Gym where it has them."""

    return_token_id_information: bool = False
    """For training: the last item of each answer carries prompt_token_ids, generation_token_ids and
    generation_log_probs as the engine made them. An answer without them is a failure."""
    send_token_ids: bool = False
    """Send the token ids of earlier turns back on their assistant messages, for engines (NeMo RL's) that read them."""
    uses_reasoning_parser: bool = True
    """The engine separates reasoning from content. False: `<think>...</think>` at the beginning of the content is the
    reasoning, in both directions."""
    reasoning_field: Literal["both", "reasoning_content", "reasoning"] = "both"
    """Where earlier reasoning is sent on an assistant message. Each vLLM reads one of the two and ignores the other."""
    replace_developer_role_with_system: bool = True
    """Most chat templates know no developer role; Qwen's drops such a message without a word."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the limit on output tokens in Chat Completions."""
    chat_template_kwargs: Json | None = None
    """Arguments for the chat template of every call, e.g. {enable_thinking: false}; a row's own win."""
    sampling_overrides: Json | None = None
    """Fields forced onto every call, whatever the request says, e.g. {temperature: 1.0, top_p: 1.0} for training."""


class VllmModel(ModelServer):
    """Responses over Chat Completions."""

    Settings: ClassVar[type[ServerSettings]] = VllmModelSettings

    def __init__(self, settings: VllmModelSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._model = settings.model
        self._upstream = Upstream.of(settings, self.client.transport)
        both = settings.reasoning_field == "both"
        self._dialect = convert.Dialect(
            developer_as_system=settings.replace_developer_role_with_system,
            reasoning_fields=("reasoning_content", "reasoning") if both else (settings.reasoning_field,),
            think_tags=not settings.uses_reasoning_parser,
            max_tokens_field=settings.max_tokens_field,
            send_token_ids=settings.send_token_ids,
        )
        self._with_tokens = settings.return_token_id_information
        self._template = settings.chat_template_kwargs
        self._defaults = settings.extra_body or {}
        self._forced = settings.sampling_overrides or {}

    async def responses(self, request: Json, call: Call) -> Json:
        """A Responses create request, answered by the engine's chat endpoint."""
        body = self._finished(convert.request_to_chat(request, self._dialect))

        def read(answer: bytes) -> Json:
            response = convert.chat_to_response(json_object(answer), request, self._dialect)
            if self._with_tokens:
                _check_tokens(response["output"][-1])
            return response

        return await self._upstream.post("/chat/completions", body, read)

    async def chat(self, request: Json, call: Call) -> Json | bytes:
        """A chat request goes through with the model's name put in, and the answer's bytes come back."""
        convert.apply_metadata(request)
        if self._dialect.developer_as_system:
            for message in request.get("messages") or ():
                if isinstance(message, dict) and message.get("role") == "developer":
                    message["role"] = "system"
        body = self._finished(request)
        if not self._with_tokens:
            return await self._upstream.post("/chat/completions", body, json_bytes)

        def read(answer: bytes) -> Json:
            completion = json_object(answer)
            choice, message = first_choice(completion)
            message.update(token_fields(completion, choice, message))
            _check_tokens(message)
            return completion

        return await self._upstream.post("/chat/completions", body, read)

    def models(self) -> list[str]:
        """The one model."""
        return [self._model]

    def _finished(self, body: Json) -> bytes:
        """The body as it is sent: the settings' share added."""
        if self._template:
            body["chat_template_kwargs"] = {**self._template, **(body.get("chat_template_kwargs") or {})}
        for key, value in self._defaults.items():
            body.setdefault(key, value)
        body.update(self._forced)
        body["model"] = self._model
        if self._with_tokens:
            body["logprobs"] = True
            body["top_logprobs"] = body.get("top_logprobs") or 0  # vLLM takes null for "no logprobs at all"
            body["return_token_ids"] = True
        return orjson.dumps(body)


def _check_tokens(item: Json) -> None:
    missing = [field for field in convert.TOKEN_FIELDS if item.get(field) is None]
    if missing:
        hint = "return_token_id_information needs vLLM 0.10.2 or later, which knows return_token_ids"
        raise malformed(f"lacks {', '.join(missing)} ({hint})", item)


server = VllmModel

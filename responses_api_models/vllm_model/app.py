"""vllm_model: the policy behind an engine at a given address that speaks Chat Completions.

vLLM, SGLang, llama.cpp, most providers. How it is spoken to is `chat_engine`'s.
"""

from __future__ import annotations

from typing import ClassVar

from rollyard.responses_api_models.chat_engine.model import ChatEngineModel
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.upstream.endpoint_check import endpoint_advice
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.settings import EndpointSettings
from rollyard.services.server.app import Context


class VllmModelSettings(ChatEngineSettings, EndpointSettings):
    """An engine that somebody else started."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ChatEngineSettings.NOT_IDENTITY | EndpointSettings.NOT_IDENTITY


class VllmModel(ChatEngineModel[VllmModelSettings]):
    """An engine at a given address."""

    def __init__(self, settings: VllmModelSettings, context: Context) -> None:
        super().__init__(settings, context, Replicas(settings.urls), settings.api_key)

    async def advice(self) -> list[str]:
        """See `Server.advice`."""
        return await endpoint_advice(self.settings, self.context.beyond)


server = VllmModel

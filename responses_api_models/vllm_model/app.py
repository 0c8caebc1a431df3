"""A model server in front of an external engine with Chat Completions: vLLM, SGLang, llama.cpp, most providers."""

from __future__ import annotations

from typing import ClassVar

from rollyard.responses_api_models.chat_engine.model import ChatEngineModel
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.settings import EndpointSettings, endpoint_advice
from rollyard.services.server.app import Context


class VllmModelSettings(ChatEngineSettings, EndpointSettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = ChatEngineSettings.NOT_IDENTITY | EndpointSettings.NOT_IDENTITY


class VllmModel(ChatEngineModel[VllmModelSettings]):
    def __init__(self, settings: VllmModelSettings, context: Context) -> None:
        super().__init__(settings, context, Replicas(settings.urls), settings.api_key)

    async def advice(self) -> list[str]:
        return await endpoint_advice(self.settings, self.context.external_transport)


server = VllmModel

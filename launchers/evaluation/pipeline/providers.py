"""Providers of hosted models that `ng_eval` knows by name: `openai/gpt-4.1-mini`."""

from __future__ import annotations

from typing import Literal

from rollyard.records.types import Record

PolicyApi = Literal["chat", "responses"]
"""The API of an endpoint: OpenAI's Chat Completions or its Responses API."""


class Provider(Record):
    """Where a provider serves its models."""

    base_url: str
    key_variable: str
    """Environment variable that holds the API key."""
    api: PolicyApi = "chat"
    url_variable: str | None = None
    """Environment variable that replaces base_url, if the provider's own client has one."""


PROVIDERS = {
    "anthropic": Provider(base_url="https://api.anthropic.com/v1", key_variable="ANTHROPIC_API_KEY"),
    "deepseek": Provider(base_url="https://api.deepseek.com/v1", key_variable="DEEPSEEK_API_KEY"),
    "fireworks": Provider(base_url="https://api.fireworks.ai/inference/v1", key_variable="FIREWORKS_API_KEY"),
    "gemini": Provider(
        base_url="https://generativelanguage.googleapis.com/v1beta/openai", key_variable="GEMINI_API_KEY"
    ),
    "groq": Provider(base_url="https://api.groq.com/openai/v1", key_variable="GROQ_API_KEY"),
    "mistral": Provider(base_url="https://api.mistral.ai/v1", key_variable="MISTRAL_API_KEY"),
    "nvidia": Provider(base_url="https://integrate.api.nvidia.com/v1", key_variable="NVIDIA_API_KEY"),
    "openai": Provider(
        base_url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        api="responses",
        url_variable="OPENAI_BASE_URL",
    ),
    "openrouter": Provider(base_url="https://openrouter.ai/api/v1", key_variable="OPENROUTER_API_KEY"),
    "together": Provider(base_url="https://api.together.xyz/v1", key_variable="TOGETHER_API_KEY"),
    "xai": Provider(base_url="https://api.x.ai/v1", key_variable="XAI_API_KEY"),
}

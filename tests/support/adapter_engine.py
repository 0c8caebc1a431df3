"""An in-process engine with LoRA adapters, modelled on the behaviour of a real vLLM 0.32.

A request is bound to an adapter when it arrives, by the name of its model, and keeps it when the name is unloaded.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.types import Json
from tests.support.checkpoints import write_shard
from tests.support.weight_engine import WeightEngine

MODULE = "model.layers.0"
ADAPTED = f"base_model.model.{MODULE}"


class AdapterEngine(WeightEngine):
    """The engine. Its completions name the adapter's folder, or its weights for the model without an adapter."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.adapters: dict[str, str] = {}
        """Folders of the loaded adapters by model name."""
        self.failing_adapter = ""
        """A folder that is refused."""
        self._idle = asyncio.Event()
        self._idle.set()

    def restart(self) -> None:
        super().restart()
        self.adapters.clear()

    async def _response(self, path: str, query: str, body: Json) -> tuple[int, bytes, bytes]:
        answered = await self._adapter_response(path, query, body)
        if answered is not None:
            return answered[0], orjson.dumps(answered[1]), b"application/json"
        return await super()._response(path, query, body)

    async def _adapter_response(self, path: str, query: str, body: Json) -> tuple[int, Any] | None:
        if path in self.fails or path in self.answers:
            return None
        if path == "/v1/models":
            cards = [{"id": name, "root": folder} for name, folder in self.adapters.items()]
            return 200, {"data": [{"id": "tiny", "root": self.root}, *cards]}
        if path == "/v1/load_lora_adapter":
            name, folder = body["lora_name"], body["lora_path"]
            if folder == self.failing_adapter:
                return 500, {"error": {"message": "LoRA rank 64 is greater than max_lora_rank 16"}}
            if name in self.adapters:
                return 400, {"error": {"message": f"{name} has already been loaded"}}
            self.adapters[name] = folder
            return 200, "Success"
        if path == "/v1/unload_lora_adapter":
            return (200, "Success") if self.adapters.pop(body["lora_name"], None) else (404, {"error": {}})
        if path == "/pause" and "mode=wait" in query:
            await self._idle.wait()
            return None
        if path == "/v1/chat/completions":
            return await self._complete(body["model"])
        return None

    async def _complete(self, model: str) -> tuple[int, Any]:
        if model != "tiny" and model not in self.adapters:
            return 404, {"error": {"message": f"The model {model} does not exist."}}
        bound = self.adapters.get(model)
        self._idle.clear()
        completion = orjson.loads(await self.generate())
        if not self.running:
            self._idle.set()
        choice = completion["choices"][0]
        if bound and choice["finish_reason"] == "stop":
            choice["message"]["content"] = bound
        return 200, {**completion, "model": model}


def write_adapter(folder: Path, *, rank: int = 2, width: int = 4, seed: int = 0, module: str = ADAPTED) -> str:
    """Write an adapter of one module of the checkpoints of tests/support/checkpoints.py."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_bytes(orjson.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 4}))
    shapes = {f"{module}.lora_A.weight": [rank, width], f"{module}.lora_B.weight": [width, rank]}
    write_shard(folder / "adapter_model.safetensors", shapes, seed=seed)
    return str(folder)

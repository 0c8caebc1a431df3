"""local_vllm_model: the policy behind engines that this server starts and keeps up itself.

What is spoken to them, and how answers come back, is vllm_model's; here they come up, die and come up again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from pydantic import SecretStr

from rollyard.responses_api_models.chat_engine.model import ChatEngineModel
from rollyard.responses_api_models.local_vllm_model.engine import Engine
from rollyard.responses_api_models.local_vllm_model.gpus import gpu_assignments, visible_gpus
from rollyard.responses_api_models.local_vllm_model.hub_cache import snapshot
from rollyard.responses_api_models.local_vllm_model.orphaned_processes import end_orphans, remove_folders
from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings
from rollyard.responses_api_models.local_vllm_model.startup import StartPlan
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.services.errors import OperatorError
from rollyard.services.http.ray_address import check_ray_address
from rollyard.services.server.app import Context

log = logging.getLogger(__name__)

RAY_S = 5.0
"""A cluster that has not taken a connection by then is not there."""


class LocalVllmModel(ChatEngineModel[LocalVllmModelSettings]):
    """A chat engine of our own."""

    def __init__(self, settings: LocalVllmModelSettings, context: Context) -> None:
        self._engine_key = secrets.token_urlsafe(32)
        self._engines: list[Engine] = []
        replicas = Replicas(wait_s=settings.total_timeout_s, why_none=lambda: self.phase)
        super().__init__(settings, context, replicas, SecretStr(self._engine_key))

    @property
    def phase(self) -> str:
        """What the engines that are not up are doing."""
        waiting = [engine.phase for engine in self._engines if not engine.is_up]
        if not waiting or len(self._engines) == 1:
            return "".join(waiting)
        return f"{len(self._engines) - len(waiting)} of {len(self._engines)} engines up, next: {waiting[0]}"

    async def check(self) -> None:
        """The folder, the cluster, the program and the GPUs that a start needs. Raises RunError, OperatorError."""
        _check_model(self.settings.model)
        if self.settings.ray_address:
            await check_ray_address(self.settings.ray_address, "ray_address=", RAY_S)
        _check_command(self.settings.vllm_command[0])
        gpu_assignments(self.settings, await asyncio.to_thread(visible_gpus, dict(os.environ)))

    async def start(self) -> None:
        """Bring all engines up. Raises RunError, OperatorError."""
        _check_model(self.settings.model)
        if self.settings.ray_address:
            await check_ray_address(self.settings.ray_address, "ray_address=", RAY_S)
        if ended := await asyncio.to_thread(end_orphans):
            log.warning("ended what an engine without its server had left: processes %s", ended)
        await asyncio.to_thread(remove_folders, Path(tempfile.gettempdir()))
        environ = dict(os.environ)
        gpus = gpu_assignments(self.settings, await asyncio.to_thread(visible_gpus, environ))
        await self.trainer.started_with(self.settings.model)
        folder = self._log_folder()
        for number, share in enumerate(gpus):
            on = f" on GPU {', '.join(share)}" if share else ""
            plan = StartPlan(
                title=f"engine {number}{on}",
                settings=self.settings,
                gpus=share,
                key=self._engine_key,
                environ=environ,
                log_file=folder / f"{self.name}-engine-{number}.log",
                transport=self.client.transport,
            )
            log.info("%s is starting; its log: %s", plan.title, plan.log_file)
            self._engines.append(Engine(plan, up=self.register_engine, down=self.gone))
        await asyncio.gather(*(engine.start() for engine in self._engines))
        await super().start()

    async def stop(self) -> None:
        """End all engines."""
        await super().stop()
        await asyncio.gather(*(engine.stop() for engine in self._engines))

    def on_invalid_weights(self, url: str) -> None:
        """See `ChatEngineModel.spoilt`."""
        for engine in self._engines:
            if engine.url == url:
                engine.give_up("has lost its weights in an update that failed")

    def located(self, root: str) -> str:
        """See `ChatEngineModel.located`: the hub's cache is where the engines look for it."""
        flags = self.settings.extra_flags
        if Path(root).is_dir() or root != self.settings.model or isinstance(flags, list) or "download_dir" in flags:
            return root
        found = snapshot(root, str(flags.get("revision") or "main"), {**os.environ, **self.settings.environment})
        return str(found or root)

    def models(self) -> list[str]:
        """The one model, by the name it is served under."""
        return self.settings.names[:1]

    def _log_folder(self) -> Path:
        given = self.context.log_folder
        if given is not None and given.is_dir():
            return given
        return Path(tempfile.mkdtemp(prefix="rollyard-logs-"))  # on another machine of a Ray cluster


def _check_model(model: str) -> None:
    """Say at once what vLLM says after a minute."""
    if model.startswith(("/", ".", "~")) and not Path(model).is_dir():
        raise OperatorError(f"model: found {model!r}, which is no folder here; expected one, or a name on the hub")


def _check_command(program: str) -> None:
    """Fail fast where there is no vLLM."""
    if shutil.which(program) is None:
        raise OperatorError(
            f"vllm_command: found no program {program!r}; install vLLM (pip install 'rollyard[vllm]'), or name the one "
            "of another environment: vllm_command: [/path/to/env/bin/vllm]"
        )


server = LocalVllmModel

"""A model server that starts vLLM engines and restarts them when they die; calls are handled as in vllm_model."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import SecretStr

from rollyard.records.errors import OperatorError
from rollyard.records.gpus import visible_gpus
from rollyard.responses_api_models.chat_engine.model import ChatEngineModel
from rollyard.responses_api_models.local_vllm_model.engine import Engine, StartPlan, reserved_port
from rollyard.responses_api_models.local_vllm_model.engine_process import end_orphans, remove_folders
from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.services.http.ray_address import check_ray_address
from rollyard.services.server.app import Context

log = logging.getLogger(__name__)
RAY_S = 5.0


class LocalVllmModel(ChatEngineModel[LocalVllmModelSettings]):
    def __init__(self, settings: LocalVllmModelSettings, context: Context) -> None:
        given = settings.api_key
        self._engine_key = secrets.token_urlsafe(32) if given is None else given.get_secret_value()
        self._engines: list[Engine] = []
        replicas = Replicas(wait_s=settings.total_timeout_s, why_none=lambda: self.phase)
        super().__init__(settings, context, replicas, SecretStr(self._engine_key))

    @property
    def phase(self) -> str:
        """The startup phase of the first engine that is not up; empty if all engines are up."""
        waiting = [engine.phase for engine in self._engines if not engine.is_up]
        if not waiting or len(self._engines) == 1:
            return "".join(waiting)
        return f"{len(self._engines) - len(waiting)} of {len(self._engines)} engines up, next: {waiting[0]}"

    async def check(self) -> None:
        """Check model, Ray cluster, command and GPUs. Raises RunError or OperatorError if one is unusable.

        It is called for a run on this host, but not for one on a Ray cluster.
        """
        if self.settings.replicas != 1:
            raise OperatorError(
                f"replicas is {self.settings.replicas}, but several model servers on one host would use the same GPUs; "
                "set engine_replicas instead (on a Ray cluster, each replica reserves its own GPUs)"
            )
        await self._check_settings()
        if shutil.which(program := self.settings.vllm_command[0]) is None:
            raise OperatorError(
                f"vllm_command: the command {program!r} does not exist; install vLLM (pip install 'rollyard[vllm]'), "
                "or set the path to vLLM in a different environment: vllm_command: [/path/to/env/bin/vllm]"
            )
        with reserved_port(self.settings):
            pass
        gpu_assignments(self.settings, await asyncio.to_thread(visible_gpus, os.environ))

    async def start(self) -> None:
        """Start all engines. Raises RunError or OperatorError if one does not start."""
        await self._check_settings()
        if ended := await asyncio.to_thread(end_orphans):
            log.warning("killed orphaned engine processes whose servers have died: %s", ended)
        await asyncio.to_thread(remove_folders, Path(tempfile.gettempdir()))
        environ = dict(os.environ)
        gpus = gpu_assignments(self.settings, await asyncio.to_thread(visible_gpus, environ))
        await self.trainer.started_with(self.settings.model)
        folder = self.context.log_folder
        if folder is None or not folder.is_dir():  # on another host of a Ray cluster
            folder = Path(tempfile.mkdtemp(prefix="rollyard-logs-"))
        for number, share in enumerate(gpus):
            on = f" on GPU {', '.join(share)}" if share else ""
            plan = StartPlan(
                title=f"engine {number}{on}",
                settings=self.settings,
                gpus=share,
                key=self._engine_key,
                environ=environ,
                log_file=self.settings.engine_log or folder / f"{self.name}-engine-{number}.log",
                transport=self.client.transport,
            )
            log.info("%s is starting; log: %s", plan.title, plan.log_file)
            self._engines.append(Engine(plan, up=self.trainer.register_engine, down=self.trainer.gone))
        await asyncio.gather(*(engine.start() for engine in self._engines))
        await super().start()

    async def _check_settings(self) -> None:
        _check_model(self.settings.model)
        if self.settings.ray_address:
            await check_ray_address(self.settings.ray_address, "ray_address=", RAY_S)

    async def stop(self) -> None:
        await super().stop()
        await asyncio.gather(*(engine.stop() for engine in self._engines))

    def on_invalid_weights(self, url: str) -> None:
        for engine in self._engines:
            if engine.url == url:
                engine.give_up("lost its weights in a failed update")

    def located(self, root: str) -> str:
        flags = self.settings.extra_flags
        if Path(root).is_dir() or root != self.settings.model or isinstance(flags, list) or "download_dir" in flags:
            return root
        found = snapshot(root, str(flags.get("revision") or "main"), {**os.environ, **self.settings.environment})
        return str(found or root)

    def models(self) -> list[str]:
        return self.settings.names[:1]


def gpu_assignments(settings: LocalVllmModelSettings, visible: Sequence[str] | None) -> list[list[str]]:
    """Return the GPUs for each engine; empty lists if vLLM decides (on a CPU or a Ray cluster).

    Raises OperatorError if there are too few GPUs.
    """
    count, each = settings.engine_replicas, settings.gpus_per_engine
    gpus = [str(gpu) for gpu in settings.gpus] if settings.gpus is not None else list(visible or ())
    if settings.ray_address or (not gpus and settings.gpus is None):
        return [[] for _ in range(count)]
    if len(gpus) < each:
        raise OperatorError(
            f"one engine needs {each} GPUs (tensor x pipeline x data parallel size), but this host has {len(gpus)} "
            f"({', '.join(gpus) or 'gpus is empty'}): reduce the sizes, or connect hosts with Ray and set ray_address"
        )
    if len(gpus) < count * each:
        raise OperatorError(
            f"engine_replicas={count} needs {count * each} GPUs ({each} per engine), but this host has {len(gpus)} "
            f"({', '.join(gpus)}): set engine_replicas to at most {len(gpus) // each}"
        )
    return [gpus[number * each : (number + 1) * each] for number in range(count)]


def snapshot(model: str, revision: str, environ: Mapping[str, str]) -> Path | None:
    home = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    cache = Path(environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    model_folder = cache / f"models--{model.replace('/', '--')}"
    try:
        commit = (model_folder / "refs" / revision).read_text().strip()
    except OSError:
        commit = revision
    folder = model_folder / "snapshots" / commit
    return folder if folder.is_dir() else None


def _check_model(model: str) -> None:
    """Fail fast on a bad model path; vLLM would fail after a minute."""
    if model.startswith(("/", ".", "~")) and not Path(model).is_dir():
        raise OperatorError(
            f"model: found {model!r}, which is not a local folder; expected a folder or the name of a hub model"
        )


server = LocalVllmModel

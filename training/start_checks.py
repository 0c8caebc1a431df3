"""Checks a training run before anything is started: packages, model, data, servers, folder, disk.

The result is a `TrainPlan`, with the `InitialModel`, which it downloads if it has to.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.gpus import present_gpus
from rollyard.records.locked_files import check_writable
from rollyard.records.optional import EXTRAS, install_command, missing, require
from rollyard.records.variables import variable
from rollyard.services.config.overrides import refuse_secrets
from rollyard.services.config.run_config import RunConfig
from rollyard.services.config.venv import cache_folder
from rollyard.services.datasets.mixture import DatasetTasks
from rollyard.services.datasets.selection import agents_in, check_agents, choose_agent, notes_of, read_tasks
from rollyard.services.rollouts.collection import CollectionPlan, check_sampling
from rollyard.services.runtime.preflight import Preflight
from rollyard.services.runtime.ray_launcher import check_cluster
from rollyard.services.runtime.run_dir import RunFolder
from rollyard.services.runtime.stack import new_keys
from rollyard.training.metrics_log import logger_names
from rollyard.training.run_folder import TrainingPaths, check_rows, check_settings, read_settings
from rollyard.training.train_config import TrainConfig
from rollyard.training.training_stack import TOKEN, agents_of_head, server_configs

_GIB = 1 << 30
_OPTIMIZER = 3
"""Size of a checkpoint in sizes of the model: the weights, and two numbers per weight of AdamW."""


async def check(config: TrainConfig, environ: Mapping[str, str], here: Path) -> TrainPlan:
    """Return the plan of a training run. Raises OperatorError for the first thing that would make it fail."""
    _check_sampling(config)
    refuse_secrets(config.overrides)
    _check_packages(config)
    gpus = present_gpus(environ)
    model = find_model(config.model, here)
    notes = _check_device(config, model, gpus)
    if (before := read_settings(TrainingPaths(config.output_dir).config)) is not None:
        check_settings(before, config, config.output_dir)
    parent = check_writable(here / config.output_dir, f"output_dir={config.output_dir}")
    notes += _check_disk(config, model, parent)
    agent = config.agent_name
    run_config = None
    if config.head is None:
        name = str(model.folder or model.name)
        run_config = server_configs(config, name, gpus, environ, here).run_config
        agent = choose_agent(agent, [spec.name for spec in agents_in(run_config)])
    else:
        for key in ("environments", "config_paths", "overrides", "ray_head_node_address"):
            if getattr(config, key):
                raise OperatorError(f"head={config.head} uses a running stack, which has its own configs: remove {key}")
        agent = choose_agent(agent, await agents_of_head(config, environ))
    if config.input_jsonl_fpath is None and config.data is None:
        raise OperatorError("no data given; expected --input-jsonl-fpath rows.jsonl or --data ... (a mixture)")
    tasks = read_tasks(here, config.input_jsonl_fpath, config.data, agent, config.limit)
    notes += notes_of(tasks)
    settings, evaluated = config.evaluation, None
    if settings.input_jsonl_fpath is not None:
        key = "evaluation.input_jsonl_fpath"
        evaluated = read_tasks(here, settings.input_jsonl_fpath, None, agent, settings.limit, key=key)
    check_rows(TrainingPaths(config.output_dir), tasks.identity, evaluated.identity if evaluated is not None else None)
    if run_config is not None:
        check_agents({*tasks.agents, *(evaluated.agents if evaluated else ())}, run_config)
        await _check_servers(config, run_config, environ, here)
    return TrainPlan(config, here, model, gpus, tasks, evaluated, notes)


def _check_packages(config: TrainConfig) -> None:
    if absent := missing(EXTRAS["train"]):
        raise OperatorError(
            f"ng_train needs {', '.join(absent)}, which {'is' if len(absent) == 1 else 'are'} not installed. Install "
            f"rollyard[train]: {install_command('train')}"
        )
    for name in logger_names(config.loggers):
        if name in EXTRAS:
            require(name, name, f"--loggers {name}")
    path = config.optimizer.accelerate_config
    if path is not None and not path.is_file():
        raise OperatorError(
            f"optimizer.accelerate_config={path} does not exist; `accelerate config` writes such a file"
        )


def _check_sampling(config: TrainConfig) -> None:
    params = config.responses_create_params
    for key, given in (
        ("responses_create_params", params),
        ("evaluation.responses_create_params", config.evaluation.responses_create_params),
    ):
        CollectionPlan(Path(), params=given)  # raises on misspelt parameters
        check_sampling(given, key)
    if not params.get("temperature"):
        raise OperatorError(
            f"responses_create_params.temperature is {params.get('temperature')!r}; expected more than 0, such as 1.0: "
            "the rollouts of a group must differ, and the trainer needs to know at which temperature they were sampled"
        )
    if config.loss.constrained_turns == "refuse" and params.get("top_p") not in (None, 1, 1.0):
        raise OperatorError(
            f"responses_create_params.top_p is {params['top_p']}, which cuts off a part of the policy's distribution: "
            "remove it, or set loss.constrained_turns=reweight"
        )


def _check_device(config: TrainConfig, model: InitialModel, gpus: Sequence[str] | None) -> list[str]:
    if gpus is not None or config.head is not None or config.ray_head_node_address is not None:
        return []
    if config.weights.method in ("nccl", "ipc"):
        raise OperatorError(
            f"weights.method={config.weights.method} needs GPUs, but this host has none that is "
            "visible: use weights.method=files"
        )
    if model.is_tied and config.optimizer.lora is None:
        raise OperatorError(
            f"model={model.name} has tie_word_embeddings: true. On a CPU, vLLM keeps the old output head of such a "
            "model when its weights are updated. Use a model with tie_word_embeddings: false, adapters "
            "(optimizer.lora={rank: 16}), or a host with a GPU"
        )
    return ["this host has no GPU: the engine and the trainer share its cores"]


def _check_disk(config: TrainConfig, model: InitialModel, folder: Path) -> list[str]:
    """Raise OperatorError if the weights and checkpoints do not fit on the disk."""
    if model.size_bytes is None:
        return []
    share = 0.05 if config.optimizer.lora is not None else 1.0
    copies = (config.weights.keep + 1) + (config.keep_checkpoints + 1) * (1 + (_OPTIMIZER - 1) * share)
    needed, free = copies * model.size_bytes, shutil.disk_usage(folder).free
    if needed > free:
        raise OperatorError(
            f"output_dir={config.output_dir} needs about {needed / _GIB:.1f} GiB for {config.weights.keep} versions of "
            f"the weights and {config.keep_checkpoints} checkpoints, but {folder} has {free / _GIB:.1f} GiB free: "
            "choose another output_dir, or fewer keep_checkpoints"
        )
    return []


async def _check_servers(config: TrainConfig, run_config: RunConfig, environ: Mapping[str, str], here: Path) -> None:
    RunFolder.check(here)
    # The token of the run is random; the checks only need one, because trainer endpoints require it.
    preflight = Preflight(run_config.servers, new_keys(variable(environ, TOKEN) or "any"), environ)
    try:
        if config.ray_head_node_address is not None:
            await check_cluster(config.ray_head_node_address)
        else:
            await preflight.check(cache_folder(environ), head=None, colocate=False)
    except RunError as error:
        raise OperatorError(str(error)) from error
    finally:
        await preflight.close()


@dataclass(frozen=True)
class TrainPlan:
    config: TrainConfig
    here: Path
    """The working directory, in which the servers run."""
    model: InitialModel
    gpus: Sequence[str] | None
    """GPUs of this host; None if there are none."""
    tasks: DatasetTasks
    evaluation_tasks: DatasetTasks | None
    notes: Sequence[str] = ()

    @property
    def paths(self) -> TrainingPaths:
        return TrainingPaths(self.config.output_dir)


_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_NOT_NEEDED = ["*.bin", "*.pth", "*.pt", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "original/*"]
"""Weights in other formats than safetensors."""
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


@dataclass(frozen=True, slots=True)
class InitialModel:
    name: str
    """The folder or the hub name, as given."""
    folder: Path | None
    """None if the model is on the hub and not downloaded yet."""
    is_tied: bool
    """Whether the output head is the embedding."""
    size_bytes: int | None
    """Size of the weights; None if unknown."""

    def fetch(self) -> Path:
        """Return the folder, after downloading the model if necessary. Raises OperatorError if that fails."""
        if self.folder is not None:
            return self.folder
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(self.name, ignore_patterns=_NOT_NEEDED))
        except Exception as error:
            raise OperatorError(f"model={self.name} cannot be downloaded: {_first_line(error)}") from error


def find_model(name: str, here: Path) -> InitialModel:
    """Return the model. Raises OperatorError if it does not exist or cannot be trained."""
    folder = here / Path(name).expanduser()
    if folder.is_dir():
        _check_files(folder)
        config, size = _config(str(folder), name), sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        return InitialModel(name, folder.resolve(), _is_tied(config), size)
    if name.startswith(("/", ".", "~")) or not _HUB_NAME.fullmatch(name):
        raise OperatorError(f"model={name!r} is neither an existing folder nor a hub name such as Qwen/Qwen3-0.6B")
    return InitialModel(name, None, _is_tied(_config(name, name)), None)


def _check_files(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise OperatorError(f"model={folder} contains no config.json, so it is not the folder of a model")
    if not any(folder.glob("*.safetensors")):
        raise OperatorError(
            f"model={folder} contains no *.safetensors file, which engines load: save the model with "
            "model.save_pretrained(folder)"
        )
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise OperatorError(f"model={folder} contains no tokenizer: save it with tokenizer.save_pretrained(folder)")


def _config(name: str, given: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name)
    except Exception as error:  # transformers raises OSError, ValueError and others
        raise OperatorError(f"model={given} cannot be used: {_first_line(error)}") from error


def _is_tied(config: Any) -> bool:
    inner = getattr(config, "text_config", None)  # of models that also read images
    return any(getattr(one, "tie_word_embeddings", False) for one in (config, inner) if one is not None)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

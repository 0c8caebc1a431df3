"""An evaluation that a config file of NeMo-RL defines: reads it as a config of `ng_eval`, which runs it.

It also prepares the rows, and writes the results in NeMo-RL's formats.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import orjson
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollyard.launchers.evaluation.eval_config import EvalConfig, VllmSettings
from rollyard.launchers.evaluation.headline import read_profile
from rollyard.records.data_files import INSTALLED, find_file
from rollyard.records.errors import OperatorError, RunError, did_you_mean
from rollyard.records.jsonl import Lines, iter_jsonl, refuse, replace
from rollyard.records.rewards import is_measured
from rollyard.records.types import Json
from rollyard.services.config.load import describe_error, read_yaml
from rollyard.services.config.overrides import ConfigOverride, apply
from rollyard.services.server.settings import parse_settings

_DEFAULT_OUTPUT = Path("results/eval")
_ROWS = "rows.jsonl"


@dataclass(frozen=True)
class NemoRlRun:
    config: NemoRlConfig
    eval_config: EvalConfig
    tree: Json
    """The contents of the file after the overrides; `ng_eval` reads them again as the same evaluation."""

    def prepare(self) -> list[str]:
        """Write the dataset's rows, unless they are there. Returns notes; raises OperatorError or RunError."""
        prepare_rows(self.config.data, self.eval_config.output_dir / _ROWS)
        return self.notes()

    @contextmanager
    def prepared_elsewhere(self) -> Iterator[EvalConfig]:
        """Prepare the rows in a temporary folder and yield the evaluation of them. Writes nothing to `output_dir`."""
        with tempfile.TemporaryDirectory(prefix="ng-eval-rows-") as folder:
            rows = prepare_rows(self.config.data, Path(folder) / _ROWS)
            yield self.eval_config.model_copy(update={"input_jsonl_fpath": str(rows)})

    def notes(self) -> list[str]:
        unused = ", ".join(self.config.unused)
        return [f"no effect here: {unused}"] if unused else []

    def finish(self, rollouts: Path) -> str:
        """Write the results in NeMo-RL's formats; return the block with the score. Raises RunError."""
        written = save(self.config, rollouts)
        return "\n".join([summary(self.config, rollouts), *(f"wrote {path}" for path in written)])


def read_nemo_rl(path: Path, overrides: Iterable[ConfigOverride], servers: Iterable[str] = ()) -> NemoRlRun | None:
    """Return the evaluation in a config file, or None if it is not one of NeMo-RL.

    Keys of `ng_eval`, such as output_dir and shard, may appear next to NeMo-RL's sections. References are resolved
    after the overrides. `servers` are overrides of the servers' settings. Raises OperatorError if the config is
    invalid.
    """
    tree = load_tree(path)
    if not is_nemo_rl(tree):
        return None
    apply(tree, overrides)
    names = [str(key) for key in tree if key in EvalConfig.model_fields and key not in SECTIONS]
    try:
        given = {key: _resolved(tree, key) for key in names}
    except OmegaConfBaseException as error:
        raise OperatorError(f"{path}: {describe_error(error)}") from error
    given["overrides"] = (*(given.get("overrides") or ()), *servers)
    for key in names:
        del tree[key]
    config = parse(tree, str(path))
    output = Path(given.pop("output_dir", None) or config.eval.save_path or _DEFAULT_OUTPUT)
    dataset = Path(config.data.dataset_name)
    rows = dataset.resolve() if dataset.is_file() else output / _ROWS
    sections = OmegaConf.to_container(tree, resolve=True)
    assert isinstance(sections, dict)
    resolved = {**{str(key): value for key, value in sections.items()}, **given, "output_dir": str(output)}
    resolved["overrides"] = list(given["overrides"])
    return NemoRlRun(config, to_eval_config(config, rows, output, **given), resolved)


def _resolved(tree: DictConfig, key: str) -> Any:
    value = tree[key]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def to_eval_config(config: NemoRlConfig, rows: Path, output_dir: Path, **more: Any) -> EvalConfig:
    """Return the evaluation of `rows`, the prepared dataset. `more` are keys of EvalConfig, which take precedence."""
    generation, source = config.generation, find_source(config.data)
    limit, name = generation.max_new_tokens, generation.model_name
    params: dict[str, Any] = {"temperature": generation.temperature, "top_p": generation.top_p}
    if limit is not None and limit < generation.vllm_cfg.max_model_len:
        # NeMo-RL's default is the context's length, which an endpoint refuses because the prompt needs room too.
        params["max_output_tokens"] = limit
    values: dict[str, Any] = {
        "model": name if name == "builtin" or generation.base_url else f"vllm/{name}",
        "policy_base_url": generation.base_url,
        "vllm": _vllm(config, more.pop("vllm", None) or {}),
        "environments": (source.environment,) if source else (),
        "overrides": (*_server_overrides(config), *more.pop("overrides", ())),
        "input_jsonl_fpath": str(rows),
        "limit": config.data.limit,
        "num_repeats": config.eval.num_tests_per_prompt,
        "responses_create_params": params,
        "output_dir": output_dir,
    }
    return EvalConfig(**(values | more))


def _vllm(config: NemoRlConfig, more: Json) -> VllmSettings:
    """Return the settings of `generation.vllm_cfg`, with those in `more` instead or in addition."""
    given = parse_settings(VllmSettings, more, "vllm")
    section = config.generation.vllm_cfg
    args = ["--seed", str(config.eval.seed)]
    if section.enforce_eager:
        args.append("--enforce-eager")
    if config.tokenizer.name and config.tokenizer.name != config.generation.model_name:
        args += ["--tokenizer", config.tokenizer.name]
    if config.tokenizer.chat_template:
        args += ["--chat-template", config.tokenizer.chat_template]
    shared = ("tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization", "max_model_len")
    settings = VllmSettings(dtype=section.precision, **{name: getattr(section, name) for name in shared})
    changes = {name: getattr(given, name) for name in given.model_fields_set}
    return settings.model_copy(update={**changes, "args": (*args, *given.args)})


def _server_overrides(config: NemoRlConfig) -> tuple[str, ...]:
    """Return overrides for what is not a parameter of the Responses API."""
    if config.generation.model_name == "builtin":
        return ()
    server = "vllm_model" if config.generation.base_url else "local_vllm_model"
    body = f"++policy_model.responses_api_models.{server}.extra_body"
    found = []
    if config.generation.top_k is not None and config.generation.top_k > 0:
        found.append(f"{body}.top_k={config.generation.top_k}")
    for name, value in (config.tokenizer.chat_template_kwargs or {}).items():
        found.append(f"{body}.chat_template_kwargs.{name}={str(value).lower() if isinstance(value, bool) else value}")
    return tuple(found)


class DatasetSource(NamedTuple):
    environment: str
    repo: str
    """Dataset on the Hugging Face hub."""


_ENVIRONMENTS = {
    "openai/gsm8k": "gsm8k",
    "HuggingFaceH4/MATH-500": "math",
    "EleutherAI/hendrycks_math": "math",
    "HuggingFaceH4/aime_2024": "math",
    "math-ai/aime25": "math",
    "google-research-datasets/mbpp": "mbpp",
    "openai/openai_humaneval": "humaneval",
    "google/IFEval": "ifeval",
}
_SHORT_NAMES = {
    "gsm8k": "openai/gsm8k",
    "math": "EleutherAI/hendrycks_math",
    "math500": "HuggingFaceH4/MATH-500",
    "aime2024": "HuggingFaceH4/aime_2024",
    "aime2025": "math-ai/aime25",
}


def find_source(data: DataSection) -> DatasetSource | None:
    """Return the dataset's source, or None if `dataset_name` is a file of rows. Raises OperatorError if unknown."""
    name = data.dataset_name
    if name.endswith((".jsonl", ".parquet", ".arrow")) or Path(name).is_file():
        return None
    repo = _SHORT_NAMES.get(name, name)
    if repo not in _ENVIRONMENTS:
        known = [*_ENVIRONMENTS, *_SHORT_NAMES]
        raise OperatorError(
            f"data.dataset_name is {name!r}{did_you_mean(name, known)} (known: {', '.join(known)}, or a .jsonl file "
            "with rows of an environment)"
        )
    return DatasetSource(_ENVIRONMENTS[repo], repo)


def prepare_rows(data: DataSection, output: Path) -> Path:
    """Write the dataset's rows for its environment to `output`, unless they are already there; return their path.

    Several processes may do so at the same time. A file next to the rows records what they were made from.
    Raises OperatorError if the dataset or a prompt file is missing, RunError if its download fails.
    """
    source = find_source(data)
    if source is None:
        if not Path(data.dataset_name).is_file():
            raise OperatorError(f"data.dataset_name is {data.dataset_name!r}, but there is no such file")
        return Path(data.dataset_name).resolve()
    template = None if data.prompt_file is None else _text(data.prompt_file)
    if template is not None and "{}" not in template:
        problem = "does not contain {}, where the problem is inserted"
        raise OperatorError(f"data.prompt_file {str(data.prompt_file)!r} {problem}")
    system_prompt = None if data.system_prompt_file is None else _text(data.system_prompt_file)
    made_from = orjson.dumps([source.repo, [], data.dataset_key, data.limit, template, system_prompt])
    record = output.with_name(f"{output.stem}_source.json")
    if output.exists() and (not record.exists() or record.read_bytes() == made_from):
        return output  # without a record: placed there by hand
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rows-", dir=output.parent) as folder:
        raw = _prepared(data, source, template, system_prompt, Path(folder) / "rows.jsonl")
        replace(record, b"")  # a crash now leads to another preparation
        if template is None:
            raw.rename(output)
        else:
            rows = (_with_prompt(line.value, template) for line in iter_jsonl(Lines(raw), refuse(raw)))
            replace(output, (orjson.dumps(row) + b"\n" for row in rows))
        replace(record, made_from)
    return output


def _prepared(
    data: DataSection, source: DatasetSource, template: str | None, system_prompt: str | None, output: Path
) -> Path:
    command = [
        sys.executable,
        "-m",
        f"rollyard.resources_servers.{source.environment}.prepare",
        "--output",
        str(output),
    ]
    if data.local_root is None:
        command += ["--hub", source.repo]
    elif (local := data.local_root / source.repo).exists():
        command += ["--local", str(local), "--offline"]
    else:
        raise OperatorError(f"data.local_root has no folder {source.repo} (looked for {local})")
    if source.environment in ("gsm8k", "math"):
        command += ["--split", data.dataset_key]
        if system_prompt is not None:
            command += ["--system-prompt", system_prompt]
        elif template is not None:
            command += ["--system-prompt", ""]  # the template carries the instructions, as in NeMo-RL
    if data.limit is not None:
        command += ["--limit", str(data.limit)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        problem = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        error = OperatorError if done.returncode == 2 else RunError
        raise error(f"the rows of {data.dataset_name} could not be prepared: {''.join(problem)}")
    return output


def _text(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"prompt file {str(path)!r} cannot be read: {error}") from error


def _with_prompt(row: Json, template: str) -> Json:
    params = dict(row["responses_create_params"])
    items = [dict(item) for item in params["input"]]
    last = max(number for number, item in enumerate(items) if item.get("role") == "user")
    items[last]["content"] = template.replace("{}", items[last]["content"])
    return {**row, "responses_create_params": {**params, "input": items}}


_WIDTH = 60


def _score(config: NemoRlConfig, rollouts: Path) -> tuple[float, int]:
    """Return the mean of pass@k or cons@k over the tasks, and the number of tasks."""
    tasks = read_profile(rollouts)["tasks"]
    k, metric = config.eval.k_value, config.eval.metric
    found = next((one for one in tasks["pass_at"] if one["k"] == k), None) if tasks else None
    if found is None:
        raise RunError(
            f"{rollouts}: no task has {k} rollouts, which {metric.replace('k', str(k))} requires; raise "
            "eval.num_tests_per_prompt, or lower eval.k_value"
        )
    estimate = found["any"] if metric == "pass@k" else found["consensus"]
    if estimate is None:
        raise RunError(
            f"{rollouts}: cons@{k} is undefined; it requires extracted_answer in the rows and k up to 128: use pass@k"
        )
    return float(estimate["mean"]), int(found["tasks"])


def summary(config: NemoRlConfig, rollouts: Path) -> str:
    generation, evaluation = config.generation, config.eval
    metric = f"{evaluation.metric.removesuffix('k')}{evaluation.k_value}"
    average, tasks = _score(config, rollouts)
    lines = [
        f"model_name={generation.model_name!r} dataset_name={config.data.dataset_name!r}",
        f"max_new_tokens={generation.max_new_tokens or generation.vllm_cfg.max_model_len} "
        f"temperature={generation.temperature} top_p={generation.top_p} top_k={generation.top_k} "
        f"seed={evaluation.seed}",
        "",
        f"metric={metric} num_tests_per_prompt={evaluation.num_tests_per_prompt}",
        "",
        f"score={average:.4f} ({round(average * tasks, 9)}/{tasks})",
    ]
    return "\n".join(["", "=" * _WIDTH, *lines, "=" * _WIDTH])


def save(config: NemoRlConfig, rollouts: Path) -> list[Path]:
    """Write config.json and evaluation_data.json to `eval.save_path`, if it is set; return the paths of the files."""
    folder = config.eval.save_path
    if folder is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    generation, evaluation = config.generation, config.eval
    settings = {"model_name": generation.model_name, "dataset_name": config.data.dataset_name}
    settings |= {name: getattr(evaluation, name) for name in ("metric", "k_value", "num_tests_per_prompt")}
    settings |= {name: getattr(generation, name) for name in ("temperature", "top_p", "top_k")}
    written = [folder / "config.json", folder / "evaluation_data.json"]
    replace(written[0], orjson.dumps(settings, option=orjson.OPT_INDENT_2))
    samples = [_sample(line.value) for line in iter_jsonl(Lines(rollouts), refuse(rollouts)) if is_measured(line.value)]
    replace(written[1], orjson.dumps({"evaluation_data": samples}, option=orjson.OPT_INDENT_2))
    return written


def _sample(row: Json) -> Json:
    """Return one sample with the keys of NeMo-RL; the message log and the environment's values are strings there."""
    items, output = row["responses_create_params"]["input"], row["response"]["output"]
    prompt = items if isinstance(items, str) else "\n".join(_content(item) for item in items)
    response = "".join(_content(item) for item in output)
    messages = [*([{"role": "user", "content": items}] if isinstance(items, str) else items), *output]
    extra = {key: row[key] for key in ("expected_answer", "extracted_answer", "success") if key in row}
    return {
        "prompt": prompt,
        "response": response,
        "reward": row["reward"],
        "message_log": str(messages),
        "extra_env_info": str(extra),
        "sample_index": row["_ng_rollout_index"],
    }


def _content(item: Json) -> str:
    content = item.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


SECTIONS = frozenset({"generation", "eval", "data", "tokenizer", "env", "cluster"})
_LIKE_OURS = frozenset({"expert_parallel_size", "max_num_seqs", "num_prompts_per_step"})
"""NeMo-RL's keys that resemble a known key but are not misspelt."""


class NemoRlSection(BaseModel):
    """Base class of the sections. Other programs read more keys, so unknown ones are allowed."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True, hide_input_in_errors=True)


class VllmSection(NemoRlSection):
    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    max_model_len: int = Field(default=2048, ge=1)
    precision: str = "bfloat16"
    enforce_eager: bool = False


class GenerationSection(NemoRlSection):
    backend: Literal["vllm"] = "vllm"
    model_name: str
    """A hub name or a folder; `builtin` is this stack's policy without a model."""
    base_url: str | None = None
    """Not in NeMo-RL: an endpoint that already serves the model, instead of starting vLLM."""
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int | None = -1
    max_new_tokens: int | None = Field(default=None, ge=1)
    """None: as many as `max_model_len`, as in NeMo-RL; the engine stops at the end of its context."""
    vllm_cfg: VllmSection = VllmSection()


class EvalSection(NemoRlSection):
    metric: Literal["pass@k", "cons@k"] = "pass@k"
    num_tests_per_prompt: int = Field(default=1, ge=1)
    k_value: int = Field(default=1, ge=1)
    seed: int = 42
    save_path: Path | None = None


class DataSection(NemoRlSection):
    dataset_name: str
    """A dataset of the Hugging Face hub, or a JSON Lines file of rows of an environment."""
    dataset_key: str = "test"
    """The dataset's split."""
    prompt_file: Path | None = None
    """Template of the user message; `{}` in it is replaced by the problem."""
    system_prompt_file: Path | None = None
    local_root: Path | None = None
    """Not in NeMo-RL: a folder of dataset clones, <local_root>/openai/gsm8k, for nodes without a network."""
    limit: int | None = Field(default=None, ge=1)
    """Not in NeMo-RL: use only the first rows."""


class TokenizerSection(NemoRlSection):
    name: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: Json | None = None


class ClusterSection(NemoRlSection):
    gpus_per_node: int = Field(default=1, ge=0)
    num_nodes: int = Field(default=1, ge=1)


class NemoRlConfig(NemoRlSection):
    generation: GenerationSection
    data: DataSection
    eval: EvalSection = EvalSection()
    tokenizer: TokenizerSection = TokenizerSection()
    cluster: ClusterSection = ClusterSection()

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        """NeMo-RL's own checks: pass@k and cons@k need k responses that can differ."""
        samples, k = self.eval.num_tests_per_prompt, self.eval.k_value
        if samples < k:
            raise ValueError(f"eval.num_tests_per_prompt is {samples}; expected at least eval.k_value, {k}")
        if samples > 1 and (self.generation.temperature == 0 or self.generation.top_k == 1):
            raise ValueError(
                f"eval.num_tests_per_prompt is {samples}, but with generation.temperature 0 or top_k 1 all responses "
                "are the same; raise them, or set num_tests_per_prompt to 1"
            )
        return self

    @property
    def unused(self) -> list[str]:
        """Keys of the config that have no effect here, such as `generation.colocated`."""
        return sorted(key for key, _ in _extra(self, ""))


def is_nemo_rl(tree: Mapping[Any, Any]) -> bool:
    """Return whether the top-level keys of a YAML file are those of NeMo-RL's evaluation."""
    return "generation" in tree and isinstance(tree["generation"], Mapping)


def load_tree(path: Path, *, seen: tuple[Path, ...] = ()) -> DictConfig:
    """Read a YAML file and the files named by its key `defaults`, which it overrides. References stay unresolved.

    `defaults` are paths relative to the file, or of Rollyard's own files, such as `configs/nemo_rl_eval.yaml`.

    Raises OperatorError if a file cannot be read, is empty, or inherits from itself.
    """
    path = path.expanduser().resolve()
    if path in seen:
        raise OperatorError(f"{path} inherits from itself through defaults: {' -> '.join(map(str, (*seen, path)))}")
    if not path.is_file():
        raise OperatorError(f"config file {str(path)!r} does not exist")
    tree = read_yaml(path)
    if not tree:
        raise OperatorError(f"{path} is empty; expected the sections generation, eval and data")
    parents = tree.pop("defaults", None)
    merged = OmegaConf.create({})
    for parent in [parents] if isinstance(parents, str) else parents or ():
        beside = path.parent / str(parent)
        merged.merge_with(load_tree(find_file(str(parent), [path.parent, INSTALLED]) or beside, seen=(*seen, path)))
    merged.merge_with(tree)
    return merged


def parse(tree: DictConfig | Mapping[str, Any], origin: str) -> NemoRlConfig:
    """Resolve the references and validate the tree; OperatorError if it is invalid. `origin` names it in messages."""
    config = tree if isinstance(tree, DictConfig) else OmegaConf.create(dict(tree))
    try:
        resolved: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise OperatorError(f"{origin}: {describe_error(error)}") from error
    known = {key: value for key, value in resolved.items() if key in SECTIONS and value is not None}
    others = {key: value for key, value in resolved.items() if key not in SECTIONS}
    parsed = parse_settings(NemoRlConfig, {**known, **others}, origin)
    for key, names in _extra(parsed, ""):
        name = key.rpartition(".")[2]
        if name not in _LIKE_OURS and (hint := did_you_mean(name, names)):
            raise OperatorError(f"{origin}: unknown key {key!r}{hint}")
    return parsed


def _extra(section: NemoRlSection, prefix: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each unknown key with the known names of its section."""
    known = list(type(section).model_fields)
    for name in section.model_extra or {}:
        yield prefix + name, known
    for name in known:
        if isinstance(value := getattr(section, name), NemoRlSection):
            yield from _extra(value, f"{prefix}{name}.")

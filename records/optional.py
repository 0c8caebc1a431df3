"""Optional dependencies: finds packages that only some features need, and suggests how to install missing ones."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType

from rollyard.records.errors import OperatorError


@dataclass(frozen=True)
class Extra:
    packages: tuple[str, ...]
    purpose: str


EXTRAS = {
    "math": Extra(("math_verify",), "the environments gsm8k and math"),
    "ifeval": Extra(("langdetect", "nltk"), "the environment ifeval"),
    "hub": Extra(("huggingface_hub", "pyarrow"), "rows from the Hugging Face hub; Parquet and Arrow files"),
    "zstd": Extra(("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",), "rows in .zst files"),
    "aws": Extra(("boto3",), "rows, orders and checkpoints at s3://"),
    "inspect": Extra(("inspect_ai",), "the environment inspect_task; logs of inspect_ai"),
    "lm-eval": Extra(("lm_eval",), "ng_lm_eval"),
    "wandb": Extra(("wandb",), "ng_track --to wandb"),
    "mlflow": Extra(("mlflow",), "ng_track --to mlflow"),
    "vllm": Extra(("vllm",), "engines that the run starts (local_vllm_model)"),
    "convert": Extra(
        ("filelock", "torch", "transformers", "safetensors"), "conversion of DCP checkpoints to Hugging Face format"
    ),
    "train": Extra(("torch", "transformers", "trl", "peft", "accelerate", "datasets"), "training the policy"),
    "tokens": Extra(("tokenizers",), "texts of token ids in ng_viewer (--tokenizer)"),
    "openenv": Extra(("websockets",), "ng_serve"),
    "gymnasium": Extra(("gymnasium",), "the environment gymnasium_text"),
    "verifiers": Extra(("verifiers",), "the environment verifiers_environment"),
    "otel": Extra(
        tuple(f"opentelemetry.exporter.otlp.proto.http.{signal}_exporter" for signal in ("trace", "metric")),
        "traces and metrics through OpenTelemetry",
    ),
    "ray": Extra(("ray",), "servers on a Ray cluster (--ray-head-node-address)"),
}


def is_installed(package: str) -> bool:
    """Return whether Python finds the package. False if it is only partially installed, or its import is blocked."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def missing(extra: Extra) -> list[str]:
    return [package for package in extra.packages if not is_installed(package)]


def install_command(extra: str) -> str:
    """Return the command that installs an extra. It uses uv if there is no pip, as in environments created by uv."""
    if not is_installed("pip"):
        return f"uv pip install --python {sys.executable} 'rollyard[{extra}]'"
    return f"{sys.executable} -m pip install 'rollyard[{extra}]'"


def require(package: str, extra: str, feature: str) -> None:
    """Raise OperatorError with the install command if `package` is missing. Does not import it."""
    if not is_installed(package):
        raise OperatorError(
            f"{feature} needs the package {package}, which is not installed. It is part of the extra {extra!r}: "
            f"{install_command(extra)}"
        )


def load(module: str, extra: str, feature: str) -> ModuleType:
    """Import a module that belongs to an extra. Raises OperatorError, with the install command, if it is missing."""
    require(module if module in EXTRAS[extra].packages else module.partition(".")[0], extra, feature)
    return importlib.import_module(module)

"""JobParameters: the hyperparameters through which a submission tells a job what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from rollyard.records.errors import OperatorError
from rollyard.records.types import Record
from rollyard.services.server.settings import parse_settings

MAX_VALUE_LENGTH = 2500
"""SageMaker's limit for the value of a hyperparameter."""
PROGRAM = "rollyard.launchers.sagemaker.container"
_LISTS = ("command", "eval_command", "final_eval_command", "ray_args")


class JobParameters(Record):
    """What runs inside a job. The names with hyphens instead of underscores are the hyperparameters' names."""

    config: str | None = None
    """Path of the config in the source bundle."""
    eval_config: str | None = None
    """Config of an evaluation that runs next to training, on `eval_gpus`."""
    train_gpus: str | None = None
    eval_gpus: str | None = None
    command: tuple[str, ...] = ()
    """The program; `{config}` is replaced by the path of the rewritten config, `{checkpoints}` by their folder."""
    eval_command: tuple[str, ...] = ()
    final_eval_command: tuple[str, ...] = ()
    model_source: str | None = None
    """Overrides the config's `model.source`."""
    ray: Literal["auto", "always", "never"] = "auto"
    """When a Ray cluster is started: `auto` means for several hosts."""
    ray_args: tuple[str, ...] = ()
    """More arguments of `ray start`."""
    s3: str | None = None
    """s3://bucket/prefix of models, data and uploads; None: nothing is uploaded."""
    upload_interval_s: float = 15.0
    """Time between searches for new checkpoints and traces, in seconds."""
    upload: Literal["checkpoints", "eval_output"] = "checkpoints"
    """The folder below `s3` that gets the files of the job."""
    sagemaker_program: str = PROGRAM
    sagemaker_submit_directory: str | None = None
    """S3 URL of the source bundle."""

    def hyperparameters(self) -> dict[str, str]:
        """Return the hyperparameters. Raises OperatorError if a value is too long for SageMaker."""
        defaults = JobParameters()
        values: dict[str, str] = {}
        for name, value in self:
            if value == getattr(defaults, name) and name != "sagemaker_program":
                continue
            key = name if name.startswith("sagemaker_") else name.replace("_", "-")
            values[key] = json.dumps(value) if name in _LISTS else str(value)
            if len(values[key]) > MAX_VALUE_LENGTH:
                raise OperatorError(
                    f"{key} has {len(values[key])} characters; SageMaker accepts at most {MAX_VALUE_LENGTH}. Put long "
                    "arguments into the config"
                )
        return values

    @classmethod
    def parse(cls, hyperparameters: Mapping[str, str]) -> JobParameters:
        """Parse hyperparameters. SageMaker's SDK encodes strings as JSON, other clients do not."""
        values: dict[str, object] = {}
        for key, text in hyperparameters.items():
            name = key.replace("-", "_")
            if name not in cls.model_fields:
                continue  # such as sagemaker_region, which SageMaker's tools add
            quoted = name in _LISTS or text.startswith('"')
            try:
                values[name] = json.loads(text) if quoted else text
            except ValueError as error:
                raise OperatorError(f"the hyperparameter {key} is {text!r}, expected JSON") from error
        return parse_settings(cls, values, "hyperparameters")

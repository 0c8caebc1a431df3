"""JobInputs: puts the project's files, the model, the data and the configs onto this host."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollyard.launchers.sagemaker.container.config_rewrite import Resolvers, rewrite, with_output_dir
from rollyard.launchers.sagemaker.container.datasets import Datasets
from rollyard.launchers.sagemaker.container.job_environment import JobEnvironment
from rollyard.launchers.sagemaker.container.model_source import ModelSource
from rollyard.launchers.sagemaker.container.s3_cache import S3Cache
from rollyard.launchers.sagemaker.job_parameters import JobParameters
from rollyard.launchers.sagemaker.source_bundle import unpack
from rollyard.records.errors import OperatorError
from rollyard.records.io import s3
from rollyard.records.io.aws import aws_errors


class JobInputs:
    """What a job needs before its program starts."""

    def __init__(
        self,
        environment: JobEnvironment,
        parameters: JobParameters,
        client: Callable[[], Any],
        print_line: Callable[[str], None],
    ) -> None:
        """`client`: returns boto3's S3 client; called only if something is in S3."""
        self._environment = environment
        self._parameters = parameters
        self._client = client
        self._print = print_line

    def fetch_source(self) -> None:
        """Unpack the source bundle, unless the image or a mount already has the project's files."""
        code, address = self._environment.code, self._parameters.sagemaker_submit_directory
        if address is None or (code.is_dir() and any(code.iterdir())):
            return
        bucket, key = s3.split(address)
        with tempfile.TemporaryFile() as archive:
            with aws_errors(f"{address} cannot be read"):
                self._client().download_fileobj(bucket, key, archive)
            archive.seek(0)
            unpack(archive, code)
        self._print(f"source {address}: {code}")

    def rewritten(self, config: str, output_dir: Path, *, evaluation: bool) -> Path:
        """Return the path of the config with its paths replaced. It keeps its name.

        `evaluation`: the config gets `output_dir` if it has none, because ng_eval needs one.

        Raises OperatorError if it cannot be read, or if its model or data cannot be found.
        """
        original = self._environment.code / config
        try:
            text = original.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise OperatorError(f"the config {original} cannot be read: {error}") from error
        resolvers = Resolvers(self._model, self._data, output_dir, self._parameters.model_source)
        # Two folders: the configs of training and evaluation may have the same name.
        target = self._environment.work / ("eval_configs" if evaluation else "configs") / original.name
        target.parent.mkdir(parents=True, exist_ok=True)
        rewritten = rewrite(text, config, resolvers)
        target.write_text(with_output_dir(rewritten, output_dir) if evaluation else rewritten)
        return target

    def _model(self, path: str, source: str | Any) -> str:
        models = f"{self._parameters.s3}/models" if self._parameters.s3 else None
        model_source = ModelSource(self._environment.code, models, self._cache("models"), self._print)
        return model_source.resolve(path, source)

    def _data(self, address: str) -> str:
        return Datasets(self._cache("data"), self._print).resolve(address)

    def _cache(self, name: str) -> S3Cache:
        return S3Cache(self._environment.work / name, _Lazy(self._client))


class _Lazy:
    """An S3 client that is created when it is first used: a job with local paths only needs no credentials."""

    def __init__(self, create: Callable[[], Any]) -> None:
        self._create = create
        self._client: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._client is None:
            self._client = self._create()
        return getattr(self._client, name)

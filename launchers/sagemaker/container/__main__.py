"""Runs one host of a SageMaker job: `python -m rollyard.launchers.sagemaker.container`.

Hyperparameters come from SageMaker's file, or from the arguments that sagemaker-training makes of them: `--config X`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rollyard.launchers.sagemaker.container.job import Job
from rollyard.launchers.sagemaker.container.programs import StopSignal
from rollyard.launchers.sagemaker.job_parameters import (
    JobParameters,
    read_environment,
    root_of,
    write_failure,
)
from rollyard.records.errors import OperatorError
from rollyard.records.script import EXIT_FAILED, exit_status


def main() -> int:
    return exit_status("sagemaker job", _run)


def _run() -> int:
    stop = StopSignal()
    stop.install()
    try:
        environment = read_environment(os.environ)
        # SageMaker passes `train` to images without an entry point.
        arguments = [word for word in sys.argv[1:] if word != "train"]
        parameters = JobParameters.parse({**environment.hyperparameters, **_pairs(arguments)})
    except (OperatorError, OSError) as error:
        write_failure(root_of(os.environ), str(error))
        return EXIT_FAILED
    return Job(environment, parameters, os.environ, stop, lambda line: print(line, flush=True)).run()


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    names, values = arguments[::2], arguments[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names):
        raise OperatorError(f"the arguments {list(arguments)} are not pairs of --name and value")
    return {name.removeprefix("--"): value for name, value in zip(names, values, strict=True)}


if __name__ == "__main__":
    sys.exit(main())

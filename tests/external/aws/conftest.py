"""One simulated AWS account for all tests of this folder. Without moto (make test-aws), nothing is collected."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.external.aws.account import Account

HAS_MOTO = importlib.util.find_spec("moto") is not None
collect_ignore_glob = [] if HAS_MOTO else ["test_*.py"]


@pytest.fixture(scope="session")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    from tests.external.aws.account import running_account

    with running_account(tmp_path_factory.mktemp("aws")) as account:
        account.prepare()
        yield account


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a config and a training program."""
    from tests.external.aws.account import SETTINGS

    folder = tmp_path / "project"
    (folder / "configs").mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    (folder / "sagemaker.yaml").write_text(SETTINGS)
    (folder / "configs/small.yaml").write_text("model:\n  path: Qwen/Qwen3-1.7B\ntraining: {steps: 2}\n")
    shutil.copy(Path(__file__).with_name("training_program.py"), folder / "train.py")
    return folder

"""With vLLM installed (make test-vllm) one real engine for all tests here; without it nothing of this folder is run."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from rollyard.services.runtime.stack import Stack
from tests.external.vllm.engine import Engine
from tests.external.vllm.local_run import TOKEN, a_run
from tests.support.local_engines import bearers
from tests.support.stacks import configured, processes

if TYPE_CHECKING:  # it needs torch, which only the environment with vLLM has
    from tests.external.vllm.reference import Reference

HERE = Path(__file__).parent
MADE_OF = ("tiny_model.py", "corpus.py", "calls.py", "chat_template.jinja")
collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]


@pytest.fixture(scope="session")
def tiny_model(pytestconfig: pytest.Config) -> Path:
    """The random model of seed 0: what the engine serves at first."""
    return built(pytestconfig, 0)


@pytest.fixture(scope="session")
def other_model(pytestconfig: pytest.Config) -> Path:
    """Other weights under the same tokenizer: what a training step would bring."""
    return built(pytestconfig, 1)


@pytest.fixture(scope="session")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One vLLM for the whole run. Who changes its weights puts them back."""
    folder = tmp_path_factory.mktemp("engine")
    with Engine.serve(tiny_model, folder, "--logprobs-mode", "processed_logprobs") as engine:
        yield engine


@pytest.fixture(scope="session")
def raw_engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A second engine: the mode of logprobs is fixed when it starts."""
    folder = tmp_path_factory.mktemp("raw_engine")
    with Engine.serve(tiny_model, folder, "--logprobs-mode", "raw_logprobs") as engine:
        yield engine


@pytest_asyncio.fixture(scope="session")
async def local_stack(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A run that starts its engine itself, every server a process. Its folder's name is the mark of its engine."""
    folder = tmp_path_factory.mktemp("local")
    chosen = a_run(tiny_model, folder.name, trainer_endpoints=True)
    async with processes(configured(config=chosen, tmp_path=folder), folder, token=TOKEN) as stack:
        yield stack
    assert list(bearers(folder.name)) == []


@pytest.fixture(scope="session")
def reference(tiny_model: Path) -> Reference:
    """The model that both engines serve, as transformers computes it."""
    from tests.external.vllm.reference import Reference

    return Reference(tiny_model)


def built(config: pytest.Config, seed: int) -> Path:
    """A tiny model, kept in pytest's cache for as long as what it is made of stays the same."""
    assert config.cache is not None
    sources = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in MADE_OF)).hexdigest()
    folder = config.cache.mkdir("tiny_model") / f"{sources[:16]}-{seed}"
    if not folder.exists():
        # Its own process: this one needs no torch when the model is there. Renamed at the end: whole or not there.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "model"
            command = [sys.executable, "-m", "tests.external.vllm.tiny_model", str(made), str(seed)]
            subprocess.run(command, cwd=HERE.parents[2], check=True, capture_output=True)
            made.replace(folder)
    return folder

"""One real vLLM engine for all tests of this folder (make test-vllm); without vLLM, nothing is collected."""

from __future__ import annotations

import hashlib
import importlib.util
import os
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
from tests.external.vllm.local_run import TOKEN, local_config
from tests.support.local_engines import marked_processes
from tests.support.stacks import load_config, processes

if TYPE_CHECKING:  # imports torch, which only the environment with vLLM has
    from tests.external.vllm.reference import Reference

HERE = Path(__file__).parent
SOURCES = ("tiny_model.py", "corpus.py", "calls.py", "chat_template.jinja")
collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]


@pytest.fixture(scope="session")
def tiny_model(pytestconfig: pytest.Config) -> Path:
    """The random model of seed 0, which the engine serves at first."""
    return built(pytestconfig, 0)


@pytest.fixture(scope="session")
def other_model(pytestconfig: pytest.Config) -> Path:
    """Other weights with the same tokenizer, like after a training step."""
    return built(pytestconfig, 1)


@pytest.fixture(scope="session")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One vLLM for the whole session. Tests that change its weights must restore them."""
    folder = tmp_path_factory.mktemp("engine")
    with Engine.serve(tiny_model, folder, "--logprobs-mode", "processed_logprobs") as engine:
        yield engine


@pytest.fixture(scope="session")
def raw_engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A second engine, because the logprobs mode is fixed at the start."""
    folder = tmp_path_factory.mktemp("raw_engine")
    with Engine.serve(tiny_model, folder, "--logprobs-mode", "raw_logprobs") as engine:
        yield engine


@pytest_asyncio.fixture(scope="session")
async def local_stack(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A run that starts its engine itself; the name of its folder marks the engine's processes."""
    folder = tmp_path_factory.mktemp(f"local-{os.getpid()}")
    config = local_config(tiny_model, folder.name, trainer_endpoints=True)
    async with processes(load_config(config=config, tmp_path=folder), folder, token=TOKEN) as stack:
        yield stack
    assert list(marked_processes(folder.name)) == []


@pytest.fixture(scope="session")
def reference(tiny_model: Path) -> Reference:
    """The model of both engines in transformers."""
    from tests.external.vllm.reference import Reference

    return Reference(tiny_model)


def built(config: pytest.Config, seed: int) -> Path:
    """Build a tiny model; it stays in pytest's cache until its sources change."""
    assert config.cache is not None
    sources = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SOURCES)).hexdigest()
    folder = config.cache.mkdir("tiny_model") / f"{sources[:16]}-{seed}"
    if not folder.exists():
        # In another process, so that this one only imports torch if needed. Renamed at the end to be atomic.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            model = Path(scratch) / "model"
            command = [sys.executable, "-m", "tests.external.vllm.tiny_model", str(model), str(seed)]
            subprocess.run(command, cwd=HERE.parents[2], check=True, capture_output=True)
            model.replace(folder)
    return folder

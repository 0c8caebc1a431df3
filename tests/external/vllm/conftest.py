"""Two real vLLM engines for the tests of this folder (make test-vllm); without vLLM, nothing is collected.

vLLM starts four times: `engine`, the engine of `local_stack`, this one again after test_local_engine.py has killed it,
and in test_ng_eval.py. Each start costs as much as fifty tests.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
import pytest_asyncio

from rollyard.services.runtime.stack import Stack
from tests.external.vllm.engine import Engine
from tests.external.vllm.local_run import TOKEN, engine_of, local_config
from tests.support.local_engines import marked_processes
from tests.support.smoke import pytest_ignore_collect
from tests.support.stacks import load_config, processes

if TYPE_CHECKING:  # imports torch, which only the environment with vLLM has
    from tests.external.vllm.first_turns import FirstTurns
    from tests.external.vllm.reference import Reference

__all__ = ["pytest_ignore_collect"]
HERE = Path(__file__).parent
LAST = "test_local_engine.py"
"""It kills an engine that other tests use."""
SOURCES = ("tiny_model.py", "corpus.py", "calls.py", "chat_template.jinja")
collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == LAST)


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
def tied_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of `tiny_model` with the embeddings as the output head."""
    return tied(tiny_model, tmp_path_factory.mktemp("tied") / "model")


@pytest_asyncio.fixture(scope="session")
async def local_stack(tied_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A run that starts its engine itself; the name of its folder marks the engine's processes.

    It differs from `engine` in what is fixed at the start: a tied model, and the logprobs mode.
    """
    folder = tmp_path_factory.mktemp(f"local-{os.getpid()}")
    config = local_config(tied_model, folder.name, trainer_endpoints=True, logprobs_mode="raw_logprobs")
    async with processes(load_config(config=config, tmp_path=folder), folder, token=TOKEN) as stack:
        yield stack
    assert list(marked_processes(folder.name)) == []


@pytest.fixture(scope="session")
def raw_engine(local_stack: Stack) -> Engine:
    return engine_of(local_stack)


@pytest.fixture(scope="session")
def first_turns(engine: Engine) -> FirstTurns:
    from tests.external.vllm.first_turns import FirstTurns

    return FirstTurns(engine)


@pytest.fixture(scope="session")
def reference(tiny_model: Path) -> Reference:
    from tests.external.vllm.reference import Reference

    return Reference(tiny_model)


@pytest.fixture(scope="session")
def other_reference(other_model: Path) -> Reference:
    from tests.external.vllm.reference import Reference

    return Reference(other_model)


@pytest.fixture(scope="session")
def raw_reference(tied_model: Path) -> Reference:
    from tests.external.vllm.reference import Reference

    return Reference(tied_model)


def tied(model: Path, folder: Path) -> Path:
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = orjson.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_bytes(orjson.dumps({**config, "tie_word_embeddings": True}))
    return folder


def built(config: pytest.Config, seed: int) -> Path:
    """The tiny model of this seed, 0 or 1; both stay in pytest's cache until their sources change."""
    assert config.cache is not None
    sources = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SOURCES)).hexdigest()
    folder = config.cache.mkdir("tiny_model") / sources[:16]
    if not folder.exists():
        # In another process, so that this one only imports torch if needed. Renamed at the end to be atomic.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            models = Path(scratch) / "models"
            command = [sys.executable, "-m", "tests.external.vllm.tiny_model", str(models), "0", "1"]
            subprocess.run(command, cwd=HERE.parents[2], check=True, capture_output=True)
            models.replace(folder)
    return folder / str(seed)

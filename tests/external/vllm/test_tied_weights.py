"""A model with tied embeddings on a CPU engine: vLLM loads new weights incorrectly, so updates are rejected."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from safetensors.torch import load_file, save_file

from tests.external.vllm.engine import Engine
from tests.external.vllm.reference import Reference
from tests.external.vllm.test_engine_control import PROMPT, reload, sampled
from tests.support.weight_engine import trainer_server


def tied(model: Path, folder: Path) -> Path:
    """The same weights, with the embeddings as the output head."""
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = orjson.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_bytes(orjson.dumps({**config, "tie_word_embeddings": True}))
    return folder


@pytest.fixture(scope="module")
def models(tiny_model: Path, other_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tied")
    return tied(tiny_model, folder / "old"), tied(other_model, folder / "new")


@pytest.fixture(scope="module")
def tied_engine(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    with Engine.serve(models[0], folder, "--logprobs-mode", "processed_logprobs") as engine:
        yield engine


async def test_new_weights_for_a_tied_model_are_rejected_and_the_engine_is_unchanged(
    tied_engine: Engine, models: tuple[Path, Path]
) -> None:
    old, new = models
    async with trainer_server(base_url=[f"{tied_engine.url}/v1"], weights_check="values") as policy_server:
        status, answer = await policy_server.update(str(new))
        assert (status, "keeps the old output head" in answer["detail"]) == (400, True)
    output, logprobs, _ = sampled(tied_engine)
    assert Reference(old).logprobs(PROMPT, output) == pytest.approx(logprobs, abs=1e-4)


def test_vllm_keeps_the_old_head_after_a_reload(tied_engine: Engine, models: tuple[Path, Path]) -> None:
    """The reason for the rejection. If this fails, vLLM has fixed it, and the rejection can be removed."""
    reload(tied_engine, models[1])
    output, logprobs, _ = sampled(tied_engine)
    assert Reference(models[1]).logprobs(PROMPT, output) != pytest.approx(logprobs, abs=1e-2)

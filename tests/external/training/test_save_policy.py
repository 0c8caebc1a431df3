"""The saved policy is the trained one."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollyard.records.errors import RunError
from rollyard.training.train_config import LoraSettings
from rollyard.training.trl.policy_trainer import lora_config
from rollyard.training.trl.save_policy import write_errors
from tests.external.training.tiny_policy import make_model, make_tokenizer
from tests.external.training.train_sharded import save
from tests.external.training.training_runs import make_update, trained

IDS = torch.tensor([[5, 6, 7, 8, 9]])


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=IDS).logits
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_folder_is_the_trained_model_in_its_type_with_its_tokenizer(dtype: torch.dtype, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "start")
    # Unlike .to(dtype), this keeps the frequencies of the positions in float32.
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "start", dtype=dtype)
    trainer = trained(model, [make_update(model)], tmp_path)
    save(trainer, folder := tmp_path / "version", "merge")
    saved = load_file(folder / "model.safetensors")
    assert {value.dtype for value in saved.values()} == {dtype}
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(saved[name], value), name
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == dtype and torch.equal(logits(loaded), logits(trainer.model))
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == make_tokenizer().get_vocab()


def test_adapters_are_merged_or_saved_alone_and_the_trained_ones_stay_as_they_are(tmp_path: Path) -> None:
    model = make_model()
    options = {"peft_config": lora_config(LoraSettings(rank=4))}
    trainer = trained(model, [make_update(model)] * 2, tmp_path, options, optimizer={"learning_rate": 0.05})
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    save(trainer, folder := tmp_path / "merged", "merge")
    merged = AutoModelForCausalLM.from_pretrained(folder)
    assert set(load_file(folder / "model.safetensors")) == set(model.state_dict())
    assert torch.allclose(logits(merged), logits(trainer.model), atol=1e-5)
    assert (logits(merged) - logits(model)).abs().max() > 1e-2
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    save(trainer, folder := tmp_path / "alone", "adapter")
    assert not (folder / "model.safetensors").exists()
    assert torch.allclose(logits(PeftModel.from_pretrained(make_model(), folder)), logits(trainer.model), atol=1e-6)


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """No file can be longer than 1 kB. Not a fixture: pytest itself may write to a file, such as the log of CI, before
    it ends fixtures.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("save", [torch.save, save_file])
def test_weights_that_cannot_be_written_are_an_error_with_the_folder(
    save: Callable[[dict[str, torch.Tensor], Path], None], tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=f"cannot write {tmp_path}: "), small_files(), write_errors(tmp_path):
        save({"a": torch.zeros(1000)}, tmp_path / "weights")


def test_other_errors_of_torch_are_not_those_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shape"), write_errors(tmp_path):
        IDS.reshape(2, 2)

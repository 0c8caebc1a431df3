"""Tokenizers that ng_viewer loads (+tokenizer), with the package tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rollyard.analysis.viewer.token_texts import load_tokenizer
from rollyard.records.errors import OperatorError


def test_a_folder_without_a_tokenizer_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="save_pretrained"):
        load_tokenizer(str(tmp_path), print)


def test_a_tokenizer_of_bytes_is_loaded_from_its_folder(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode("a 🎉é").ids
    assert load_tokenizer(str(tmp_path), print).texts(ids) == ["a", " ", "", "", "", "🎉", "", "é"]

"""A NaN or an infinity among the weights is found in every format and at every position."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from rollyard.records.errors import Failure
from rollyard.responses_api_models.chat_engine.weights import finite_weights
from rollyard.responses_api_models.chat_engine.weights.checkpoint import check
from tests.support.checkpoints import EMBEDDINGS, overwrite_element, write_checkpoint

WEIGHTS_FILE = "model.safetensors"


NOT_FINITE = [
    ("F64", struct.pack("<d", float("nan"))),
    ("F64", struct.pack("<d", float("-inf"))),
    ("F32", struct.pack("<f", float("nan"))),
    ("F32", struct.pack("<f", float("inf"))),
    ("F32", b"\x01\x00\x80\xff"),
    ("BF16", b"\xc0\x7f"),
    ("BF16", b"\x80\xff"),
    ("F16", struct.pack("<e", float("nan"))),
    ("F16", struct.pack("<e", float("-inf"))),
    ("F8_E5M2", b"\x7c"),
    ("F8_E5M2", b"\xff"),
    ("F8_E4M3", b"\x7f"),
    ("F8_E4M3", b"\xff"),
]


@pytest.mark.parametrize("index", [0, 7, -1])
def test_a_single_weight_that_is_not_finite_is_found_at_any_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    monkeypatch.setattr(finite_weights, "PIECE", 24)  # so that a tensor is read in several pieces
    for dtype, value in NOT_FINITE:
        folder = write_checkpoint(tmp_path / "new", dtype=dtype)
        overwrite_element(tmp_path / "new" / WEIGHTS_FILE, "model.layers.1.weight", value, index)
        with pytest.raises(Failure, match=r"model\.layers\.1\.weight in .* NaN"):
            check(folder, None)
        assert check(folder, None, "headers").fingerprint


def test_the_largest_number_of_a_type_is_finite(tmp_path: Path) -> None:
    largest = {
        "F32": struct.pack("<f", np.finfo(np.float32).max),
        "BF16": b"\x7f\x7f",
        "F16": struct.pack("<e", -65504.0),
        "F8_E4M3": b"\x7e",
    }
    for dtype, value in largest.items():
        folder = write_checkpoint(tmp_path / dtype, dtype=dtype)
        overwrite_element(tmp_path / dtype / WEIGHTS_FILE, EMBEDDINGS, value)
        assert check(folder, None).fingerprint

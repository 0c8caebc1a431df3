"""A weight that is not a finite number is found, in every format and wherever it is."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from rollyard.responses_api_models.chat_engine.weights import finite_weights
from rollyard.responses_api_models.chat_engine.weights.checkpoint import check
from rollyard.services.errors import Failure
from tests.support.checkpoints import EMBEDDINGS, overwrite_element, write_checkpoint

ONE = "model.safetensors"


NOT_NUMBERS = [
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


@pytest.mark.parametrize("place", [0, 7, -1])
@pytest.mark.parametrize(("dtype", "value"), NOT_NUMBERS)
def test_one_weight_that_is_not_a_finite_number_is_found_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, value: bytes, place: int
) -> None:
    monkeypatch.setattr(finite_weights, "PIECE", 24)  # so that a tensor takes several
    folder = write_checkpoint(tmp_path / "new", dtype=dtype)
    overwrite_element(tmp_path / "new" / ONE, "model.layers.1.weight", value, place)
    with pytest.raises(Failure, match=r"model\.layers\.1\.weight in .* contains a NaN or an infinity"):
        check(folder, None)
    assert check(folder, None, "headers").fingerprint


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("F32", struct.pack("<f", np.finfo(np.float32).max)),
        ("BF16", b"\x7f\x7f"),
        ("F16", struct.pack("<e", -65504.0)),
        ("F8_E4M3", b"\x7e"),
    ],
)
def test_the_largest_number_of_a_type_is_a_number(tmp_path: Path, dtype: str, value: bytes) -> None:
    folder = write_checkpoint(tmp_path / "new", dtype=dtype)
    overwrite_element(tmp_path / "new" / ONE, EMBEDDINGS, value)
    assert check(folder, None).fingerprint

"""Checks that all weights of a checkpoint are finite. One NaN turns every response of a policy into garbage.

The bytes are read in chunks of a few megabytes and never converted to floats: in each IEEE format, a NaN or an infinity
has an exponent of all ones, which a mask detects. The OCP 8-bit formats differ (arXiv 2209.05433): E4M3 has no infinity
and one NaN; E8M0 consists only of an exponent and has one NaN.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rollyard.records.io.safetensors_headers import Tensor
from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request

PIECE = 8 * 1024 * 1024
"""Bytes read at a time; memory use stays below three times that."""
_MASKS: dict[str, tuple[str, int]] = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
    "F8_E5M2": ("u1", 0x7C),
    "F8_E4M3": ("u1", 0x7F),
    "F8_E8M0": ("u1", 0xFF),
}
"""Tensor type -> the unsigned type of the same width, and the bits that are all ones in a non-finite number."""


def check_finite(tensors: Iterable[Tensor]) -> None:
    """Read every weight. Raises Failure bad_request for the first tensor that contains a NaN or an infinity."""
    buffer = np.empty(PIECE, np.uint8)
    by_file: dict[Path, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.dtype in _MASKS:
            by_file.setdefault(tensor.file, []).append(tensor)
    for file, tensors_inside in by_file.items():
        try:
            with file.open("rb", buffering=0) as opened:
                for tensor in tensors_inside:
                    if not _is_finite(opened, tensor, buffer):
                        found = f"{tensor.name} in {file} contains a NaN or an infinity"
                        raise bad_request(f"{found}; training may have diverged. Send an earlier checkpoint")
        except OSError as error:
            raise bad_request(f"{file} cannot be read ({error})") from error


def _is_finite(opened: Any, tensor: Tensor, buffer: np.ndarray[Any, Any]) -> bool:
    kind, mask = _MASKS[tensor.dtype]
    opened.seek(tensor.start)
    left = tensor.end - tensor.start
    while left:
        piece = buffer[: min(left, PIECE)]
        _fill(opened, piece, tensor)
        values = piece.view(kind)
        bits = values.dtype.type(mask)
        if (values & bits).max() == bits:
            return False
        left -= len(piece)
    return True


def _fill(opened: Any, piece: np.ndarray[Any, Any], tensor: Tensor) -> None:
    view = piece.data
    while view:
        if not (count := opened.readinto(view)):
            raise bad_request(
                f"{tensor.file} was truncated while being read; another process may still be writing to it"
            )
        view = view[count:]

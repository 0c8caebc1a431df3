"""Computes the fingerprint of the files that a version was loaded from: sixteen hex digits.

It covers config.json or adapter_config.json, the index and, for each weight file, the name, size, modification time,
header and a few bytes of every tensor. It distinguishes checkpoints that were saved into the same folder without
reading all weights, even if a copy preserved the times. A copy of a folder has a different fingerprint unless it
preserves the times (`cp -p`, `rsync -t`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request
from rollyard.responses_api_models.chat_engine.weights.safetensors_headers import INDEX, read_header, weight_files

SAMPLE = 64
"""Number of bytes read from the middle of each tensor; a training step changes almost every weight."""


def fingerprint(folder: Path) -> str:
    """Return the fingerprint of a folder of safetensors. Raises Failure bad_request if a file cannot be read."""
    digest = hashlib.sha256()
    for name in ("config.json", "adapter_config.json", INDEX):
        if (file := folder / name).exists():
            digest.update(f"{name}\0".encode() + file.read_bytes())
    for file in weight_files(folder):
        tensors = read_header(file)
        try:
            with file.open("rb", buffering=0) as opened:
                stat = file.stat()
                digest.update(f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
                for tensor in tensors:
                    digest.update(f"{tensor.name}\0{tensor.dtype}\0{tensor.shape}\0{tensor.start}\0".encode())
                    opened.seek(max(tensor.start, (tensor.start + tensor.end - SAMPLE) // 2))
                    digest.update(opened.read(min(SAMPLE, tensor.end - tensor.start)))
        except OSError as error:
            raise bad_request(f"{file} cannot be read ({error})") from error
    return digest.hexdigest()[:16]

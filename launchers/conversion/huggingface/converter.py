"""Converts a DCP checkpoint into a folder that `from_pretrained` and vLLM load, and checks it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from transformers.utils import logging

from rollyard.launchers.conversion.huggingface.checks import check_conversion
from rollyard.launchers.conversion.huggingface.dcp_checkpoint import DcpCheckpoint
from rollyard.launchers.conversion.huggingface.model_config import load_skeleton
from rollyard.launchers.conversion.huggingface.stages import stage
from rollyard.launchers.conversion.huggingface.tokenizer import require_ids, write_tokenizer
from rollyard.launchers.conversion.huggingface.weights import MAX_SHARD_BYTES, select, write_weights
from rollyard.launchers.conversion.manifest import Contents
from rollyard.launchers.conversion.source import Source
from rollyard.records.errors import RunError


class HuggingFaceConverter:
    """The converter of `python -m rollyard.launchers.conversion`."""

    def __init__(self, max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
        self._max_shard_bytes = max_shard_bytes

    def __call__(self, source: Source, target: Path, report: Callable[[str], None]) -> Contents:
        """Convert `source` into the empty folder `target`. Raises RunError if any check fails."""
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        checkpoint = DcpCheckpoint(source.checkpoint)
        if unknown := checkpoint.files - source.files.keys():
            raise RunError(f"the checkpoint stores tensors in {', '.join(sorted(unknown))}; expected files *.distcp")
        # Config and tokenizer first: an error there takes seconds, writing the weights minutes.
        skeleton = load_skeleton(source.policy, checkpoint)
        write_tokenizer(source.tokenizer, target)
        require_ids(target, skeleton.config.get_text_config().vocab_size)
        with stage("writing the config"):
            skeleton.config.save_pretrained(target)
            skeleton.generation_config.save_pretrained(target)
        if not checkpoint.has_valid_checksums():
            report("The checkpoint has no checksums: damaged values in its files cannot be detected")
        selection = select(checkpoint, skeleton)
        entries = {name: checkpoint.tensors[name] for name in selection.written}
        dtypes = Counter(str(entry.dtype).removeprefix("torch.") for entry in entries.values())
        precision = source.policy.precision
        kept = f" (policy.precision is {precision})" if precision and precision not in dtypes else ""
        report(f"Weights keep the data type of the checkpoint: {', '.join(sorted(dtypes))}{kept}")
        write_weights(checkpoint, selection.written, target, report, self._max_shard_bytes)
        difference = check_conversion(checkpoint, skeleton, selection, target, report)
        return Contents(
            tensors=len(entries),
            parameters=sum(math.prod(entry.shape) for entry in entries.values()),
            dtypes=dict(dtypes),
            tied=selection.tied,
            left_out=selection.left_out,
            largest_logit_difference=difference,
        )

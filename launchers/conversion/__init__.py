"""Conversion of DCP checkpoints to Hugging Face format, once for each content and safe under any race.

    request = ConversionRequest(checkpoint, config, environ)
    conversion_target(request)          where the result is or will be; needs no torch
    is_converted(request)
    convert(request, converter)         the result; converts, waits or uses what exists

`huggingface/` holds the conversion itself. docs/slurm.md describes the guarantees.
"""

from rollyard.launchers.conversion.command import main
from rollyard.launchers.conversion.requests import (
    ConversionRequest,
    conversion_target,
    convert,
    is_converted,
)

__all__ = ["ConversionRequest", "conversion_target", "convert", "is_converted", "main"]

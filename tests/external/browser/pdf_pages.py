"""Counts the pages of a PDF without a PDF library."""

from __future__ import annotations

import re
import zlib

_STREAM = re.compile(rb"stream\r?\n(.*?)endstream", re.DOTALL)
_PAGE = re.compile(rb"/Type\s*/Page\b(?!s)")


def page_count(pdf: bytes) -> int:
    """Return the number of page objects. Firefox compresses them, Chromium does not."""
    return sum(len(_PAGE.findall(part)) for part in (pdf, *_decompressed(pdf)))


def _decompressed(pdf: bytes) -> list[bytes]:
    found = []
    for stream in _STREAM.findall(pdf):
        try:
            found.append(zlib.decompressobj().decompress(stream))
        except zlib.error:
            continue  # a stream with another filter, such as an image
    return found

"""Explains why a line of a file is not JSON."""

from __future__ import annotations

import codecs
import json

_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "compressed data",
    b"\x28\xb5\x2f\xfd": "compressed data",
    b"PAR1": "a compressed Parquet file",
}
"""First bytes of formats that are often mistaken for JSON Lines."""


def why_unreadable(line: bytes, offset: int, error: ValueError) -> str:
    """Describe why the line at byte `offset` cannot be read. The result is meant to be appended to `line 17`."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f" is not JSON: {_why_not_json(line, offset, error)}"
    return f": {error}"


def _why_not_json(line: bytes, offset: int, error: ValueError) -> str:
    """Describe the likely cause. Usually the file has a different format or is truncated."""
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "the file is UTF-16; expected UTF-8 (iconv -f UTF-16 -t UTF-8)"
    if not offset and (
        format_name := next((what for head, what in _OTHER_FORMATS.items() if line.startswith(head)), "")
    ):
        return f"the file contains {format_name}; expected JSON Lines: unpack it"
    if b"\0" in line:
        return "it contains zero bytes; expected UTF-8 text (the file may have holes from a crash, or be UTF-16)"
    try:
        line.decode()
    except UnicodeDecodeError as decode_error:
        return f"it is not UTF-8: byte {line[decode_error.start]:#x} at {decode_error.start + 1}"
    if not offset and line.split() in ([b"["], [b"[{"], [b"[", b"{"], [b"{"]):
        return "a row spans several lines; expected one row per line (jq -c '.[]' converts a list)"
    cut = "" if line.endswith(b"\n") else ", where the file ends: it is truncated"
    if not isinstance(error, json.JSONDecodeError):
        return f"{error}{cut}"
    return f"{error.msg.removesuffix(' at')} at character {error.colno}{cut}"

"""Why a line is not JSON, in words for the person who made the file."""

from __future__ import annotations

import codecs
import json

_NOT_LINES = {
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "compressed data",
    b"\x28\xb5\x2f\xfd": "compressed data",
    b"PAR1": "a compressed Parquet file",
}
"""First bytes of what is often taken for JSON Lines."""


def why_unreadable(line: bytes, offset: int, error: ValueError) -> str:
    """What `error` says of a line that begins at byte `offset`, to be read after `line 17`."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f" is not JSON: {_why_not_json(line, offset, error)}"
    return f": {error}"


def _why_not_json(line: bytes, offset: int, error: ValueError) -> str:
    """Mostly the file is of another kind, or half of one."""
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "the file is UTF-16; expected UTF-8 (iconv -f UTF-16 -t UTF-8)"
    if not offset and (inside := next((what for head, what in _NOT_LINES.items() if line.startswith(head)), "")):
        return f"the file holds {inside}; expected JSON Lines: unpack it"
    if b"\0" in line:
        return "it holds zero bytes; expected UTF-8 text (a crash leaves such holes, UTF-16 looks so too)"
    try:
        line.decode()
    except UnicodeDecodeError as wrong:
        return f"it is not UTF-8: byte {line[wrong.start]:#x} at {wrong.start + 1}"
    if not offset and line.split() in ([b"["], [b"[{"], [b"[", b"{"], [b"{"]):
        return "a row goes on over several lines; expected one row a line (jq -c '.[]' makes that of a list)"
    cut = "" if line.endswith(b"\n") else ", where the file ends: it was cut off"
    if not isinstance(error, json.JSONDecodeError):
        return f"{error}{cut}"
    return f"{error.msg} at character {error.colno}{cut}"

"""Strict JSON: rejects text whose values would change when they are parsed and written back.

Most parsers keep only the last of several duplicate keys and round numbers to doubles, so a row could differ from its
file. Integers may range from -2**63 to 2**64-1; other numbers may be as precise as a double.
"""

from __future__ import annotations

import codecs
import json
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import orjson

_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
_MAX_DOUBLE_DIGITS = 767
_SPACES = b" \t\r\n"
_SHAPES = bytes(
    ord("0") if chr(byte) in "0123456789." else ord("e") if chr(byte) in "eE" else byte if byte == ord("-") else 0
    for byte in range(256)
)
"""Translation table for finding long numbers: maps digits and decimal points to 0, and the exponent sign to e."""
_NUMBERS = bytes(byte if chr(byte) in "0123456789.+-eE" else ord(" ") for byte in range(256))
_LONG_NUMBER = 16
"""Numbers with at least this many digits, counting the decimal point, may lose digits when stored as a double."""


MAX_DEPTH = 230
TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels, the maximum that can be written"


class ExactParser:
    """Parses dataset lines, as the `parse` of `iter_jsonl`. `written` is the last value, serialized by orjson."""

    def __init__(self) -> None:
        self.written = b""

    def __call__(self, line: bytes) -> Any:
        """Parse a line. Raises orjson.JSONDecodeError if it is not JSON, ValueError if information would be lost."""
        # Editors on Windows write a byte order mark before the first line, and `cat` moves it to other lines.
        text = line.removeprefix(codecs.BOM_UTF8).rstrip(_SPACES)
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            if "infinity" in error.msg:
                load_exact(text)  # names the number
            raise
        try:
            self.written = orjson.dumps(value)
        except TypeError as error:  # orjson reads 1,024 levels and writes 254
            raise ValueError(TOO_DEEP) from error
        check_exact(text, self.written)
        return value


def check_exact(text: bytes, written: bytes) -> None:
    """Check that parsing `text` with orjson lost no information. `written` is the parsed value, serialized by orjson.

    Raises ValueError if a number lost digits or a key is duplicated; the message contains the number or key.
    """
    # Most documents differ from orjson's output only in white space, which means that nothing was lost.
    if text == written or text.translate(None, _SPACES) == written.translate(None, _SPACES):
        return
    # If something may have been lost, the text is parsed again, slowly. Dropping a duplicate key removes a colon.
    # Colons in strings are kept, unless they are escaped as \u003a.
    shapes = text.translate(_SHAPES)
    many_digits = b"0" * _LONG_NUMBER in shapes and (b"\\u00" in text or _long_numbers(text) != _long_numbers(written))
    if many_digits or b"e-000" in shapes or text.count(b":") != written.count(b":") or b"\\u003" in text:
        load_exact(text)


def _long_numbers(text: bytes) -> list[bytes]:
    """Return everything that could be a number with too many digits for a double, in order, even inside strings."""
    return [piece for piece in text.translate(_NUMBERS).split() if len(piece) >= _LONG_NUMBER]


def load_exact(text: bytes) -> Any:
    """Parse JSON text. Raises ValueError, with a readable message, if it is invalid or information would be lost."""
    try:
        return json.loads(
            text, parse_int=_integer, parse_float=_real, parse_constant=_constant, object_pairs_hook=_object
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in result if keys.count(key) > 1)
        raise ValueError(f"an object has the key {_shorten(duplicate)} twice; expected each key once")
    return result


def _integer(text: str) -> int:
    # Python refuses to parse an integer of more than 4,300 digits.
    if len(text) > 20 or not _MIN_INTEGER <= int(text) <= _MAX_INTEGER:
        raise ValueError(f"the number {_shorten(text)} does not fit in 64 bits; {_QUOTE}")
    return int(text)


def _real(text: str) -> float:
    """Parse a number. Raises ValueError if converting it to a double loses digits."""
    value = float(text)
    if repr(value) == text:
        return value
    try:
        exact = Decimal(text)
    except InvalidOperation as error:  # an exponent of 19 digits
        raise ValueError(f"the number {_shorten(text)} exceeds a double's range; {_QUOTE}") from error
    digits = "".join(map(str, exact.as_tuple().digits)).strip("0")
    if abs(value) == float("inf"):
        raise ValueError(f"the number {_shorten(text)} exceeds a double's range; {_QUOTE}")
    if digits and (len(digits) > _MAX_DOUBLE_DIGITS or Decimal(f"{value:.{len(digits) - 1}e}") != exact):
        raise ValueError(
            f"the number {_shorten(text)} has more digits than a double can represent ({value!r}); {_QUOTE}"
        )
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:30]}... ({len(text):,} characters)")


_QUOTE = "write it as a string, in quotes"

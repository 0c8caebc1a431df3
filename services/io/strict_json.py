"""Exact JSON: a text is read so that its values can be written again, or it is refused.

Most readers keep the last of two equal keys and round what does not fit into a double; a row would then be another one
than its file says. Numbers are whole from -2**63 to 2**64-1, and others as precise as a double is.
"""

from __future__ import annotations

import codecs
import json
from decimal import Decimal
from typing import Any, NoReturn

import orjson

_LEAST, _MOST = -(2**63), 2**64 - 1
_LONGEST_DOUBLE = 767
"""Significant digits that a double's exact value can have."""
_SPACES = b" \t\r\n"
_SHAPES = bytes(
    ord("0") if chr(byte) in "0123456789." else ord("e") if chr(byte) in "eE" else byte if byte == ord("-") else 0
    for byte in range(256)
)
"""Digits and points become 0, exponents e: what a number looks like."""
_NUMBERS = bytes(byte if chr(byte) in "0123456789.+-eE" else ord(" ") for byte in range(256))
_MANY = 16
"""Digits and points; a double keeps every number with fewer."""


DEEPEST = 230
"""Levels of lists and objects that a row may have."""
TOO_DEEP = f"it is nested deeper than {DEEPEST} levels, which cannot be passed on"


class ExactParser:
    """Parses a data set's lines (`parse` of `iter_jsonl`) and keeps how orjson writes the last value."""

    def __init__(self) -> None:
        self.written = b""

    def __call__(self, line: bytes) -> Any:
        """Raises ValueError in words, orjson.JSONDecodeError for what is not JSON."""
        # A mark that editors on Windows put before the first line, and `cat` then before others.
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
    """`written`: the value that orjson read from `text`, as orjson writes it.

    Raises ValueError naming a number that lost digits or a key that an object holds twice.
    """
    # Most texts differ from what orjson writes in spaces alone, and have lost nothing.
    if text == written or text.translate(None, _SPACES) == written.translate(None, _SPACES):
        return
    # Of the others, those that might have lost something are read again, slowly. A pair that was lost took its colon
    # along; strings keep theirs, unless they spell one \u003a.
    shapes = text.translate(_SHAPES)
    many_digits = b"0" * _MANY in shapes and (b"\\u00" in text or _long_numbers(text) != _long_numbers(written))
    if many_digits or b"e-000" in shapes or text.count(b":") != written.count(b":") or b"\\u003" in text:
        load_exact(text)


def _long_numbers(text: bytes) -> list[bytes]:
    """What could be numbers with so many digits that a double might not keep them, in their order; also in strings."""
    return [piece for piece in text.translate(_NUMBERS).split() if len(piece) >= _MANY]


def load_exact(text: bytes) -> Any:
    """The value of a text. Raises ValueError in words, also for what is not JSON."""
    try:
        return json.loads(
            text, parse_int=_whole, parse_float=_real, parse_constant=_constant, object_pairs_hook=_object
        )
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in made if keys.count(key) > 1)
        raise ValueError(f"an object has the key {_short(twice)} twice; expected each key once")
    return made


def _whole(text: str) -> int:
    # Python itself refuses to read a whole number of more than 4,300 digits.
    if len(text) > 20 or not _LEAST <= int(text) <= _MOST:
        raise ValueError(f"the number {_short(text)} does not fit into 64 bits; {_QUOTE}")
    return int(text)


def _real(text: str) -> float:
    """A number whose double, written with as many digits as the text has, is the text's number."""
    value = float(text)
    if repr(value) == text:
        return value
    exact = Decimal(text)
    digits = "".join(map(str, exact.as_tuple().digits)).strip("0")
    if abs(value) == float("inf"):
        raise ValueError(f"the number {_short(text)} is beyond a double's range; {_QUOTE}")
    if digits and (len(digits) > _LONGEST_DOUBLE or Decimal(f"{value:.{len(digits) - 1}e}") != exact):
        raise ValueError(f"the number {_short(text)} has more digits than a double keeps ({value!r}); {_QUOTE}")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:30]}... ({len(text):,} characters)")


_QUOTE = "write it as a text, in quotes"

r"""Parses numbers in common notations: `-1,018.50`, `\$18`, `50\%`, `3\frac{1}{2}`, `1.5 \times 10^3`, `18 \text{ cm}`.

Values are exact fractions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from rollyard.resources_servers.answers.latex import normalized
from rollyard.resources_servers.answers.vocabulary import SCALES, UNITS

MAX_DIGITS = 1000
"""Longer numbers are not parsed: no task has them as its answer, and raising them to a power is expensive."""
_NUM = r"(?:\d{1,3}(?:,\d{2,3})*,\d{3}(?![\d,])|\d{1,3}(?:[ ]\d{3})+(?!\d)|\d+)(?:\.\d*)?|\.\d+"
_PART = rf"[+-]?\s*(?:{_NUM})"
_VALUE = re.compile(
    rf"""\s*(?P<sign>[+-]?)\s*(?P<money>[$€£¥]?)\s*(?P<inner>[+-]?)\s*(?:
      (?:(?P<whole>\d+)\s*)?\\frac\s*(?:\{{\s*(?P<up>{_PART})\s*\}}|(?P<up1>\d))
                             \s*(?:\{{\s*(?P<down>{_PART})\s*\}}|(?P<down1>\d))
    | (?:(?P<whole2>\d+)\s+)?(?P<up2>{_NUM})\s*/\s*(?P<down2>{_NUM})
    | (?P<number>{_NUM})(?:\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{{\s*(?P<power>[+-]?\d+)\s*\}}|(?P<power1>\d+))
                          |[eE](?P<power2>[+-]?\d+))?
    )\s*""",
    re.VERBOSE,
)
_TAIL = re.compile(
    r"(?:\\text\s*\{\s*(?P<text>[^{}]*?)\s*\}|(?P<bare>[a-zA-Z][a-zA-Z ./'-]*))\s*(?:\^\s*\{?(?P<power>\d)\}?)?"
)
_REPEATING = re.compile(r"(-?)(\d{0,50})\.(\d{0,50})\\(?:overline|bar)\s*\{(\d{1,50})\}")
_RECURRING = re.compile(r"(-?\d{0,50}\.\d{0,50}?)(?:(?=(\d{1,12})\2+\\ldots)\d+\\ldots|(?=\((\d{1,12})\))\(\d+\))")
r"""Matches repeating decimals: `0.1(6)`, and `0.1666\ldots` if its last digits occur at least twice."""
_HEDGES = frozenset({"or", "and", "to", "not", "than", "least", "most", "more", "less", "plus", "minus", "over"})
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "sterling", "¥": "yen", "": None}


@dataclass(frozen=True)
class Quantity:
    value: Fraction
    decimals: int | None
    """Number of decimal places, or None if the number has no decimal point."""
    percent: bool = False
    unit: str | None = None
    """Canonical name of the unit (`cm`, `cm^2`, `dollar`). Other words do not count as units."""


@lru_cache(maxsize=1024)
def quantity(text: str, *, any_words: bool = False) -> Quantity | None:
    """Parse a single number, or return None. With `any_words`, ignore words after it, as in `18 eggs`."""
    text = _bare(normalized(text), any_words)
    match = _VALUE.match(text)
    if match is None or len(match.group()) > MAX_DIGITS or (match["inner"] and not match["money"]):
        return None
    value = _value(match)
    if value is None:
        return None
    unit, tail = _CURRENCIES[match["money"]], text[match.end() :]
    percent = False
    if tail == "%":
        percent = True
    elif tail in ("^\\circ", "^\\circC", "^\\circF"):
        unit = "degree"
    elif tail in ("€", "£", "¥", "$"):
        unit = _CURRENCIES[tail]
    elif tail:
        read = _tail(tail, any_words)
        if read is None:
            return None
        scale, percent, named = read
        value, unit = value * scale, named or unit
    point = re.search(r"\.(\d+)", match.group())
    return Quantity(value, len(point.group(1)) if point else None, percent, unit)


def _bare(text: str, any_words: bool) -> str:
    """Remove text that may precede a number, and convert repeating decimals to fractions."""
    text = re.sub(r"^(?:=|\\approx)\s*", "", text)
    if all_text := re.fullmatch(r"\\text\s*\{\s*([^{}]*\d[^{}]*)\}", text):
        text = normalized(all_text[1])
    if any_words and (before := re.match(r"\\text\s*\{([^{}\d]*)\}\s*(?=.*\d)", text)):
        text = text if _HEDGES & set(before[1].lower().split()) else text[before.end() :]
    if power := re.fullmatch(r"(-?)10\s*\^\s*\{?\s*([+-]?\d{1,3})\s*\}?", text):
        text = f"{power[1]}1e{power[2]}"
    if recurring := _RECURRING.fullmatch(text):
        text = f"{recurring[1]}\\overline{{{recurring[2] or recurring[3]}}}"
    if repeating := _REPEATING.fullmatch(text):
        sign, whole, fixed, period = repeating.groups()
        value = Fraction(int(whole + fixed + period) - int(whole + fixed), (10 ** len(period) - 1) * 10 ** len(fixed))
        text = f"{sign}{value.numerator}/{value.denominator}"
    return text


def unit_of(text: str) -> str | None:
    r"""Return the unit of measure at the end, such as `cm` in `\frac{\pi}{2} \text{ cm}`, or None."""
    text = normalized(text)
    if text.endswith("^\\circ"):
        return "degree"
    match = re.search(r"\\text\s*\{[^{}]*\}\s*(?:\^\s*\{?\d\}?)?$", text)
    read = _tail(match.group(), any_words=False) if match else None
    return read[2] if read else None


def _value(match: re.Match[str]) -> Fraction | None:
    sign = -1 if (match["sign"] == "-") != (match["inner"] == "-") else 1
    if match["number"] is not None:
        power = int(match["power"] or match["power1"] or match["power2"] or 0)
        return sign * _number(match["number"]) * Fraction(10) ** power if abs(power) <= MAX_DIGITS else None
    above = _number(match["up"] or match["up1"] or match["up2"])
    below = _number(match["down"] or match["down1"] or match["down2"])
    whole = match["whole"] or match["whole2"]
    if below == 0 or (whole and not 0 <= above < below):  # 3 5/2 is not a mixed number
        return None
    return sign * (int(whole or 0) + above / below)


def _number(text: str) -> Fraction:
    return Fraction(re.sub(r"[ ,]|\.$", "", text))


def _tail(tail: str, any_words: bool) -> tuple[int, bool, str | None] | None:
    """Split the words after a number into a factor, a percent flag and a unit; return None for anything but words."""
    match = _TAIL.fullmatch(tail)
    if match is None:
        return None
    if match["bare"] and len(match["bare"].split()[0]) == 1:  # a variable
        return None
    words = [word.strip(".'") for word in (match["text"] or match["bare"] or "").lower().split()]
    if _HEDGES & set(words):
        return None
    scale = 1
    while words and words[0].removesuffix("s") in SCALES:
        scale *= SCALES[words.pop(0).removesuffix("s")]
    if not words:
        return scale, False, None
    if words[0].startswith("percent"):
        return scale, True, None
    unit = _unit(words, match["power"] or "")
    if unit is None and match["bare"] and not any_words:
        return None
    return scale, False, unit


def _unit(words: list[str], power: str) -> str | None:
    """Convert `square centimeters` to `cm^2` and `miles per hour` to `mi/h`; return None if there is no unit."""
    first, *others = re.split(r" ?/ ?| per ", " ".join(words))
    names, own = first.split(), ""
    if names and (raised := re.fullmatch(r"([a-z.]+)\^?(\d)", names[0])):
        names, own = [raised[1], *names[1:]], f"^{raised[2]}"
    if len(names) > 1 and names[0] in ("square", "sq", "cubic"):
        own = "^3" if names[0] == "cubic" else "^2"
        names = names[1:]
    elif len(names) > 1 and names[1] in ("squared", "cubed"):
        own = "^3" if names[1] == "cubed" else "^2"
    unit = _named(names)
    below = [named for other in others if (named := _named(other.split()))]
    return "/".join([unit + own, *below]) + (f"^{power}" if power else "") if unit else None


def _named(names: list[str]) -> str | None:
    return (UNITS.get(names[0]) or UNITS.get(names[0].removesuffix("s"))) if names else None

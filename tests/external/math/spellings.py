"""MATH's gold answers in other notations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollyard.resources_servers.answers.algebra import read

_SIGNS = str.maketrans({"-": "−"})
_UNREADABLE = re.compile(r"text|mbox|_|:|overline|!|circ|\\in|<|i\.$")
"""Matches gold answers that sympy would print with another meaning."""


def notations(gold: str) -> Iterator[tuple[str, str]]:
    """Pairs (change, the same answer) for each notation that this gold answer allows."""
    variants = {
        "display": gold.replace("\\frac", "\\dfrac").replace("\\tfrac", "\\dfrac"),
        "tight": re.sub(r"(?<![a-zA-Z\\]) (?![a-zA-Z])", "", gold),
        "wide": gold.replace(",", ", ").replace("=", " = ").replace("+", " + "),
        "unicode": gold.translate(_SIGNS).replace("\\pi", "π").replace("\\infty", "∞").replace("\\cup", "∪"),
        "small brackets": gold.replace("\\left", "").replace("\\right", ""),
        "dollars": f"${gold}$",
        "sentence": f"{gold}.",
        "bold": gold.replace("\\text", "\\textbf").replace("\\mbox", "\\mathrm"),
        "degrees": re.sub(r"\^\{?\\circ\}?", "°", gold),
        "degrees in words": gold if "cos" in gold else re.sub(r"\^\{?\\circ\}?", r"\\text{ degrees}", gold),
    }
    yield from ((name, answer) for name, answer in variants.items() if answer != gold)


def reprinted(gold: str) -> str | None:
    """The answer as sympy prints it, with its order of terms; None if it cannot be parsed."""
    from sympy import latex  # type: ignore[import-untyped]

    expression = None if _UNREADABLE.search(gold) else next(iter(read(gold)), None)
    return None if expression is None or isinstance(expression, str) else str(latex(expression))

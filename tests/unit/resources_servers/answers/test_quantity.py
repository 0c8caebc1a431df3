"""Plain numbers in many notations."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rollyard.resources_servers.answers.quantity import quantity, unit_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,018", 1018),
        (r"1{,}018", 1018),
        (r"1\,018", 1018),
        ("1 018", 1018),
        (r"11,\! 111,\! 111,\! 100", 11111111100),
        ("1,00,000", 100000),
        (r"\$18.00", 18),
        ("-$5", -5),
        ("−5", -5),
        (r"3\frac{1}{2}", Fraction(7, 2)),
        ("3 1/2", Fraction(7, 2)),
        ("31/2", Fraction(31, 2)),
        ("½", Fraction(1, 2)),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"\dfrac12", Fraction(1, 2)),
        (r"1.8 \times 10^{3}", 1800),
        ("1e5", 100000),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        ("１８", 18),
        ("٣", 3),
        ("1.5 million", 1500000),
        ("2 dozen", 24),
        (r"\text{18 dollars}", 18),
        (r"\approx 18", 18),
        ("18.", 18),
        ("$18$", 18),
        (".5", Fraction(1, 2)),
    ],
)
def test_every_notation_of_a_number_has_its_exact_value(text: str, value: int | Fraction) -> None:
    parsed = quantity(text)
    assert parsed is not None
    assert parsed.value == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "$",
        "1,2",
        "1,23",
        "1 8",
        "3 or 4",
        r"3 \text{ or more}",
        "18x",
        "18 x",
        "2^{10}",
        "x",
        r"\frac{1}{0}",
        "5²",
        "1/2/3",
        "1e99999",
        "9" * 3000,
        "10:30",
        "--5",
        "1.2.3",
        "3 5/2",
        "four",
        "⅟",
    ],
)
def test_a_text_that_is_not_one_number_yields_none(text: str) -> None:
    assert quantity(text) is None


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        (r"5\text{ cm}", "cm"),
        (r"15\mbox{ cm}^2", "cm^2"),
        ("864 square inches", "in^2"),
        (r"864 \mbox{ inches}^2", "in^2"),
        (r"90^\circ", "degree"),
        ("90 degrees", "degree"),
        (r"\$36", "dollar"),
        ("5.4 cents", "cent"),
        (r"12\text{ students}", None),
        ("12", None),
    ],
)
def test_the_notations_of_a_unit_have_one_canonical_name(text: str, unit: str | None) -> None:
    parsed = quantity(text)
    assert parsed is not None
    assert parsed.unit == unit


def test_words_after_a_number_may_be_ignored() -> None:
    assert quantity("18 eggs") is None
    assert quantity("18 eggs a day", any_words=True) is not None
    assert quantity("18 or more", any_words=True) is None


def test_the_unit_of_a_formula_is_parsed_too() -> None:
    assert unit_of(r"\frac{3}{4}\pi\text{ inches}") == "in"
    assert unit_of(r"\frac{3}{4}\pi") is None

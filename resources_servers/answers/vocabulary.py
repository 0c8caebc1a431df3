"""Lists the words that can accompany a number without changing its value, and the words that do change it."""

from __future__ import annotations

import re


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


UNITS = {
    name: unit
    for unit, names in {
        "mm": "mm millimeter millimetre", "cm": "cm centimeter centimetre", "m": "m meter metre",
        "km": "km kilometer kilometre", "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard",
        "mi": "mi mile", "mg": "mg milligram", "g": "g gram", "kg": "kg kilogram kilo", "lb": "lb lbs pound",
        "oz": "oz ounce", "ton": "t ton tonne", "s": "s sec second", "min": "min minute", "h": "h hr hour",
        "day": "d day", "week": "week wk", "month": "month mo", "year": "y yr year y.o",
        "cal": "cal calorie", "tbsp": "tbsp tablespoon",
        "tsp": "tsp teaspoon", "cup": "cup", "pint": "pint", "ft^2": "sqft", "m/s": "mps",
        "kb": "kb kilobyte", "mb": "mb megabyte", "gb": "gb gigabyte", "kcal": "kcal kilocalorie",
        "point": "pt point", "qt": "qt quart",
        "decade": "decade", "century": "century centuries", "dm": "dm decimeter decimetre", "nm": "nm nanometer",
        "cl": "cl centiliter centilitre", "dl": "dl deciliter decilitre", "ml": "ml milliliter millilitre",
        "l": "l liter litre ltr",
        "gal": "gal gallon", "dollar": "dollar usd buck dol", "cent": "cent penny pennies", "euro": "euro eur",
        "degree": "degree deg", "radian": "radian rad", "mi/h": "mph", "km/h": "kph kmh kmph", "unit": "unit",
        "a.m.": "am a.m", "p.m.": "pm p.m",
    }.items()
    for name in names.split()
}  # fmt: skip
"""Maps each name of a unit of measure to its canonical name."""
_DIMENSIONS = (
    word_set("nm mm cm dm m km in ft yd mi"),
    word_set("mg g kg lb oz ton"),
    word_set("s min h day week month year decade century"),
    word_set("dollar cent euro"),
    word_set("ml cl dl l gal qt pint cup tbsp tsp"),
    word_set("degree radian"),
    word_set("kb mb gb"),
)
SCALES = {
    "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
}  # fmt: skip
_PROSE = frozenset(("in", "am", "as", "pt"))
"""Units that are other words in a sentence."""
_MEASURES = word_set(
    """
    percent percentage pct degrees celsius fahrenheit kelvin acre hectare newton
    joule watt volt amp ampere ohm hertz hz kilowatt kwh byte bit decade
    century centuries knot light rupee peso pound yuan yen won ruble franc pence shilling nickel dime quarters
    penny square sq cubic squared cubed per each every a an
    """
)
_FUNCTION_WORDS = word_set(
    """
    the of in for to from at on by with is are was were be has have had will would can there here it its his her
    their our my your he she they we i you this that these those and so then total altogether all together left
    remaining remain overall old exactly precisely only just final answer result value number amount sum as which
    """
)
_NOUNS = word_set(
    """
    real complex positive whole distinct possible unique valid such o'clock
    people person man men woman women boy girl child children kid student teacher friend worker adult passenger
    player team member customer guest family families apple orange banana egg cookie cake candy candies pie slice
    piece pizza book page word letter pencil pen paper sheet card coin bill ticket toy doll marble ball stick
    block brick stone rock shell flower rose tree plant seed leaf leaves animal dog cat puppy kitten bird chicken
    duck cow pig horse sheep goat rabbit fish bee insect car truck bus bike bicycle train plane boat wheel house
    room door window chair table bed bottle glass cup plate bowl box boxes bag basket jar can pack package packet
    carton crate bucket shirt shoe sock hat dress button bead jewel game point goal run lap step stair mile trip
    turn round match win shot vote way arrangement combination permutation choice possibility possibilities
    outcome solution root integer digit prime factor divisor multiple multiples element subset term pair triangle
    rectangle square circle edge face vertex vertices side diagonal angle line point path route handshake
    committee committees day night hour class grade test question problem lesson song movie video photo picture
    pc ppl pg pp star planet cell gift present meal lunch dinner breakfast snack drink
    sandwich sandwiches burger donut muffin cupcake brownie chocolate pancake potato potatoes tomato tomatoes
    carrot onion lemon lime pear peach grape cherry cherries berry berries strawberry strawberries
    """
) - {"pair"}
_FOREIGN = word_set(
    """
    种 个 人 度 元 美元 米 厘米 千米 公里 平方米 平方厘米 立方厘米 立方米 英里 英尺 英寸 平方英寸 平方英尺 磅 克 千克 升
    只 条 本 张 次 天 周 月 年 小时 分钟 秒 岁 件 块 名 位 组 页 辆 棵 颗 枚 支 杯 瓶 盒 袋
    руб рублей рубля см м км кг г градусов градуса часов часа минут способов способа дней
    час минуты минута секунд день дня лет год года миль мили миля дюймов дюйма футов фута долларов доллара цента центов
    метров метра человек человека штук штуки раз раза страниц недель недели месяцев месяца
    """
)
"""Units and measure words in Chinese and Russian."""
CHANGING = word_set(
    """
    not no none neither nor never without half halves third thirds quarter quarters fourth fifth sixth eighth
    tenth twice double triple quadruple thrice once time times squared cubed square cube root power raised
    factorial choose inverse reciprocal opposite negative minus plus add added subtract subtracted sum difference
    product ratio quotient mod modulo divided divide multiplied multiply increased decreased reduced doubled
    tripled halved negated score gross couple pair pairs dozen dozens lakh lac crore hundred hundreds thousand
    thousands million millions billion billions trillion trillions k about around approximately approximate approx
    roughly nearly almost maybe perhaps possibly probably likely guess think estimate estimated close near circa
    some several few many or either between least most more less fewer greater larger smaller bigger higher lower
    than above below over under up until upto max maximum min minimum exceeding exceeds except excluding including
    besides another other others different unless if zero one two three four five six seven eight nine ten eleven
    twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy
    eighty ninety first second-to-last squaring doubling halving wrong false incorrect unknown undefined infinite
    infinity
    """
)
"""Words that are rejected even if the problem contains them: they change the value, mark it as a guess, or introduce
further values."""
_LEFT_SIDE = CHANGING - word_set(
    """
    sum difference product ratio quotient maximum max minimum min least most greatest number square root some
    first infinite inverse one two three four five six seven eight nine ten other more less fewer second power
    larger smaller greater between near close pair pairs different above below over under
    """
)
"""Words that are rejected in the name of a quantity. Words such as `sum` or `least` are allowed: "the sum of the roots
is 5"."""
_ORDINAL = re.compile(
    r"^(?P<text>\\text *\{)? *(?:the )?(?P<number>\d{1,9}) *(?:\^ *)?(?P<open>\{ *(?:\\(?:rm|text) *)?)?"
    r"(?P<opened>\\text *\{)? *(?P<ending>st|nd|rd|th)\b(?(open) *\})(?(opened)(?P<closed> *\})?)(?: ones?\b)?",
    re.IGNORECASE,
)
_ONES = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_SPOKEN_ONES = {word: number for number, word in enumerate(_ONES.split())}
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SPOKEN_TENS = {word: 10 * number for number, word in enumerate(_TENS.split(), start=2)}
_SPOKEN_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}


def stems(word: str) -> frozenset[str]:
    word = word.casefold().removesuffix("'s").strip("'.")
    found = {word, word.removesuffix("s"), word.removesuffix("es")}
    if word.endswith("ies"):
        found.add(word[:-3] + "y")
    return frozenset(found)


def unit_name(word: str) -> str | None:
    """Return the canonical name of a unit, such as `cm` for `centimetres`, or None."""
    if word.casefold() in _PROSE:
        return None
    return next((UNITS[stem] for stem in sorted(stems(word), key=len, reverse=True) if stem in UNITS), None)


def other_unit(unit: str, problem_asks: frozenset[str], problem_mentions: frozenset[str]) -> str | None:
    """Return the unit of the same dimension that the problem asks for instead, or None if `unit` is acceptable."""
    base = unit.partition("/")[0].partition("^")[0]
    alike = next((dimension for dimension in _DIMENSIONS if base in dimension), frozenset[str]())
    wanted = (problem_asks & alike) or (problem_mentions & alike)
    if not wanted and alike and "/" not in unit:  # meters are asked for, and the answer is in seconds
        wanted = problem_asks & frozenset[str]().union(*_DIMENSIONS)
    if not wanted or base in wanted or (unit == "m" and "min" in wanted):
        return None
    return " or ".join(sorted(wanted))


def is_unit(word: str) -> bool:
    if "-" in word:  # kilowatt-hours
        return all(map(is_unit, word.split("-")))
    return any(stem in UNITS or stem in _MEASURES for stem in stems(word))


def is_common(word: str) -> bool:
    """Return whether the word is a function word or a commonly counted noun."""
    return word.casefold() in _FUNCTION_WORDS | _FOREIGN or any(stem in _NOUNS for stem in stems(word))


def changes_numbers(name: str) -> bool:
    """Return whether `name` contains a word such as `half` or `not`, so the number after it is not its value."""
    words = re.findall(r"[a-z]{2,}", re.sub(r"\\(?!text)[a-z]+", "", name).casefold())
    return any(word in _LEFT_SIDE for word in words)


def without_ordinal(text: str) -> str:
    r"""Return the number of `12^{\text{th}}` and `the 12th one`, with the words after it. Keep other text."""
    match = _ORDINAL.search(text)
    if match is None:
        return text
    number = int(match["number"])
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    if match["ending"].casefold() != ending:
        return text
    rest = text[match.end() :]
    if match["opened"] and not match["closed"]:  # 12\text{th grade}
        rest = rf"\text{{{rest}"
    return f"{match['text'] or ''}{number}{rest}"


def spoken_number(text: str) -> int | None:
    """Parse an integer in words, such as `twenty-one`; None for other text."""
    words = text.casefold().replace("-", " ").replace(" and ", " ").split()
    total = group = 0
    previous = ""
    if not words or len(words) > 20:
        return None
    for word in words:
        if (
            word in _SPOKEN_ONES
            and previous in ("", "tens", "hundred", "scale")
            and not (previous == "tens" and not 0 < _SPOKEN_ONES[word] < 10)
        ):
            group, previous = group + _SPOKEN_ONES[word], "ones"
        elif word in _SPOKEN_TENS and previous in ("", "hundred", "scale"):
            group, previous = group + _SPOKEN_TENS[word], "tens"
        elif word == "hundred" and previous == "ones" and 0 < group < 20:
            group, previous = group * 100, "hundred"
        elif word in _SPOKEN_SCALES and group and (not total or _SPOKEN_SCALES[word] < _smallest(total)):
            total, group, previous = total + group * _SPOKEN_SCALES[word], 0, "scale"
        else:
            return None
    return total + group


def _smallest(total: int) -> int:
    return next((scale for scale in sorted(_SPOKEN_SCALES.values()) if total % (scale * 1000)), 0)

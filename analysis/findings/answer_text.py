"""Reads answers for detectors: which values they state, whether they offer several, and what their code does.

The code is compared with the tests that the prompt shows: programs that only repeat these do not solve the task.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

_MAX_LENGTH = 100
_MAX_NESTING = 12
_MAX_POWER = 64.0
_MAX_BOXES = 50
_BOX = re.compile(r"\\f?box(?:ed)?\s?\{")
_NUMBER_WITH_COMMAS = re.compile(r"(?<![\d,])(\d{1,3}(?:,\d{3})+)(?![\d,])")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_ROOT = re.compile(r"\\sqrt\s*(?:\{([^{}]*)\}|(\d))")
_WRAPPER = re.compile(r"\\(?:boxed|mathrm|mathbf|text|left|right|displaystyle)\b|\\[!,;:() ]|[$\s]")
_MIXED = re.compile(r"\d\s*\\[dt]?frac|\d\s+\d|\\[dt]?frac\s*\d\s*\d\s*\d")
"""Forms with several readings: `1\\frac{1}{2}`, `1 1/2`, `\\frac919`."""
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_MAY_BE_NUMBER = re.compile(r"\d|\\pi")
_ALLOWED = re.compile(r"[\d.+\-*/()]|sqrt|pi")
_OPERATORS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def number_of(text: str) -> float | None:
    """Return the number that an answer stands for; None if it may be another form, such as a mixed number or a list."""
    if not text or len(text) > _MAX_LENGTH:
        return None
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(each, each)) for each in text)
    if _PLAIN.fullmatch(text):
        return float(text)
    if not _MAY_BE_NUMBER.search(text) or _MIXED.search(text):
        return None
    plain = _NUMBER_WITH_COMMAS.sub(lambda found: found[1].replace(",", ""), text)
    plain = re.sub(r"\^\{?\\circ\}?|\\?%$", "", _WRAPPER.sub("", plain).rstrip("."))
    for _ in range(_MAX_NESTING):
        before = plain
        plain = _FRACTION.sub(lambda m: f"(({m[1] or m[2]})/({m[3] or m[4]}))", plain)
        plain = _ROOT.sub(lambda m: f"sqrt({m[1] or m[2]})", plain)
        if plain == before:
            break
    plain = re.sub(r"\\cdot|\\times", "*", plain).replace("\\pi", "pi").replace("{", "(").replace("}", ")")
    plain = re.sub(r"\^", "**", plain)
    if _ALLOWED.sub("", plain):
        return None
    plain = re.sub(r"(?<=[\d)])(?=sqrt|pi|\()|(?<=\))(?=\d)|(?<=pi)(?=[\d(s])", "*", plain)
    try:
        value = _computed(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None
    return value if math.isfinite(value) else None


def boxed(text: str) -> Iterator[str]:
    """Yield the contents of each `\\boxed{}`, without spaces."""
    at, found = _BOX.search(text), 0
    while at and found < _MAX_BOXES:
        start = at.end()
        depth, end = 1, start
        while end < len(text) and depth and end - start < 2000:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield "".join(text[start : end - 1].split())
        at, found = _BOX.search(text, end), found + 1


def _computed(node: ast.AST) -> float:
    """Compute an arithmetic expression. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.Name) and node.id == "pi":
        return math.pi
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _computed(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _computed(node.left), _computed(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) <= _MAX_POWER and left >= 0:
            return math.pow(left, right)
        if (compute := _OPERATORS.get(type(node.op))) is not None:
            return compute(left, right)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "sqrt"
        and len(node.args) == 1
    ):
        return math.sqrt(_computed(node.args[0]))
    raise ValueError("not arithmetic")


_TAGGED = re.compile(r"<answer>(.{1,200}?)</answer>", re.IGNORECASE | re.DOTALL)
_MARKED = re.compile(r"^#{4} {0,9}(\S[^\n]{0,99})", re.MULTILINE)
_STATED = re.compile(
    r"\\f?box(?:ed)?\s?\{((?:[^{}]|\{[^{}]{0,80}\}){1,100})\}|(?i:<answer>)([^<]{1,200})(?i:</answer>)"
    r"|^#{4} {0,9}([^\s#][^\n]{0,99})$"
    r"|\b(?i:answer)(?: is|:)[ *$]{0,4}(?:(-?\d[\d,.]{0,30}|[A-Z])(?![\w-])|\(([A-Z])\))",
    re.MULTILINE,
)
_SEPARATES = re.compile(r"(?:[\W_]|\b(?:or|and|text|the|final|is|maybe|perhaps|possibly)\b){0,30}", re.IGNORECASE)
_LAST_STATED = re.compile(r"(?i:answer)(?: is|:)[ *]*([^\n]{1,1000}?)[ *]*\Z")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_LEAST_LISTED = 8
_LEAST_STATED = 5
_CLOSE = 80
"""Number of characters from one stated answer to the next, on average, below which no calculation leads to it."""
_LIST = re.compile(
    r"(?<![\d.])-?\d[\d.]{0,20}"
    r"(?:[\s,;/|$'\"`*()\[\]{}\\-]{1,9}(?:(?:or|and)\s{1,3}[$'\"`*(\[{]{0,2})?-?\d[\d.]{0,20}){7,}"
)
_OR = re.compile(r"\bor\b|\\lor\b", re.IGNORECASE)
_SEPARATOR = re.compile(r"\\lor|\\text\s{0,3}\{\s{0,3}(?:or|and)\s{0,3}\}|\b(?:or|and|either|one of)\b|[,;/|]|\s")
_IN_A_SET = re.compile(r"\A(?:\w\s?(?:=|\\in)\s?)?\\?[{\[](.*?)\\?[}\]]\Z", re.DOTALL)
_LETTERS_IN_A_ROW = re.compile(r"ABC?D?E?")
_BRACKETED = re.compile(r"\)\s{0,9}(?=\()")
_CHOICE = re.compile(r"(?:\\text\s?\{)?\(?([A-Z])\)?\}?\.?")
_WITH_COMMAS = re.compile(r"(?<![\d,])\d{1,3}(?:,(?:\\!)?\d{3})+(?![\d,])")
_BOUND = r"-?(?:\d{1,20}(?:\.\d{1,20})?|\\infty)"
_RANGE = re.compile(
    rf"^\W{{0,5}}(?:(?:[A-Za-z]{{1,12}}\s){{0,3}}(?:between\s|range\s?\()|(?:[A-Za-z]\s?\\in\s?[(\[]|\\?\[|\((?=-\\infty))\s?)"
    rf"(?P<low>{_BOUND})\s?(?:,|and|to|\u2013|\.\.)\s?(?P<high>{_BOUND})[\])\s.$]{{0,9}}$"
    rf"|^\W{{0,3}}(?P<from>{_BOUND})\s?(?:to|\u2013|\.\.|(?:\\leq?|<)\s?\w\s?(?:\\leq?|<))\s?(?P<until>{_BOUND})[\s.$]{{0,9}}$"
    rf"|^\W{{0,3}}(?P<centre>{_BOUND})\s?(?:\\pm|\u00b1|\+/-)\s?(?P<spread>{_BOUND})[\s.$]{{0,9}}$"
)
_ROUNDED = 0.02
"""Relative difference up to which two numbers, not both whole, may be the same one, rounded."""
_LEAST_COUNTED = 12
_MAX_CHARACTERS = 20_000
_BEGINNING = 100
"""Number of characters that show most texts not to be lists."""
_MAX_ALTERNATIVES = 1000
"""Maximum number of characters of an answer that may be a list."""


def side_by_side(text: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the answers in boxes, in `<answer>` tags, after `####` or after "answer is" that follow each other with
    nothing but marks and words such as "or" between them, and whether "or" is one of these; nothing for one answer.
    """
    text = text[-_MAX_CHARACTERS:] if _may_state(text, 2) else ""
    run: list[str] = []
    end, has_or = 0, False
    for found in _STATED.finditer(text):
        between = text[end : found.start()]
        if run and not _SEPARATES.fullmatch(between):
            yield run, has_or
            run, has_or = [], False
        has_or |= bool(run) and _OR.search(between) is not None
        run.append(next(filter(None, found.groups()), "").strip().rstrip(".,"))
        end = found.end()
    if run:
        yield run, has_or


def is_dense(text: str) -> bool:
    """Return whether 5 different numbers or more are stated as answers, closer together than intermediate results."""
    if not _may_state(text, _LEAST_STATED):
        return False
    found = [*_STATED.finditer(text[-_MAX_CHARACTERS:])]
    values = {number_of(next(filter(None, one.groups()), "").strip().rstrip(".,")) for one in found} - {None}
    return len(values) >= _LEAST_STATED and found[-1].start() - found[0].start() < _CLOSE * (len(found) - 1)


def last_stated(text: str) -> str:
    """Return the last answer in a box, in a tag or after `####`; '' if there is none."""
    found = [*boxed(text)] or _TAGGED.findall(text) or _MARKED.findall(text)
    return found[-1].strip() if found else ""


def announced(text: str) -> str:
    """Return what follows "answer is" or "answer:" in the last line of a text; '' if nothing does."""
    found = _LAST_STATED.search(text.rstrip().rpartition("\n")[2][-_MAX_ALTERNATIVES:])
    return found[1] if found else ""


def is_single(gold: str) -> bool:
    """Return whether a gold answer is certainly one value: a number, or the letter of a choice."""
    return number_of(gold) is not None or letter_of(gold) is not None


def letter_of(text: str) -> str | None:
    """Return the letter of a choice, such as `(B)`; None if a text is anything else."""
    found = _CHOICE.fullmatch(text)
    return found[1] if found else None


def are_alternatives(answers: Iterable[str], gold: str, *, has_or: bool) -> bool:
    """Return whether answers are different values and the gold answer, a single value, is one of them: 2 letters, or 3
    numbers, or 2 numbers with "or", because 2 numbers can answer two questions.
    """
    right = number_of(gold)
    if right is None:
        letters = set(map(letter_of, answers))
        return None not in letters and len(letters) > 1 and letter_of(gold) in letters
    values: list[tuple[float, ...]] = []
    """The readings of each answer; a percentage has two."""
    for answer in answers:
        value = number_of(answer)
        if value is None:
            return False
        readings = (value, value / 100) if "%" in answer else (value,)
        if not any(_is_close(one, other) for one in readings for known in values for other in known):
            values.append(readings)
    return len(values) >= (2 if has_or else 3) and any(_is_close(one, right) for known in values for one in known)


def lists_alternatives(answer: str, gold: str) -> bool:
    """Return whether an answer consists of alternatives, one of which is the gold answer, a single value."""
    if len(answer) > _MAX_ALTERNATIVES or number_of(answer) is not None or not is_single(gold):
        return False
    plain = _BRACKETED.sub(") ", _IN_A_SET.sub(r"\1", answer.strip(" .$")))
    if number_of(gold) is None and _LETTERS_IN_A_ROW.fullmatch(plain):
        return (letter_of(gold) or " ") in plain
    has_or = _OR.search(plain) is not None
    for text in (plain, _WITH_COMMAS.sub(lambda found: re.sub(r"\D", "", found[0]), plain)):
        parts = (part.strip(" ().$\\") for part in _SEPARATOR.split(text))
        if are_alternatives(filter(None, parts), gold, has_or=has_or):
            return True
    return False


def is_range(answer: str, gold: float) -> bool:
    """Return whether an answer is a range of numbers around the gold number, such as "between 3 and 9", or a wrong
    number with a tolerance. A comma between two numbers without brackets can be a decimal comma.
    """
    found = _RANGE.search(answer) if len(answer) <= _MAX_ALTERNATIVES else None
    if found is None:
        return False
    if found["spread"]:
        centre, spread = _bound(found["centre"]), _bound(found["spread"])
        return centre - spread < gold < centre + spread and not _is_close(centre, gold)
    return _bound(found["low"] or found["from"]) < gold < _bound(found["high"] or found["until"])


def counts_up(text: str) -> bool:
    """Return whether a text ends in a list of 12 or more consecutive whole numbers that begins above 1."""
    lists = [*_LIST.finditer(text[-_MAX_CHARACTERS:])]
    if not lists or len(text[-_MAX_CHARACTERS:]) - lists[-1].end() > 3:
        return False
    numbers = [float(number) for number in _NUMBER.findall(lists[-1][0])]
    return len(numbers) >= _LEAST_COUNTED and numbers[0] > 1 and all(b - a == 1 for a, b in pairwise(numbers))


def is_list_around(text: str, value: float, *, letters: int) -> bool:
    """Return whether a text is a list of 8 or more different numbers with `value` inside, and has at most so many
    letters beside it. A list that begins or ends with `value` can be a sequence that leads to it.
    """
    if sum(map(str.isalpha, text[:_BEGINNING])) > letters or sum(map(str.isalpha, text)) > letters:
        return False
    found = _LIST.search(text[-_MAX_CHARACTERS:])
    if found is None:
        return False
    numbers = [float(number) for number in _NUMBER.findall(found[0])]
    return len(set(numbers)) >= _LEAST_LISTED and value in numbers and value not in (numbers[0], numbers[-1])


def _may_state(text: str, least: int) -> bool:
    """Return whether a text has the marks of so many answers. Looking for them is much faster than the expressions."""
    return text.count("box") + text.count("####") + text.lower().count("answer") >= least


def _bound(text: str) -> float:
    return float(text.replace("\\infty", "inf"))


def _is_close(value: float, other: float) -> bool:
    if value.is_integer() and other.is_integer():
        return value == other
    return abs(value - other) <= _ROUNDED * min(abs(value), abs(other))


# Finds the functions of Python code line by line. Code of models is untrusted and often incomplete, so it is not
# parsed: Python's parser warns about odd strings and can exhaust the stack.

_FENCED = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)
_DEF = re.compile(r"([ \t]*)(?:async\s+)?def\s+(\w+)\s*\((?:\s*self\b\s*,?)?(\s*[^)\s])?")
_PYTHON_CODE_MAX_CHARACTERS = 40_000
_MARKERS = re.compile(r"^\[(?:BEGIN|DONE|/?PYTHON)\][ \t]*$", re.MULTILINE)
"""Marks of few-shot prompts around a program."""
_BARE = re.compile(r"\s*(?:import \w+ *(?:;|$)|from [\w.]+ import |def \w+\(|class \w+[(:]|#!/)", re.MULTILINE)
_MAX_LINE = 1000


@dataclass(frozen=True)
class Function:
    """A function: the lines of its body are without comments and docstrings, and shortened if they are very long."""

    name: str
    has_parameters: bool
    """Not counting `self`."""
    lines: list[str]

    @property
    def outer_lines(self) -> list[str]:
        """The lines of the body that are in no block."""
        depth = min((_indent(line) for line in self.lines), default=0)
        return [line for line in self.lines if _indent(line) == depth]


def fenced(text: str) -> list[str]:
    """Return the contents of the fenced blocks of code, or a text that begins as a program."""
    text = _MARKERS.sub("", text)
    if "```" in text:
        return [code[:_PYTHON_CODE_MAX_CHARACTERS] for code in _FENCED.findall(text)]
    return [text[:_PYTHON_CODE_MAX_CHARACTERS]] if _BARE.match(text) else []


def functions(code: str) -> Iterator[Function]:
    """Yield the functions of a program, methods and inner functions included."""
    lines = [line[:_MAX_LINE].rstrip() for line in code[:_PYTHON_CODE_MAX_CHARACTERS].splitlines()]
    for at, line in enumerate(lines):
        found = _DEF.match(line)
        if found is None:
            continue
        body: list[str] = []
        for inner in lines[at + 1 :]:
            if inner.strip() and _indent(inner) <= len(found[1]):
                break
            body.append(inner)
        yield Function(found[2], found[3] is not None, _code_lines(body))


def without_comments(code: str) -> str:
    """Return the lines of a program without comments and without the docstrings of its functions."""
    plain = re.sub(r"(:\s*)[rRuU]?(\"\"\"|''')(?:.|\n)*?\2", r"\1", code[:_PYTHON_CODE_MAX_CHARACTERS])
    return "\n".join(_code_lines(plain.split("\n")))


def _code_lines(lines: list[str]) -> list[str]:
    without_docstring = re.sub(r"\A(\s*)[rRuU]?(\"\"\"|''')(?:.|\n)*?\2", r"\1", "\n".join(lines))
    kept = (re.sub(r"\s+#.*", "", line) for line in without_docstring.split("\n"))
    return [line for line in kept if line.strip() and not line.lstrip().startswith("#")]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_TEST = re.compile(
    r"\bassert\s+\w+\((.{1,80}?)\)\s*==\s*(\"[^\"\n]{0,80}\"|'[^'\n]{0,80}'|[^\s;,)\n][^;\n]{0,80}?)"
    r"(?=\s*(?:[;\n\"]|$|,\s*(?:['\"]|assert)))"
)
_LEAST, _MAX_TESTS = 2, 20
_LEAST_WITHOUT_KEYS = 3
"""Number of tests from which a result also counts if it stands without its argument."""
_PRINTS = re.compile(r"(?:import sys\n)?(?:print|sys\.stdout\.write|echo)\s*\(?\s*['\"]?(.{1,200}?)['\"]?\s*\)?")
_VALUE = r"(?:-?[\d.]+(?:e-?\d+)?|\"[^\"]{0,80}\"|True|False|None|\[[^\[\]]{0,80}\]|\([^()]{0,80}\)|\{[^{}:]{0,80}\})"
_IS = rf"(?:\w+|\([\w,]{{1,80}}\))==(?P<key>{_VALUE})(?: and \w+==(?P<second>{_VALUE}))?"
_CASES = (
    re.compile(rf"(?<=[{{,])(?P<key>{_VALUE}):(?P<value>{_VALUE})(?=[,}}])"),
    re.compile(rf"\(?{_IS}\)?:return ?(?P<value>{_VALUE})"),
    re.compile(rf"\bcase (?P<key>{_VALUE}):return ?(?P<value>{_VALUE})"),
    re.compile(rf"(?P<value>{_VALUE}) if {_IS}(?= else)"),
)
"""An entry of a table, a comparison, a case of a match, a conditional expression; in code without spaces."""
_COMPUTES = re.compile(
    r"[+*/%]|\w-\w|\b(?:for|while|sum|len|range|sorted|map|filter|reversed|join|max|min|split|str|int|set|abs)\b"
)


def shows_tests(prompt: str) -> bool:
    """Return whether a prompt shows two tests or more, such as `assert f(2) == 7`."""
    return len(_tests(prompt)) >= _LEAST


def repeats_tests(code: str, prompt: str) -> bool:
    """Return whether a program consists of the tests of the prompt, two or more, as cases with their results.

    Programs with further cases may be tables that solve the task, and those that compute something may solve it.
    """
    tests = _tests(prompt)
    if not _LEAST <= len(tests) <= _MAX_TESTS:
        return False
    cases = dict[str, str]()
    rest = _plain(without_comments(code))
    for pattern in _CASES:
        for found in pattern.finditer(rest):
            second = found.groupdict().get("second")
            cases[_key(f"{found['key']},{second}" if second else found["key"])] = found["value"]
        rest = pattern.sub(" ", rest)
    results = {key: [value for case, value in cases.items() if f"{key},".startswith(f"{case},")] for key in tests}
    if _COMPUTES.search(rest) or sum(map(len, results.values())) < len(cases):
        return False
    missing = [key for key, result in tests.items() if result not in results[key]]
    if not missing or len(tests) < _LEAST_WITHOUT_KEYS:
        return not missing
    # What is left after all cases: `... else 11`, or `return 11` at the end.
    last = rf"(?:\belse:?|\breturn)(?: ?return)? ?{re.escape(tests[missing[0]])}(?![\w.(\[])"
    return (len(missing) == 1 and re.search(last, rest) is not None) or _is_table(rest, tests)


def only_prints(code: str, result: str) -> bool:
    """Return whether a program does nothing but print this result."""
    found = _PRINTS.fullmatch(without_comments(code).strip())
    return found is not None and found[1].strip() == result.strip()


def _tests(prompt: str) -> dict[str, str]:
    return {_key(_plain(found[1])): _plain(found[2]) for found in _TEST.finditer(prompt)}


def _key(argument: str) -> str:
    """Return arguments without brackets, so that those of a call and a tuple look alike."""
    return re.sub(r"[()\[\]]", "", argument)


def _is_table(text: str, tests: dict[str, str]) -> bool:
    """Return whether the results of f(0), f(1), f(2), ... are a list in the program."""
    if any(str(number) not in tests for number in range(len(tests))):
        return False
    listed = ",".join(tests[str(number)] for number in range(len(tests)))
    return listed in re.findall(r"[\[(]([^\[\]()]*)[\])]", text)


def _plain(text: str) -> str:
    """Return code with double quotes and without spaces, except between words."""
    return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", re.sub(r"\s+", " ", text)).replace("'", '"')

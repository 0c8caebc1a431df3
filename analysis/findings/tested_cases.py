"""Tells whether a program only contains the results of the tests that its prompt shows."""

from __future__ import annotations

import re

from rollyard.analysis.findings.python_code import without_comments

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
    return (len(missing) == 1 and _is_last_case(rest, tests[missing[0]])) or _is_table(rest, tests)


def only_prints(code: str, result: str) -> bool:
    """Return whether a program does nothing but print this result."""
    found = _PRINTS.fullmatch(without_comments(code).strip())
    return found is not None and found[1].strip() == result.strip()


def _tests(prompt: str) -> dict[str, str]:
    """Return the results by argument."""
    return {_key(_plain(found[1])): _plain(found[2]) for found in _TEST.finditer(prompt)}


def _key(argument: str) -> str:
    """Return arguments without brackets, so that those of a call and a tuple look alike."""
    return re.sub(r"[()\[\]]", "", argument)


def _is_last_case(text: str, result: str) -> bool:
    """Return whether a result is what is left after all cases: `... else 11`, or `return 11` at the end."""
    return re.search(rf"(?:\belse:?|\breturn)(?: ?return)? ?{re.escape(result)}(?![\w.(\[])", text) is not None


def _is_table(text: str, tests: dict[str, str]) -> bool:
    """Return whether the results of f(0), f(1), f(2), ... are a list in the program."""
    if any(str(number) not in tests for number in range(len(tests))):
        return False
    listed = ",".join(tests[str(number)] for number in range(len(tests)))
    return listed in re.findall(r"[\[(]([^\[\]()]*)[\])]", text)


def _plain(text: str) -> str:
    """Return code with double quotes and without spaces, except between words."""
    return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", re.sub(r"\s+", " ", text)).replace("'", '"')

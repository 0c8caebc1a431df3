"""Values that pass between tests and answer: builtin values by copy, objects by reference."""

from __future__ import annotations

import pytest

from rollyard.services.sandbox.records import Ending
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.services.sandbox.trials import run_trial

VALUES = r"""values = [
    None, True, 7, -(10**400), 1.5, float("inf"), "é\u2028\ud800", b"\x00\xff", 2 + 3j, [1, (2, {3: "4"})], {1, 2},
    set(), frozenset("a"), {"a": [None]}, {(1, 2): 3}, range(2, 9, 3), int,
]
"""


async def test_values_pass_unchanged_in_both_directions(sandbox: Sandbox) -> None:
    code = f"{VALUES}def f(n, x):\n    assert type(x) is type(values[n]) and x == values[n]\n    return x"
    test = "for n, x in enumerate(values): assert type(f(n, x)) is type(x) and f(n, x) == x, repr(x)[:30]"
    outcome = await run_trial(sandbox, code, test, prelude=VALUES)
    assert outcome.passed, outcome


async def test_values_of_the_standard_library_pass_unchanged(sandbox: Sandbox) -> None:
    prelude = """
from array import array
from collections import Counter, OrderedDict, deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
values = [Counter("aab"), OrderedDict(a=1), deque([1]), date(2020, 2, 29), datetime(2020, 1, 1, 2), time(3),
          timedelta(1, 2, 3), Decimal("1.10"), Fraction(1, 3), array("d", [1, 2]), slice(1, None)]
"""
    check = "assert f(values) == values and [type(x) for x in f(values)] == [type(x) for x in values]"
    assert (await run_trial(sandbox, "def f(x): return x", check, prelude=prelude)).passed


async def test_tests_can_create_change_and_pass_back_objects_of_the_answer(sandbox: Sandbox) -> None:
    code = "class Node:\n    def __init__(self, value): self.value = value\ndef f(node): return node.next.value"
    setup = "root = Node(1)\nroot.next = Node(value=2)"
    assert (
        await run_trial(sandbox, code, "assert f(root) == 2 and root.value == 1", names=("Node", "f"), setup=setup)
    ).passed


async def test_objects_of_the_answer_support_truth_iteration_length_and_text(sandbox: Sandbox) -> None:
    code = """
import re
class Box:
    def __init__(self, *held): self.held = held
    def __len__(self): return len(self.held)
    def __iter__(self): return iter(self.held)
    def __getitem__(self, place): return self.held[place]
    def __str__(self): return "box"
def f(x): return re.fullmatch("a+", x)
"""
    test = """
assert f("aa") and not f("b") and f("aa").group() == "aa"
box = Box(1, 2, 3)
assert box and not Box() and list(box) == [1, 2, 3] and len(box) == 3 and 2 in box and 5 not in box
assert box[0] == 1 and list(box[1:]) == [2, 3] and str(box) == "box" and sorted(box) == [1, 2, 3]
"""
    assert (await run_trial(sandbox, code, test, names=("Box", "f"))).passed


async def test_an_object_of_the_answer_keeps_its_identity(sandbox: Sandbox) -> None:
    code = "class Node: pass\none, other = Node(), Node()\ndef f(x): return x\ndef g(): return other"
    test = "assert f(one) is one and f(one) == one and g() != one and g() is g()"
    assert (await run_trial(sandbox, code, test, names=("f", "g", "one"))).passed


async def test_views_of_a_dictionary_stay_views(sandbox: Sandbox) -> None:
    code = "def f(): return {2: 'b', 1: 'a'}"
    tests = (
        "assert list(f().keys()) == [2, 1]",
        "assert list(k()) == [2, 1] and k() == {1, 2} and k() != [2, 1]",
        "assert list(i()) == [(2, 'b'), (1, 'a')] and list(v()) == ['b', 'a'] and v() != ['b', 'a']",
    )
    code += "\ndef k(): return f().keys()\ndef i(): return f().items()\ndef v(): return f().values()"
    assert (await run_trial(sandbox, code, *tests, names=("f", "k", "i", "v"))).passed


@pytest.mark.parametrize(
    "test", ["assert all(map(f, [1, 2]))", "for got in map(f, [1, 2]): assert got", "list(map(f, [1]))"]
)
async def test_an_answer_cannot_end_a_loop_of_the_tests(test: str, sandbox: Sandbox) -> None:
    assert (await run_trial(sandbox, "def f(x): raise StopIteration", test)).ending is Ending.RAISED


async def test_functions_of_the_tests_can_be_passed_to_the_answer(sandbox: Sandbox) -> None:
    code = "def f(g, xs): return [g(x) for x in xs]\ndef same(x): return x"
    test = "n = 5\ng = lambda x: x + n\nassert f(g, [1, 2]) == [6, 7] and f(len, ['a']) == [1] and same(g) is g"
    assert (await run_trial(sandbox, code, test, names=("f", "same"))).passed


async def test_a_function_of_the_tests_can_call_a_function_of_the_answer(sandbox: Sandbox) -> None:
    code = (
        "def f(apply, x):\n    try: return apply(lambda y: apply(abs, y) + 1, x)\n    except KeyError: return 'caught'"
    )
    test = "assert f(lambda g, x: g(x) * 10, -2) == 210 and f(lambda g, x: {}[x], 1) == 'caught'"
    assert (await run_trial(sandbox, code, test)).passed

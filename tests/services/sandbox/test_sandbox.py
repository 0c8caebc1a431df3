"""What the sandbox promises besides holding: verdicts, limits, clocks, and what it says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.errors import OperatorError
from services.sandbox.modes import Mode
from services.sandbox.records import Ending, Limits, Outcome, Trial
from services.sandbox.sandbox import Sandbox


async def tried(sandbox: Sandbox, code: str, *tests: str, names: tuple[str, ...] = ("f",), **more: str) -> Outcome:
    return await sandbox.run(Trial(code=code, names=names, tests=tests or ("f()",), **more))


VALUES = [
    None, True, 7, -(10**400), 1.5, float("inf"), "é\u2028\ud800", b"\x00\xff", 2 + 3j, [1, (2, {3: "4"})], {1, 2},
    set(),
    frozenset("a"), {"a": [None]}, {(1, 2): 3}, range(2, 9, 3), int,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
async def test_values_cross_unchanged_in_both_directions(value: Any, sandbox: Sandbox) -> None:
    written = "int" if value is int else repr(value).replace("inf", "float('inf')")
    code = f"def f(x):\n    assert type(x) is type({written}) and x == {written}\n    return x"
    test = "assert type(f(given)) is type(given) and f(given) == given"
    outcome = await tried(sandbox, code, test, prelude=f"given = {written}")
    assert outcome.passed, outcome


async def test_library_values_cross(sandbox: Sandbox) -> None:
    prelude = """
from collections import Counter, OrderedDict, deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
values = [Counter("aab"), OrderedDict(a=1), deque([1]), date(2020, 2, 29), datetime(2020, 1, 1, 2), time(3),
          timedelta(1, 2, 3), Decimal("1.10"), Fraction(1, 3)]
"""
    check = "assert f(values) == values and [type(x) for x in f(values)] == [type(x) for x in values]"
    assert (await tried(sandbox, "def f(x): return x", check, prelude=prelude)).passed


async def test_a_generator_arrives_as_an_iterator(sandbox: Sandbox) -> None:
    assert (await tried(sandbox, "def f():\n    yield from (1, 2)", "assert list(f()) == [1, 2]")).passed


async def test_objects_of_the_answer_can_be_made_changed_and_handed_back(sandbox: Sandbox) -> None:
    code = "class Node:\n    def __init__(self, value): self.value = value\ndef f(node): return node.next.value"
    setup = "root = Node(1)\nroot.next = Node(value=2)"
    assert (
        await tried(sandbox, code, "assert f(root) == 2 and root.value == 1", names=("Node", "f"), setup=setup)
    ).passed


async def test_functions_of_the_tests_can_be_handed_to_the_answer(sandbox: Sandbox) -> None:
    code = "def f(g, xs): return [g(x) for x in xs]\ndef same(x): return x"
    test = "n = 5\ng = lambda x: x + n\nassert f(g, [1, 2]) == [6, 7] and f(len, ['a']) == [1] and same(g) is g"
    assert (await tried(sandbox, code, test, names=("f", "same"))).passed


async def test_an_exception_of_a_lent_function_reaches_the_answer(sandbox: Sandbox) -> None:
    code = "def f(g):\n    try: g()\n    except KeyError: return 'caught'"
    assert (await tried(sandbox, code, "assert f(lambda: {}['a']) == 'caught'")).passed


async def test_an_answer_cannot_change_what_a_test_holds(sandbox: Sandbox) -> None:
    test = "held = [2, 1]\nassert f(held) == [] and held == [2, 1]"
    assert (await tried(sandbox, "def f(x): x.clear(); return x", test)).passed


async def test_an_exception_of_the_answer_can_be_expected_by_the_tests(sandbox: Sandbox) -> None:
    test = "try:\n    f()\n    assert False\nexcept ZeroDivisionError as error:\n    assert 'division' in str(error)"
    assert (await tried(sandbox, "def f(): return 1 / 0", test)).passed


async def test_state_is_not_carried_from_one_answer_to_the_next(sandbox: Sandbox) -> None:
    code = "import os, math\nmath.pi = 3\nopen('/tmp/kept', 'w').close()\ndef f(): return math.pi, os.listdir('/tmp')"
    assert (await tried(sandbox, code)).passed
    clean = "import os, math\ndef f(): return math.pi > 3.1, os.listdir('/tmp')"
    assert (await tried(sandbox, clean, "assert f() == (True, [])")).passed


async def test_what_stands_under_a_main_guard_is_not_run(sandbox: Sandbox) -> None:
    assert (await tried(sandbox, "def f(): pass\nif __name__ == '__main__':\n    f(input())")).passed


@pytest.mark.parametrize(
    ("code", "ending", "reason"),
    [
        ("def f(): return 1", Ending.WRONG, "wrong at: assert f() == 2"),
        ("def f(): return [][0]", Ending.RAISED, "IndexError: list index out of range at: assert f() == 2"),
        ("def f(: pass", Ending.RAISED, "SyntaxError"),
        ("def g(): return 2", Ending.RAISED, "NameError: the answer defines no 'f' outside the tests"),
        ("class E(Exception): pass\ndef f(): raise E('mine')", Ending.RAISED, "E: mine"),
        ("import os\ndef f(): os._exit(3)", Ending.GONE, "ended itself with status 3"),
        ("import os\ndef f(): os.abort()", Ending.GONE, "killed by SIGABRT"),
        ("def f():\n    while True: pass", Ending.CPU, "more than 1 s of CPU"),
        ("import time\ndef f(): time.sleep(60)", Ending.DEADLINE, "no end after 3 s"),
        ("def f(): return bytearray(1 << 30)", Ending.RAISED, "MemoryError"),
    ],
)
async def test_the_outcome_says_how_it_ended(code: str, ending: Ending, reason: str, sandbox: Sandbox) -> None:
    outcome = await tried(sandbox, code, "assert f() == 2")
    assert outcome.ending is ending
    assert reason in outcome.reason


@pytest.mark.parametrize("tests", [("assert (",), ("assert f()", "assert )")])
async def test_tests_that_are_no_python_are_not_the_answers_fault(tests: tuple[str, ...], sandbox: Sandbox) -> None:
    assert (await tried(sandbox, "def f(): return 1", *tests)).ending is Ending.BAD_TESTS


async def test_a_prelude_that_raises_is_not_the_answers_fault(sandbox: Sandbox) -> None:
    assert (await tried(sandbox, "def f(): return 1", prelude="1 / 0")).ending is Ending.BAD_TESTS


async def test_words_that_are_no_text_do_not_turn_a_loss_into_a_failure(sandbox: Sandbox) -> None:
    outcome = await tried(sandbox, "def f():\n    raise KeyError('\\ud800')")
    assert outcome.ending is Ending.RAISED
    assert "KeyError" in orjson.loads(orjson.dumps(outcome.model_dump()))["reason"]


async def test_tests_passed_are_counted_up_to_the_first_that_fails(sandbox: Sandbox) -> None:
    outcome = await tried(sandbox, "def f(x): return x", "assert f(1) == 1", "assert f(2) == 3", "assert f(3) == 3")
    assert (outcome.tests_passed, outcome.tests) == (1, 3)


async def test_output_is_kept_up_to_its_cap(sandbox: Sandbox) -> None:
    outcome = await tried(sandbox, "def f(): print('ab' * 100_000)")
    assert (outcome.passed, outcome.output, outcome.output_cut) == (True, "ab" * 8192, True)


async def test_tests_that_do_not_reach_their_end_are_no_pass(sandbox: Sandbox) -> None:
    for ending in ("import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit"):
        assert not (await tried(sandbox, "def f(): pass", f"f()\n{ending}")).passed


async def test_a_test_that_expects_any_exception_is_not_passed_by_ending_the_process(sandbox: Sandbox) -> None:
    for caught in ("except Exception", "except"):
        test = f"try:\n    f()\n{caught}:\n    pass"
        assert not (await tried(sandbox, "import os\ndef f(): os._exit(0)", test)).passed
        assert (await tried(sandbox, "def f(): raise ValueError", test)).passed


async def test_many_at_once_score_as_one_by_one(sandbox: Sandbox) -> None:
    kinds = [
        "return 1",
        "return 2",
        "raise KeyError",
        "import time; time.sleep(0.2); return 1",
        "sum(range(10**6)); return 1",
    ]
    codes = [f"import time\ndef f(): {kind}" for kind in kinds]
    alone = [(await tried(sandbox, code, "assert f() == 1")).ending for code in codes]
    crowd = await asyncio.gather(*[tried(sandbox, code, "assert f() == 1") for code in codes * 10])
    assert [outcome.ending for outcome in crowd] == alone * 10


async def test_a_caller_that_gives_up_leaves_no_jail(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await tried(sandbox, "import time\ndef f(): time.sleep(60)")
    assert (await tried(sandbox, "def f(): pass")).passed


async def test_a_dead_zygote_is_replaced() -> None:
    sandbox = Sandbox(Limits(cpu_s=1, wall_s=3))
    await sandbox.start()
    try:
        assert sandbox._zygote is not None
        sandbox._zygote._process.kill()
        sandbox._zygote._process.wait()
        assert (await tried(sandbox, "def f(): pass")).passed
    finally:
        await sandbox.stop()


async def test_without_bubblewrap_the_next_best_is_used_and_said(tmp_path: Path) -> None:
    sandbox = Sandbox(Limits(cpu_s=1, wall_s=3), bubblewrap=None, python="/usr/bin/python3")
    try:
        await sandbox.start()
    except OperatorError as error:
        pytest.skip(f"no Landlock here: {error}")
    try:
        assert sandbox.layers.mode == "landlock"
        assert any("bubblewrap" in missing for missing in sandbox.layers.missing)
        hidden = tmp_path / "hidden"
        hidden.write_text("x")
        hidden.chmod(0o644)
        outcome = await tried(sandbox, f"def f():\n    print('in')\n    return open({str(hidden)!r}).read()")
        assert (outcome.ending, outcome.output) == (Ending.RAISED, "in\n")
        assert "Error: [Errno" in outcome.reason
    finally:
        await sandbox.stop()


async def test_where_nothing_isolates_it_starts_only_if_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mode, "lacks", lambda mode, offered: "not on this kernel" if mode.landlock else "")
    refusing = Sandbox(Limits(), bubblewrap="/bin/false", python="/usr/bin/python3")
    with pytest.raises(OperatorError, match=r"landlock: not on this kernel.*allow_unsandboxed: true"):
        await refusing.start()
    bare = Sandbox(Limits(), bubblewrap="/bin/false", python="/usr/bin/python3", allow_unsandboxed=True)
    await bare.start()
    try:
        assert (bare.layers.mode, len(bare.layers.missing)) == ("none", 2)
        assert (await tried(bare, "def f(): return 1", "assert f() == 1")).passed
        assert not (await tried(bare, "import os; os._exit(0)", "assert f() == 1")).passed
    finally:
        await bare.stop()


async def test_a_broken_bubblewrap_is_not_taken_for_one_that_holds() -> None:
    sandbox = Sandbox(Limits(), bubblewrap="/bin/false", python="/bin/false")
    with pytest.raises(OperatorError, match="cannot use the Python /bin/false"):
        await sandbox.start()

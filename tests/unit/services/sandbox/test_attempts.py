"""What untrusted code tries, by the name of what it tries: none passes, none gets out, nothing is left."""

from __future__ import annotations

import pytest

from rollyard.services.sandbox.records import Ending, Trial
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.services.sandbox.bombs import BOMBS
from tests.unit.services.sandbox.cheats import CHEATS
from tests.unit.services.sandbox.escapes import ESCAPES
from tests.unit.services.sandbox.processes import descendants, until_alive

TESTS = ("assert double(21) == 42  # kept from answers", "assert not double(0)", "assert double([1]) == [1, 1]")
HONEST = "def double(x): return 2 * x"


def trial(code: str) -> Trial:
    return Trial(code=code, names=("double",), tests=TESTS)


def running(sandbox: Sandbox) -> set[int]:
    """The sandbox's processes: bubblewrap, the zygote, and whatever is in a jail."""
    assert sandbox._zygote is not None
    return set(descendants(sandbox._zygote._process.pid))


async def test_the_honest_answer_passes(sandbox: Sandbox) -> None:
    outcome = await sandbox.run(trial(HONEST))
    assert (outcome.ending, outcome.tests_passed, outcome.reason) == (Ending.PASSED, 3, "")


@pytest.mark.parametrize("name", CHEATS)
async def test_no_pass_for_an_answer_that(name: str, either: Sandbox) -> None:
    outcome = await either.run(trial(CHEATS[name]))
    assert not outcome.passed
    assert "ESCAPED" not in outcome.output, outcome.output


@pytest.mark.parametrize("name", ESCAPES)
async def test_nothing_is_reached_by_an_answer_that(name: str, either: Sandbox) -> None:
    # It defines the right function behind the attempt: where the attempt fails quietly, the answer passes.
    outcome = await either.run(trial(f"{ESCAPES[name]}\n{HONEST}"))
    assert "ESCAPED" not in outcome.output, outcome.output
    assert outcome.ending in (Ending.PASSED, Ending.GONE), outcome


@pytest.mark.parametrize("name", BOMBS)
async def test_bounds_hold_and_the_next_answer_is_served_after_one_that(name: str, sandbox: Sandbox) -> None:
    before = running(sandbox)
    code = BOMBS[name] if "def double" in BOMBS[name] else f"{BOMBS[name]}\ndef double(x): return 0"
    outcome = await sandbox.run(trial(code))
    assert not outcome.passed
    assert until_alive(sorted(running(sandbox) - before), wanted=0) == []
    assert (await sandbox.run(trial(HONEST))).passed


async def test_threads_have_a_bound_also_where_no_namespace_counts_them(either: Sandbox) -> None:
    code = """
import threading, time
threading.stack_size(32768)
def started():
    for count in range(5000):
        try: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
        except (RuntimeError, MemoryError): return count
"""
    outcome = await either.run(Trial(code=code, names=("started",), tests=("assert 0 < started() < 3000",)))
    assert outcome.passed, outcome

"""Attacks of untrusted code, by name: no cheat passes, no attack leaves the jail, no process is left."""

from __future__ import annotations

import pytest

from rollyard.services.sandbox.records import Ending, Trial
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.services.sandbox.bombs import BOMBS
from tests.unit.services.sandbox.cheats import CHEATS, PROCESS_CHEATS
from tests.unit.services.sandbox.escapes import ESCAPES
from tests.unit.services.sandbox.trials import descendants, wait_until_gone

TESTS = ("assert double(21) == 42  # kept from answers", "assert not double(0)", "assert double([1]) == [1, 1]")
CORRECT = "def double(x): return 2 * x"


def trial(code: str) -> Trial:
    return Trial(code=code, names=("double",), tests=TESTS)


def processes_of(sandbox: Sandbox) -> set[int]:
    """The processes of the sandbox: bubblewrap, the zygote and the processes in jails."""
    assert sandbox._zygote is not None
    return set(descendants(sandbox._zygote._process.pid))


async def test_a_correct_answer_passes(sandbox: Sandbox) -> None:
    outcome = await sandbox.run(trial(CORRECT))
    assert (outcome.ending, outcome.tests_passed, outcome.reason) == (Ending.PASSED, 3, "")


@pytest.mark.parametrize("name", CHEATS)
async def test_an_answer_does_not_pass_if_it(name: str, sandbox: Sandbox) -> None:
    outcome = await sandbox.run(trial(CHEATS[name]))
    assert not outcome.passed
    assert "ESCAPED" not in outcome.output, outcome.output


@pytest.mark.smoke
@pytest.mark.parametrize("name", PROCESS_CHEATS)
async def test_an_answer_does_not_pass_in_any_isolation_mode_if_it(name: str, any_sandbox: Sandbox) -> None:
    outcome = await any_sandbox.run(trial(PROCESS_CHEATS[name]))
    assert not outcome.passed
    assert "ESCAPED" not in outcome.output, outcome.output


@pytest.mark.smoke
@pytest.mark.parametrize("name", ESCAPES)
async def test_an_answer_does_not_escape_if_it(name: str, any_sandbox: Sandbox) -> None:
    # The correct function follows the attack: if the attack fails without an error, the answer passes.
    outcome = await any_sandbox.run(trial(f"{ESCAPES[name]}\n{CORRECT}"))
    assert "ESCAPED" not in outcome.output, outcome.output
    assert outcome.ending in (Ending.PASSED, Ending.GONE), outcome


@pytest.mark.parametrize("name", BOMBS)
async def test_limits_hold_and_the_next_answer_runs_after_one_that(name: str, sandbox: Sandbox) -> None:
    before = processes_of(sandbox)
    code = BOMBS[name] if "def double" in BOMBS[name] else f"{BOMBS[name]}\ndef double(x): return 0"
    outcome = await sandbox.run(trial(code))
    assert not outcome.passed
    wait_until_gone(processes_of(sandbox) - before)
    assert (await sandbox.run(trial(CORRECT))).passed


async def test_the_number_of_threads_is_limited_in_every_isolation_mode(any_sandbox: Sandbox) -> None:
    # threading.Thread.start() would wait forever for a thread that has too little memory to report its start.
    code = """
import _thread, time
_thread.stack_size(32768)
def count_threads():
    reserve = bytearray(32 << 20)  # freed on return: where memory is the limit, the answer needs some to end
    for count in range(5000):
        try: _thread.start_new_thread(time.sleep, (9,))
        except (RuntimeError, MemoryError): return count
"""
    outcome = await any_sandbox.run(
        Trial(code=code, names=("count_threads",), tests=("assert 0 < count_threads() < 3000",))
    )
    assert outcome.passed, outcome

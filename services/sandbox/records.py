"""What goes into the sandbox and what comes out."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from rollyard.services.types import Record


class Limits(Record):
    """What one answer may use."""

    cpu_s: int = Field(default=5, ge=1)
    """Seconds of CPU of any one process; load on the machine does not count against an answer."""
    wall_s: float = Field(default=15.0, gt=0)
    """Seconds from the start of the work, for an answer that sleeps; those it waits for a processor are not counted."""
    memory_mb: int = Field(default=512, ge=64)
    """Address space of a process."""
    processes: int = Field(default=8, ge=1)
    """Processes and threads at a time, its own included."""
    file_size_mb: int = Field(default=8, ge=0)
    open_files: int = Field(default=64, ge=16)
    tmp_mb: int = Field(default=32, ge=1)
    """Size of its private /tmp."""
    output_kb: int = Field(default=16, ge=0)
    """Of what it prints so much is kept; the rest is read and forgotten."""


MOST_TIMES = 100
"""The largest `Trial.times`."""


class Trial(Record):
    """An answer and the tests that it must pass."""

    code: str
    """The untrusted program."""
    names: tuple[str, ...]
    """What the tests use of it."""
    tests: tuple[str, ...]
    """Pieces of Python, in order; the first that raises ends the trial."""
    prelude: str = ""
    """Python for the tests alone, run before `names` are looked up, which replace what it defines."""
    setup: str = ""
    """Python for the tests alone, run once `names` are there."""
    forgiving: bool = False
    """Pass over top-level statements that raise (a demonstration, a test of its own), if `names` get there."""
    times: int = Field(default=1, ge=1, le=MOST_TIMES)
    """How many times the sandbox's limits of CPU and clock it may use: more where a reference solution is slow."""


class Ending(StrEnum):
    """How a trial ended. Only the first is a pass, and only it carries the tests' secret."""

    PASSED = "passed"
    """The last test was reached and went through."""
    WRONG = "wrong"
    """A test's assertion failed."""
    RAISED = "raised"
    """The answer, or a test that uses it, raised something else."""
    GONE = "gone"
    """The answer's process ended or hung up before the tests did."""
    CPU = "cpu"
    """It used up its CPU time."""
    DEADLINE = "deadline"
    """It waited, or made the tests wait, past the deadline."""
    BROKEN = "broken"
    """The tests' process ended without a report."""
    BAD_TESTS = "bad_tests"
    """The tests are no Python, or fail without the answer: the row is to blame."""


class Layers(Record):
    """What stands between an answer and this machine."""

    mode: str
    """bubblewrap, landlock or none."""
    in_force: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Each with its reason."""


class Outcome(Record):
    """What became of a trial."""

    ending: Ending
    tests_passed: int
    tests: int
    reason: str
    """A sentence; empty for a pass."""
    passed_over: str
    """What the program's first statement raised that was passed over; empty if none was."""
    output: str
    """The first of what the answer printed."""
    output_cut: bool
    cpu_s: float
    wall_s: float
    layers: tuple[str, ...]
    """Those in force."""

    @property
    def passed(self) -> bool:
        """All tests went through."""
        return self.ending is Ending.PASSED

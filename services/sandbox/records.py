"""Record types for the sandbox's inputs and outputs."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from rollyard.records.types import Record


class SandboxLimits(Record):
    cpu_s: int = Field(default=5, ge=1)
    """CPU seconds for each process, which do not depend on the host's load."""
    wall_s: float = Field(default=5.0, gt=0)
    """Deadline in seconds from the start of the trial. Time spent waiting for a CPU does not count."""
    memory_mb: int = Field(default=512, ge=64)
    """Address space of each process, in MiB."""
    processes: int = Field(default=8, ge=1)
    """Maximum number of simultaneous processes and threads, including the first."""
    file_size_mb: int = Field(default=8, ge=0)
    open_files: int = Field(default=64, ge=16)
    tmp_mb: int = Field(default=32, ge=1)
    """Size of the answer's private /tmp, in MiB."""
    output_kb: int = Field(default=16, ge=0)
    """Maximum size of the output that is kept. The rest is discarded."""


MAX_TIMES = 100
"""Maximum value of `Trial.times`."""


class Trial(Record):
    code: str
    """The untrusted program."""
    names: tuple[str, ...]
    """Names defined by the program that the tests use."""
    tests: tuple[str, ...]
    """Pieces of Python code, run in order. The first one that raises ends the trial."""
    prelude: str = ""
    """Python code run in the tests' process before `names` are looked up; `names` override its definitions."""
    setup: str = ""
    """Python code run in the tests' process after `names` have been looked up."""
    forgiving: bool = False
    """Skip top-level statements that raise (demonstrations, the answer's own tests), if `names` are defined."""
    times: int = Field(default=1, ge=1, le=MAX_TIMES)
    """Factor for the sandbox's CPU and time limits, for tasks with a slow reference solution."""


class Ending(StrEnum):
    """How a trial ended. Only PASSED counts as a pass, and it requires a report with the tests' secret."""

    PASSED = "passed"
    """All tests passed."""
    WRONG = "wrong"
    """A test's assertion failed."""
    RAISED = "raised"
    """The answer, or a test that uses it, raised an exception other than a failed assertion."""
    GONE = "gone"
    """The answer's process exited or closed the connection before the tests ended."""
    CPU = "cpu"
    """The answer exceeded its CPU limit."""
    DEADLINE = "deadline"
    """The trial exceeded its deadline."""
    BROKEN = "broken"
    """The tests' process exited without a report."""
    BAD_TESTS = "bad_tests"
    """The tests are not valid Python, or fail without the answer: the row is invalid."""


class Layers(Record):
    """The isolation between an answer and this host."""

    mode: str
    """The isolation mode: bubblewrap, landlock or none."""
    in_force: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Missing layers, each with a reason."""


class Outcome(Record):
    ending: Ending
    tests_passed: int
    tests: int
    reason: str
    """Why the trial failed; empty for a pass."""
    passed_over: str
    """Error of the first skipped statement; empty if none was skipped."""
    output: str
    """The start of the answer's output."""
    output_cut: bool
    cpu_s: float
    wall_s: float
    layers: tuple[str, ...]
    """Enforced layers of isolation."""

    @property
    def passed(self) -> bool:
        return self.ending is Ending.PASSED

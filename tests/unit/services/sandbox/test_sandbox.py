"""What the sandbox does besides isolation: verdicts, limits, deadlines and messages."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.services.sandbox import isolation_modes
from rollyard.services.sandbox.inside.privileges import NOBODY
from rollyard.services.sandbox.isolation_modes import IsolationMode
from rollyard.services.sandbox.records import Ending, SandboxLimits, Trial
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.services.sandbox.trials import run_trial, start_or_skip


async def test_a_missing_import_fails_as_in_python(sandbox: Sandbox) -> None:
    outcome = await run_trial(sandbox, "def f(x: List[int]): return x")
    assert outcome.ending is Ending.RAISED and outcome.reason.startswith("NameError") and "'List'" in outcome.reason
    assert (await run_trial(sandbox, "from __future__ import annotations\ndef f(x: List[int] = 1): return x")).passed


async def test_a_failing_top_level_statement_is_skipped_only_in_forgiving_mode(sandbox: Sandbox) -> None:
    code = "x = int(input())\ndef f(): return y\nraise SystemExit(0)\ny = 2\n"
    forgiven = await sandbox.run(Trial(code=code, names=("f",), tests=("assert f() == 2",), forgiving=True))
    assert forgiven.passed and forgiven.passed_over.startswith("EOFError")
    strict = await run_trial(sandbox, code, "assert f() == 2")
    assert strict.ending is Ending.RAISED and strict.reason.startswith("EOFError")
    assert "outside the tests" in strict.reason


async def test_a_failing_statement_is_not_skipped_if_the_function_stays_undefined(sandbox: Sandbox) -> None:
    code = "class Base(missing): pass\nf = Base()"
    outcome = await sandbox.run(Trial(code=code, names=("f",), tests=("f",), forgiving=True))
    assert outcome.ending is Ending.RAISED and outcome.reason.startswith("NameError") and "'missing'" in outcome.reason


async def test_tests_can_expect_an_exception_of_the_answer(sandbox: Sandbox) -> None:
    test = "try:\n    f()\n    assert False\nexcept ZeroDivisionError as error:\n    assert 'division' in str(error)"
    assert (await run_trial(sandbox, "def f(): return 1 / 0", test)).passed


async def test_answers_share_no_state(sandbox: Sandbox) -> None:
    imports = "import os, math\n"
    reads = "def f():\n    try: return math.pi, os.listdir('/tmp')\n    except OSError: return math.pi, []"
    changes = "math.pi = 3\ntry: open('/tmp/kept', 'w').close()\nexcept OSError: pass\n"
    assert (await run_trial(sandbox, imports + changes + reads)).passed
    assert (await run_trial(sandbox, imports + reads, "assert f()[0] > 3.1 and f()[1] == []")).passed


async def test_exit_and_dunder_builtins_work_as_in_a_script(sandbox: Sandbox) -> None:
    code = "def f():\n    try: exit(3)\n    except SystemExit as end: return __builtins__.sum([end.code, 1])"
    assert (await run_trial(sandbox, code, "assert f() == 4")).passed


async def test_an_answer_can_write_to_devnull(any_sandbox: Sandbox) -> None:
    code = "import os\ndef f():\n    with open(os.devnull, 'w') as nowhere: return print('x', file=nowhere)"
    assert (await run_trial(any_sandbox, code)).passed


@pytest.mark.parametrize(
    ("code", "ending", "reason"),
    [
        ("def f(): return 1", Ending.WRONG, "wrong at: assert f() == 2"),
        ("def f(): return [][0]", Ending.RAISED, "at: assert f() == 2"),
        ("def f(: pass", Ending.RAISED, "SyntaxError"),
        ("def g(): return 2", Ending.RAISED, "'f' outside the tests"),
        ("class E(Exception): pass\ndef f(): raise E('mine')", Ending.RAISED, "E: mine"),
        ("import os\ndef f(): os._exit(3)", Ending.GONE, "exited with status 3"),
        ("import os\ndef f(): os.abort()", Ending.GONE, "killed by SIG"),
        ("def f():\n    while True: pass", Ending.CPU, " 1 s "),
        ("import time\ndef f(): time.sleep(60)", Ending.DEADLINE, " 3 s"),
        ("def f(): return bytearray(1 << 30)", Ending.RAISED, "MemoryError"),
    ],
)
async def test_the_outcome_states_how_the_answer_ended(
    code: str, ending: Ending, reason: str, sandbox: Sandbox
) -> None:
    outcome = await run_trial(sandbox, code, "assert f() == 2")
    assert outcome.ending is ending
    assert reason in outcome.reason


@pytest.mark.parametrize("tests", [("assert (",), ("assert f()", "assert )")])
async def test_tests_with_a_syntax_error_are_not_the_answers_fault(tests: tuple[str, ...], sandbox: Sandbox) -> None:
    assert (await run_trial(sandbox, "def f(): return 1", *tests)).ending is Ending.BAD_TESTS
    assert (await run_trial(sandbox, "def f(): return 1", prelude="1 / 0")).ending is Ending.BAD_TESTS


async def test_an_error_message_with_a_lone_surrogate_can_be_serialized(sandbox: Sandbox) -> None:
    outcome = await run_trial(sandbox, "def f():\n    raise KeyError('\\ud800')")
    assert outcome.ending is Ending.RAISED
    assert "KeyError" in orjson.loads(orjson.dumps(outcome.model_dump()))["reason"]


async def test_output_is_truncated_at_its_limit(sandbox: Sandbox) -> None:
    outcome = await run_trial(sandbox, "def f(): print('ab' * 100_000)")
    assert (outcome.passed, outcome.output, outcome.output_cut) == (True, "ab" * 8192, True)


async def test_tests_that_exit_early_do_not_pass(sandbox: Sandbox) -> None:
    for ending in ("import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit"):
        assert not (await run_trial(sandbox, "def f(): pass", f"f()\n{ending}")).passed


async def test_exiting_does_not_satisfy_a_test_that_expects_any_exception(sandbox: Sandbox) -> None:
    for clause in ("except Exception", "except"):
        test = f"try:\n    f()\n{clause}:\n    pass"
        assert not (await run_trial(sandbox, "import os\ndef f(): os._exit(0)", test)).passed
        assert (await run_trial(sandbox, "def f(): raise ValueError", test)).passed


async def test_concurrent_trials_have_the_outcomes_of_sequential_ones(sandbox: Sandbox) -> None:
    bodies = [
        "return 1",
        "return 2",
        "raise KeyError",
        "import time; time.sleep(0.2); return 1",
        "sum(range(10**6)); return 1",
    ]
    codes = [f"import time\ndef f(): {body}" for body in bodies]
    sequential = [(await run_trial(sandbox, code, "assert f() == 1")).ending for code in codes]
    outcomes = await asyncio.gather(*[run_trial(sandbox, code, "assert f() == 1") for code in codes * 4])
    assert [outcome.ending for outcome in outcomes] == sequential * 4


async def _reasons_side_by_side(code: str) -> set[str]:
    """Run code that needs 0.25 s of CPU so often at once that each run takes 1.5 s, with a deadline of 1 s.

    The rest of the deadline is room for waiting that the kernel does not count, such as for a disk or for the host.
    """
    count = 6 * len(os.sched_getaffinity(0))
    sandbox = Sandbox(SandboxLimits(cpu_s=5, wall_s=1), slots=count)
    await sandbox.start()
    try:
        outcomes = await asyncio.gather(*[run_trial(sandbox, code, "assert f() == 1") for _ in range(count)])
    finally:
        await sandbox.stop()
    return {outcome.reason for outcome in outcomes}


async def test_a_correct_answer_passes_although_it_waits_for_a_processor() -> None:
    code = "import time\ndef f():\n    while time.process_time() < 0.25: pass\n    return 1"
    assert await _reasons_side_by_side(code) == {""}


async def test_the_threads_of_a_correct_answer_may_wait_for_a_processor() -> None:
    code = """import threading, time
def work():
    while time.thread_time() < 0.125: pass
def f():
    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    return 1"""
    assert await _reasons_side_by_side(code) == {""}


async def test_a_trial_with_more_time_may_use_more_cpu(sandbox: Sandbox) -> None:
    code = "import time\ndef f():\n    while time.process_time() < 1.2: pass\n    return 1"
    outcome = await run_trial(sandbox, code, "assert f() == 1", times=4)
    assert outcome.passed, outcome.reason


async def test_the_next_trial_runs_after_a_caller_gave_up(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await run_trial(sandbox, "import time\ndef f(): time.sleep(60)")
    assert (await run_trial(sandbox, "def f(): pass")).passed


async def test_a_dead_zygote_is_replaced() -> None:
    sandbox = Sandbox(SandboxLimits(cpu_s=1, wall_s=3))
    await sandbox.start()
    try:
        assert sandbox._zygote is not None
        sandbox._zygote._process.kill()
        sandbox._zygote._process.wait()
        assert (await run_trial(sandbox, "def f(): pass")).passed
    finally:
        await sandbox.stop()


async def test_without_bubblewrap_landlock_is_used_and_reported(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxLimits(cpu_s=1, wall_s=3), bubblewrap=None)
    try:
        await sandbox.start()
    except OperatorError as error:
        pytest.skip(f"Landlock is not available: {error}")
    try:
        assert sandbox.layers.mode == "landlock"
        assert any("bubblewrap" in missing for missing in sandbox.layers.missing)
        hidden = tmp_path / "hidden"
        hidden.write_text("x")
        hidden.chmod(0o644)
        outcome = await run_trial(sandbox, f"def f():\n    print('in')\n    return open({str(hidden)!r}).read()")
        assert (outcome.ending, outcome.output) == (Ending.RAISED, "in\n")
        assert "Error: [Errno" in outcome.reason
    finally:
        await sandbox.stop()


LOOKS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def found(path):
    try: return os.stat(path).st_size >= 0
    except OSError: return False
def entered(path):
    try: return os.chdir(path) is None
    except OSError: return False
def watched(path):
    return libc.inotify_add_watch(libc.inotify_init1(0), path.encode(), 2) >= 0
def loaded():
    import colorsys, sqlite3, ssl
    return True
"""


@pytest.mark.parametrize("hides", [True, False], ids=["mount namespace", "without"])
async def test_without_bubblewrap_an_answer_cannot_watch_or_enter_a_folder_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hides: bool
) -> None:
    if not hides:
        monkeypatch.setattr(isolation_modes, "tree", lambda python: ())
    sandbox = Sandbox(SandboxLimits(cpu_s=1, wall_s=3), bubblewrap=None)
    await start_or_skip(sandbox)
    hides = hides and any("mount namespace" in layer for layer in sandbox.layers.in_force)
    path, names = str(tmp_path), ("found", "entered", "watched", "loaded")
    try:
        tests = [f"assert not {name}({path!r})" for name in ("entered", "watched")]
        tests += ["assert loaded()", f"assert not found({path!r}) or not {hides}"]
        outcome = await run_trial(sandbox, LOOKS, *tests, names=names)
    finally:
        await sandbox.stop()
    assert outcome.passed, outcome.reason


TELLS = """
import os, socket
def size_owner_and_times(path):
    seen = os.stat(path)
    return seen.st_size, seen.st_uid, seen.st_mtime_ns
def denied(look, path):
    try: look(path)
    except PermissionError: return True
def hidden(path):
    return denied(open, path) and denied(os.listdir, os.path.dirname(path))
def machine():
    return socket.gethostname()
def exists(pid):
    try: os.kill(pid, 0)
    except ProcessLookupError: return False
    except PermissionError: return True
"""


async def test_without_namespaces_a_file_of_the_host_shows_its_size_owner_and_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolation_modes, "tree", lambda python: ())
    path = "/etc/passwd"  # without a sandbox, everybody may read it and list its folder
    seen = Path(path).stat()
    sandbox = Sandbox(SandboxLimits(cpu_s=1, wall_s=3), bubblewrap=None)
    await start_or_skip(sandbox)
    try:
        shown = f"assert size_owner_and_times({path!r}) == {(seen.st_size, seen.st_uid, seen.st_mtime_ns)}"
        tests = (shown, f"assert hidden({path!r})")
        outcome = await run_trial(sandbox, TELLS, *tests, names=("size_owner_and_times", "hidden"))
    finally:
        await sandbox.stop()
    assert outcome.passed, outcome.reason


async def test_without_bubblewrap_the_hosts_name_and_process_numbers_can_be_found_out() -> None:
    sandbox = Sandbox(SandboxLimits(cpu_s=1, wall_s=3), bubblewrap=None)
    await start_or_skip(sandbox)
    try:
        tests = (f"assert machine() == {socket.gethostname()!r}", f"assert exists({os.getpid()})")
        outcome = await run_trial(sandbox, TELLS, *tests, names=("machine", "exists"))
    finally:
        await sandbox.stop()
    assert outcome.passed, outcome.reason


async def test_an_unsandboxed_answer_reads_files_and_opens_sockets_as_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IsolationMode, "lacks", lambda mode, offered: "not on this kernel" if mode.landlock else "")
    sandbox = Sandbox(SandboxLimits(), bubblewrap="/bin/false", allow_unsandboxed=True)
    await sandbox.start()
    try:
        code = "import os, socket\ndef f(): return os.getuid(), bool(open('/etc/passwd').read()), bool(socket.socket())"
        user = os.getuid() or NOBODY
        outcome = await run_trial(sandbox, code, f"assert f() == ({user}, True, True)")
    finally:
        await sandbox.stop()
    assert outcome.passed, outcome.reason


async def test_without_any_isolation_it_starts_only_with_allow_unsandboxed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IsolationMode, "lacks", lambda mode, offered: "not on this kernel" if mode.landlock else "")
    strict = Sandbox(SandboxLimits(), bubblewrap="/bin/false")
    with pytest.raises(OperatorError, match=r"landlock: not on this kernel.*allow_unsandboxed"):
        await strict.start()
    unsandboxed = Sandbox(SandboxLimits(), bubblewrap="/bin/false", allow_unsandboxed=True)
    await unsandboxed.start()
    try:
        assert (unsandboxed.layers.mode, len(unsandboxed.layers.missing)) == ("none", 2)
        assert (await run_trial(unsandboxed, "def f(): return 1", "assert f() == 1")).passed
        assert not (await run_trial(unsandboxed, "import os; os._exit(0)", "assert f() == 1")).passed
    finally:
        await unsandboxed.stop()


async def test_an_unusable_python_is_an_error() -> None:
    sandbox = Sandbox(SandboxLimits(), bubblewrap="/bin/false", python="/bin/false")
    with pytest.raises(OperatorError, match="/bin/false"):
        await sandbox.start()

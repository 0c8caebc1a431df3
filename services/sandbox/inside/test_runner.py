"""The tests' process, process 1 of its jail: starts the answer's process, runs the tests against it, and reports.

The answer's process is forked before the job is read, so its memory never contains a test, expected value or secret.
Only this process has the report descriptor, and a pass counts only with the job's secret, which is added after the last
test.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import traceback
from types import CodeType
from typing import Any, NoReturn

from rollyard.services.sandbox.inside import jail, libc
from rollyard.services.sandbox.inside.answer_process import AnswerProcess
from rollyard.services.sandbox.inside.channel import Channel, ChannelClosed
from rollyard.services.sandbox.inside.jail_plan import Plan
from rollyard.services.sandbox.inside.rpc_client import AnswerClient, AnswerProcessExited
from rollyard.services.sandbox.inside.value_codec import ForeignException

_FILE = "<tests>"
_FIRST_FREE = 3
_MAX_REASON = 2000
"""Maximum length of a reason in characters."""


def run_tests(plan: Plan, job: int, report: int, output: int) -> dict[str, Any]:
    """Run the job that arrives on descriptor `job`; return the report. Raises OSError without a jail."""
    libc.die_with_parent(signal.SIGKILL)
    os.setsid()
    jail.prepare_file_access(plan)
    tests_end, answer_end = socket.socketpair()
    answer = os.fork()
    if answer == 0:
        _become_answer(plan, answer_end, output)
    answer_end.close()
    os.close(output)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the answer may send SIGINT, and Python would raise
    jail.confine(plan, answer=False)
    libc.hide_memory()
    sys.set_int_max_str_digits(0)  # an answer may return an integer with more digits than the limit
    order = Channel(socket.socket(fileno=job)).receive()
    answer_exit = _AnswerExit(answer)
    try:
        Channel(tests_end).receive()
    except ChannelClosed as error:
        raise OSError(f"the answer's process did not start: {error}") from error
    # From here on, errors are attributed to the answer, which must not turn a failed trial into an internal error.
    try:
        result = _run_job(order, AnswerClient(Channel(tests_end)), answer_exit)
        answer_exit.kill()
    except (OSError, MemoryError) as error:
        result = _failed(0, "broken", f"the tests' process failed: {type(error).__name__}: {error}")
    return result


class _AnswerExit:
    def __init__(self, process: int) -> None:
        self._process = process
        self._ended = False

    def kill(self) -> None:
        """Kill and reap the process, so that its CPU time is added to that of this process."""
        if not self._ended:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)

    def describe(self) -> str:
        for _ in range(20):  # the socket closes shortly before the process can be waited for
            pid, status, _ = os.wait4(self._process, os.WNOHANG)
            if pid:
                self._ended = True
                break
            time.sleep(0.005)
        else:
            return "closed the connection"
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return "cpu limit" if number == signal.SIGXCPU else f"killed by {signal.Signals(number).name}"
        return f"exited with status {os.WEXITSTATUS(status)}"


def _run_job(order: dict[str, Any], answer: AnswerClient, answer_exit: _AnswerExit) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "tests"}
    passed = 0
    try:
        sources = (order["prelude"], order["setup"], *order["tests"])
        parts = [compile(source, _FILE, "exec", dont_inherit=True) for source in sources]
        exec(parts[0], names)
    except BaseException as error:
        return _failed(0, "bad_tests", f"the tests cannot be compiled or started: {type(error).__name__}: {error}")
    try:
        passed_over = answer.run(order["code"], order["names"] if order["forgiving"] else None)[:_MAX_REASON]
        names.update({name: answer.name(name) for name in order["names"]})
        exec(parts[1], names)
    except BaseException as error:
        return _failed(0, *_explain(error, answer_exit, ""))
    for number, test in enumerate(parts[2:]):
        try:
            exec(test, names)
            passed += 1
        except BaseException as error:
            state, reason = _explain(error, answer_exit, _failing_line(order["tests"][number], test))
            return _failed(passed, state, reason, passed_over)
    try:
        answer.check_alive()
    except BaseException as error:
        return _failed(passed, *_explain(error, answer_exit, ""), passed_over)
    return {"state": "passed", "passed": passed, "reason": "", "passed_over": passed_over, "secret": order["secret"]}


def _failed(passed: int, state: str, reason: str, passed_over: str = "") -> dict[str, Any]:
    return {"state": state, "passed": passed, "reason": reason[:_MAX_REASON], "passed_over": passed_over}


def _explain(error: BaseException, answer_exit: _AnswerExit, line: str) -> tuple[str, str]:
    where = f" at: {line}" if line else " outside the tests"
    if isinstance(error, AnswerProcessExited):
        describe = answer_exit.describe()
        return ("cpu" if describe == "cpu limit" else "gone"), f"the answer's process exited ({describe}){where}"
    if isinstance(error, AssertionError):
        return "wrong", f"wrong{where}" + (f" ({error})" if str(error) else "")
    result = str(error) if isinstance(error, ForeignException) else f"{type(error).__name__}: {error}"
    return "raised", f"{result}{where}"


def _failing_line(text: str, code: CodeType) -> str:
    """Return the line of the test at which the current exception occurred."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    numbers = [frame.lineno for frame in frames if frame.filename == code.co_filename and frame.lineno]
    lines = text.splitlines()
    return lines[numbers[-1] - 1].strip() if numbers and numbers[-1] <= len(lines) else text.strip()


def _become_answer(plan: Plan, channel: socket.socket, output: int) -> NoReturn:
    """Serve the tests' requests until they disconnect. Never returns."""
    try:
        libc.die_with_parent(signal.SIGKILL)
        devnull = os.open("/dev/null", os.O_RDONLY)
        for descriptor, number in ((devnull, 0), (output, 1), (output, 2), (channel.fileno(), _FIRST_FREE)):
            os.dup2(descriptor, number)
        channel.detach()
        if plan.namespaces:
            os.chdir("/tmp")
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        jail.confine(plan, answer=True)
        os.closerange(_FIRST_FREE + 1, 1024)
        channel_to_tests = Channel(socket.socket(fileno=_FIRST_FREE))
        with contextlib.suppress(ChannelClosed):
            channel_to_tests.send("ready")
            AnswerProcess(channel_to_tests).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)

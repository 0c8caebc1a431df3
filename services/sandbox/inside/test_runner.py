"""The tests' process, number 1 of its jail: starts the answer's process, runs the tests against it, and reports.

The answer's process is forked off before the job is read: no test, expected value or secret was ever in its memory.
Only this process holds the descriptor to report on, and the report counts only with the job's secret in it, which is
put there after the last test.
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
from rollyard.services.sandbox.inside.exceptions import ForeignException
from rollyard.services.sandbox.inside.jail_plan import Plan
from rollyard.services.sandbox.inside.rpc_client import AnswerClient, AnswerProcessExited

_FILE = "<tests>"
_FIRST_FREE = 3
_MOST_SAID = 2000
"""Characters of a reason."""


def run_tests(plan: Plan, job: int, report: int, output: int) -> dict[str, Any]:
    """Run the job that comes in on descriptor `job`; the report. Raises OSError where the jail cannot be made."""
    libc.die_with_parent(signal.SIGKILL)
    os.setsid()
    jail.furnish(plan)
    ours, theirs = socket.socketpair()
    answer = os.fork()
    if answer == 0:
        _become_answer(plan, theirs, output)
    theirs.close()
    os.close(output)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the answer may signal this process; Python would raise
    jail.confine(plan, answer=False)
    libc.hide_memory()
    sys.set_int_max_str_digits(0)  # an answer may be a number of more digits than Python likes to read
    order = Channel(socket.socket(fileno=job)).receive()
    ending = _Ending(answer)
    try:
        Channel(ours).receive()
    except ChannelClosed as error:
        raise OSError(f"the answer's process did not come up: {error}") from error
    # The answer is to blame for what goes wrong from here on: it must not turn a loss into a failure of ours.
    try:
        told = _tried(order, AnswerClient(Channel(ours)), ending)
        ending.bring_about()
    except (OSError, MemoryError) as error:
        told = _failed(0, "broken", f"the tests' process broke: {type(error).__name__}: {error}")
    return told


class _Ending:
    """How the answer's process ended."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._ended = False

    def bring_about(self) -> None:
        """End it, and have its CPU time counted with ours."""
        if not self._ended:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)

    def words(self) -> str:
        """In a sentence's end."""
        for _ in range(20):  # the socket closes shortly before the process can be waited for
            found, status, _ = os.wait4(self._process, os.WNOHANG)
            if found:
                self._ended = True
                break
            time.sleep(0.005)
        else:
            return "hung up"
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return "cpu limit" if number == signal.SIGXCPU else f"killed by {signal.Signals(number).name}"
        return f"ended itself with status {os.WEXITSTATUS(status)}"


def _tried(order: dict[str, Any], answer: AnswerClient, ending: _Ending) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "tests"}
    passed = 0
    try:
        sources = (order["prelude"], order["setup"], *order["tests"])
        parts = [compile(source, _FILE, "exec", dont_inherit=True) for source in sources]
        exec(parts[0], names)
    except BaseException as error:
        return _failed(0, "bad_tests", f"the tests cannot be compiled or begun: {type(error).__name__}: {error}")
    try:
        passed_over = answer.run(order["code"], order["names"] if order["forgiving"] else None)[:_MOST_SAID]
        names.update({name: answer.name(name) for name in order["names"]})
        exec(parts[1], names)
    except BaseException as error:
        return _failed(0, *_blame(error, ending, ""))
    for number, test in enumerate(parts[2:]):
        try:
            exec(test, names)
            passed += 1
        except BaseException as error:
            state, reason = _blame(error, ending, _line(order["tests"][number], test))
            return _failed(passed, state, reason, passed_over)
    try:
        answer.check_alive()
    except BaseException as error:
        return _failed(passed, *_blame(error, ending, ""), passed_over)
    return {"state": "passed", "passed": passed, "reason": "", "passed_over": passed_over, "secret": order["secret"]}


def _failed(passed: int, state: str, reason: str, passed_over: str = "") -> dict[str, Any]:
    return {"state": state, "passed": passed, "reason": reason[:_MOST_SAID], "passed_over": passed_over}


def _blame(error: BaseException, ending: _Ending, line: str) -> tuple[str, str]:
    """What ended the tests, as a word and as a sentence."""
    where = f" at: {line}" if line else " outside the tests"
    if isinstance(error, AnswerProcessExited):
        words = ending.words()
        return ("cpu" if words == "cpu limit" else "gone"), f"the answer's process is gone ({words}){where}"
    if isinstance(error, AssertionError):
        return "wrong", f"wrong{where}" + (f" ({error})" if str(error) else "")
    told = str(error) if isinstance(error, ForeignException) else f"{type(error).__name__}: {error}"
    return "raised", f"{told}{where}"


def _line(text: str, code: CodeType) -> str:
    """The tests' own line that the current exception passed through."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    numbers = [frame.lineno for frame in frames if frame.filename == code.co_filename and frame.lineno]
    lines = text.splitlines()
    return lines[numbers[-1] - 1].strip() if numbers and numbers[-1] <= len(lines) else text.strip()


def _become_answer(plan: Plan, channel: socket.socket, output: int) -> NoReturn:
    """Never returns: this process serves the tests until they hang up."""
    try:
        libc.die_with_parent(signal.SIGKILL)
        silence = os.open("/dev/null", os.O_RDONLY)
        for descriptor, number in ((silence, 0), (output, 1), (output, 2), (channel.fileno(), _FIRST_FREE)):
            os.dup2(descriptor, number)
        channel.detach()
        if plan.namespaces:
            os.chdir("/tmp")
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        jail.confine(plan, answer=True)
        os.closerange(_FIRST_FREE + 1, 1024)
        link = Channel(socket.socket(fileno=_FIRST_FREE))
        with contextlib.suppress(ChannelClosed):
            link.send("ready")
            AnswerProcess(link).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)

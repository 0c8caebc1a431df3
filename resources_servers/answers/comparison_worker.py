"""A process that compares answers with math-verify and may be ended at any time: `python -m` this module.

It reads one JSON line `{gold, answer, problem, cpu_s}` at a time and answers each with one line; an answer of null
asks whether the gold answer alone can be read. The comparing is done by a child forked after the slow imports: the
kernel ends it when its CPU time is over, even inside one long multiplication, and the next one is there in
milliseconds. CPU time, because by wall time the machine's load would decide.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

import orjson

from rollyard.resources_servers.answers.algebra import check_gold, compare_symbolically, silence_math_verify
from rollyard.services.io.jsonl import iter_jsonl, refuse
from rollyard.services.io.lines import with_offsets

MEMORY_BYTES = 1024**3
BROKEN_OFF = 3
"""Exit status of a child that has answered with an error: sympy's caches may hold what it left half done."""


def main() -> None:
    """Serve until standard input ends. Every death of a child is answered with a line that names its signal."""
    sys.set_int_max_str_digits(0)  # a long number is slow, not wrong: the CPU limit is what ends it
    silence_math_verify()
    compare_symbolically(r"\sqrt{4}", "3-1")  # imports, grammars and caches, once for all children
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        child = os.fork()
        if child == 0:
            _serve()
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == BROKEN_OFF:
            continue
        _say({"died": os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)})


def _serve() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # Python's own buffering could take a second line that dies with this child.
    with os.fdopen(0, "rb", buffering=0, closefd=False) as lines:
        for question in iter_jsonl(with_offsets(iter(lines.readline, b"")), refuse("standard input")):
            gold, answer, problem = (question.value[name] for name in ("gold", "answer", "problem"))
            signal.setitimer(signal.ITIMER_PROF, question.value["cpu_s"])
            try:
                said = (
                    check_gold(gold) if answer is None else compare_symbolically(gold, answer, problem)
                ).model_dump()
            except MemoryError:
                said = {"failed": f"it took more than {MEMORY_BYTES // 1024**2} MiB of memory"}
            except (Exception, RecursionError) as error:
                said = {"failed": f"{type(error).__name__}: {error}"[:300]}
            signal.setitimer(signal.ITIMER_PROF, 0)
            _say(said)
            if "failed" in said:
                os._exit(BROKEN_OFF)
    os._exit(0)


def _say(what: dict[str, object]) -> None:
    os.write(1, orjson.dumps(what) + b"\n")


if __name__ == "__main__":
    main()

"""A worker process, run with `python -m`, that compares answers with math-verify and can be killed at any time.

It reads JSON lines `{gold, answer, problem, cpu_s}` from standard input and writes one line in response to each. If
`answer` is null, it only checks that the gold answer can be parsed. Comparisons run in a child process that is forked
after the slow imports. The kernel kills the child when it has used up its CPU time, even in the middle of a long
multiplication, and the next child is ready within milliseconds. Because the limit is on CPU time, the load on the host
does not affect verdicts.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time

import orjson

from rollyard.records.jsonl import iter_jsonl, refuse, with_offsets
from rollyard.resources_servers.answers.algebra import check_gold, compare_symbolically, silence_math_verify

MEMORY_BYTES = 1024**3
EXIT_AFTER_ERROR = 3
"""Exit status of a child after an error. The child is not reused, because sympy's caches may hold incomplete results.
"""


def main() -> None:
    """Serve requests until standard input is closed. If a child is killed, the response contains the signal."""
    sys.set_int_max_str_digits(0)  # a long number is slow but valid; the CPU limit stops it
    silence_math_verify()
    for gold, answer in ((r"\sqrt{4}", "3-1"), ("x^2-1", "(x-1)(x+1)"), (r"\sqrt{x}+1", "(1,2)")):
        compare_symbolically(gold, answer)  # loads imports, grammars and caches once for all children
    check_gold("x+1")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        child = os.fork()
        if child == 0:
            _serve()
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == EXIT_AFTER_ERROR:
            continue
        _write({"died": os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)})


def _serve() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # Unbuffered: a buffer could contain a second line, which would be lost with this child.
    with os.fdopen(0, "rb", buffering=0, closefd=False) as lines:
        for request in iter_jsonl(with_offsets(iter(lines.readline, b"")), refuse("standard input")):
            gold, answer, problem = (request.value[name] for name in ("gold", "answer", "problem"))
            signal.setitimer(signal.ITIMER_PROF, request.value["cpu_s"])
            started = time.process_time()
            try:
                result = (
                    check_gold(gold) if answer is None else compare_symbolically(gold, answer, problem)
                ).model_dump()
            except MemoryError:
                result = {"failed": f"comparing needs more than {MEMORY_BYTES // 1024**2} MiB of memory"}
            except (Exception, RecursionError) as error:
                result = {"failed": f"{type(error).__name__}: {error}"[:300]}
            signal.setitimer(signal.ITIMER_PROF, 0)
            _write({**result, "cpu_s": time.process_time() - started})
            if "failed" in result:
                os._exit(EXIT_AFTER_ERROR)
    os._exit(0)


def _write(result: dict[str, object]) -> None:
    os.write(1, orjson.dumps(result) + b"\n")


if __name__ == "__main__":
    main()

"""Checks that lm_eval has the requested tasks before the first one runs, because a run may take hours."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rollyard.records.errors import OperatorError, did_you_mean

_TIMEOUT_S = 600.0
"""lm_eval reads thousands of files for the check, which takes 6 s of CPU time, and minutes if the disk is slow."""
_NOT_FOUND = re.compile(r"Tasks not found: (.+)")
_LISTED = re.compile(r"^\|\s*([\w./-]+)\s*\|", re.MULTILINE)


def check_task_names(
    command: Sequence[str],
    tasks: Iterable[str],
    include_path: Path | None,
    environment: Mapping[str, str],
    print_line: Callable[[str], None],
) -> None:
    """Raise OperatorError if a task is unknown. The message suggests the most similar existing name.

    lm_eval before 0.4.10 does not support this check. `print_line` then receives a message, and a mistyped task fails
    only when it runs.
    """
    named = [
        task for task in dict.fromkeys(tasks) if not Path(task).is_file()
    ]  # lm_eval also accepts the path of a task file
    own = ["--include_path", str(include_path)] if include_path is not None else []

    def run_lm_eval(*arguments: str) -> subprocess.CompletedProcess[str]:
        full_command = [*command, *arguments, *own]
        return subprocess.run(
            full_command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )

    if not named:
        return
    try:
        found = run_lm_eval("validate", "--tasks", ",".join(named))
        if found.returncode == 0:
            return
        missing = _NOT_FOUND.search(found.stdout)
        if missing is None:
            last = (found.stderr or found.stdout).strip().rpartition("\n")[2]
            print_line(f"lm_eval could not check the task names in advance ({last or f'status {found.returncode}'})")
            return
        known = _LISTED.findall(run_lm_eval("ls", "tasks").stdout)
    except subprocess.TimeoutExpired:
        print_line(f"lm_eval did not finish checking the task names within {_TIMEOUT_S:.0f} s")
        return
    wrong = [task.strip() for task in missing[1].split(",")]
    hints = "; ".join(f"{task!r}{did_you_mean(task, known)}" for task in wrong)
    raise OperatorError(f"lm_eval has no task {hints} (to list all tasks: {shlex.join(command)} ls tasks)")

"""Whether lm_eval has the tasks, asked of it before the first one runs: each may take hours."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rollyard.services.errors import OperatorError, did_you_mean

_MOST_S = 600.0
"""lm_eval reads thousands of files for this: 6 s of CPU, and a minute or more from a cold or slow disk."""
_NOT_FOUND = re.compile(r"Tasks not found: (.+)")
_LISTED = re.compile(r"^\|\s*([\w./-]+)\s*\|", re.MULTILINE)


def check_task_names(
    command: Sequence[str],
    tasks: Iterable[str],
    include_path: Path | None,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Raises OperatorError that names each task which lm_eval does not have, with the nearest name that it has.

    A version of lm_eval that cannot be asked (before 0.4.10) is told to `say`; it finds a mistyped task when it gets
    there.
    """
    named = [task for task in dict.fromkeys(tasks) if not Path(task).is_file()]  # lm_eval also takes a task's own file
    own = ["--include_path", str(include_path)] if include_path is not None else []

    def asked(*words: str) -> subprocess.CompletedProcess[str]:
        line = [*command, *words, *own]
        return subprocess.run(
            line, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_MOST_S
        )

    if not named:
        return
    try:
        found = asked("validate", "--tasks", ",".join(named))
        if found.returncode == 0:
            return
        missing = _NOT_FOUND.search(found.stdout)
        if missing is None:
            last = (found.stderr or found.stdout).strip().rpartition("\n")[2]
            say(f"lm_eval cannot be asked for its tasks beforehand ({last or f'status {found.returncode}'})")
            return
        known = _LISTED.findall(asked("ls", "tasks").stdout)
    except subprocess.TimeoutExpired:
        say(f"lm_eval did not answer in {_MOST_S:.0f} s whether it has the tasks")
        return
    wrong = [task.strip() for task in missing[1].split(",")]
    hints = "; ".join(f"{task!r}{did_you_mean(task, known)}" for task in wrong)
    raise OperatorError(f"lm_eval has no task {hints} (all of them: {shlex.join(command)} ls tasks)")

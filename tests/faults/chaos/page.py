"""Writes docs/robustness.md. The page contains counts and no times, so that it is the same on every host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.faults.chaos.fault import Fault
from tests.faults.chaos.result import Result

HEADER = """\
# Robustness

This page lists how Rollyard behaves when files, processes, endpoints, models and callers misbehave. Each row is a fault
that a program injects into real processes over real sockets; only the model is a script. `make chaos` injects all of
them and writes this page:

```bash
make chaos                                          # every fault with three seeds; half an hour on two cores
make chaos-quick                                    # one seed, fewer faults, and a soak test of 30 s; runs in CI
```

`python -m tests.faults.chaos --list` lists the faults; `--fault renamed --seed 7` runs those whose names contain
a string.

A fault counts as held if

- the command ends with 0, and every (task, repeat) is in the output exactly once and equal to that of an uninterrupted
  run; or the exit status is not 0, one message names what was found, and the next command resumes or explains how;
- no failed attempt has a reward;
- no session stays open, no process stays behind, and no command ends with a traceback.

Each injection checks that it took effect (the file was changed, the endpoint was called, the event loop was late). One
that did not counts as a failure of the program, never as held. Limits apply to progress and memory, not to time, so
that a busy host does not change the result. *Before* is the behaviour at commit de07a2d.
"""

SOAK = """\
## Under load

```bash
make soak          # 4,096 episodes in flight, 200 ms per model call, 5 % of the responses invalid, 8 minutes
```

This collects Sokoban rollouts from an endpoint that occasionally returns 500, 429, truncated JSON, half a body or a
late response, or resets the connection, while other processes use the CPU. It ends with 1 if a rollout was abandoned,
an attempt failed because one of Rollyard's servers was late, two rollouts of one puzzle differ, a session stayed open,
a server was restarted, or `/metrics` of any server took longer than 2 s.
"""

SECTIONS = {2: "Files", 3: "Processes, endpoints and models", 4: "HTTP and terminals"}


def write(path: Path, results: Sequence[Result]) -> None:
    path.write_text(text(results), encoding="utf-8")


def text(results: Sequence[Result]) -> str:
    """The page as Markdown."""
    by_fault: dict[str, list[Result]] = {}
    for result in results:
        by_fault.setdefault(result.fault.name, []).append(result)
    parts = [HEADER]
    for section, title in SECTIONS.items():
        rows = [_row(found[0].fault, found) for found in by_fault.values() if found[0].fault.section == section]
        if rows:
            parts.append(
                "\n".join(
                    [f"## {title}\n", "| fault | before | now | rounds | seeds |", "|---|---|---|---|---|", *rows]
                )
            )
            parts[-1] += "\n"
    return "\n".join([*parts, SOAK])


def _row(fault: Fault, results: Sequence[Result]) -> str:
    bad = [result for result in results if result.verdict != "held"]
    now = f"**{bad[0].verdict}** in {len(bad)} of {len(results)} rounds" if bad else fault.now
    seeds = sorted({result.seed for result in results})
    shown = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    return f"| {_cell(fault.name)} | {_cell(fault.before)} | {_cell(now)} | {len(results)} | {shown} |"


def _cell(content: str) -> str:
    escaped = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in content)
    return escaped.replace("|", "\\|").replace("<", "&lt;")

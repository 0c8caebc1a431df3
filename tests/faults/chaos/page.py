"""docs/robustness.md: the table, and how it was made. Counts and no times: every machine writes the same page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.faults.chaos.fault import Fault
from tests.faults.chaos.result import Result

HEADER = """\
# Robustness

What this stack does when files, processes, endpoints, models and callers misbehave. Each line below is a fault that a
program injects into real processes over real sockets; only the model is a script. `make chaos` plays all of them again
and writes this page:

```bash
make chaos                                          # every fault, three seeds each; half an hour on two cores
make chaos-quick                                    # one seed, the cheaper ones, and a soak of 30 seconds; runs in CI
```

`python -m tests.faults.chaos --list` names the faults, and `--fault renamed --seed 7` plays those whose names contain a
word.

A fault counts as held when

- every (task, repeat) is in the output exactly once, as an unbroken run makes it, wherever the command ends with 0;
- no failed attempt has a reward;
- otherwise the exit status is not 0, one line names what was found, and the next command goes on or says how;
- no session stays open, no process stays behind, no command falls over with a traceback.

Each injection proves that it took effect (the file was changed, the endpoint was asked, the event loop was late);
one that did not counts as a failure of the program, never as held. Limits are on progress and on memory, not on time,
so that a busy machine changes no verdict. *Before* is what commit de07a2d did.
"""

SOAK = """\
## Under load

```bash
make soak          # 4,096 episodes in flight, 200 ms a model call, 5 % of its answers spoilt, 8 minutes
```

plays Sokoban before an endpoint that now and then answers 500, 429, torn JSON, half a body, a reset, or late, while
others burn the CPU. It ends with 1 when a rollout was given up, an attempt failed because one of our own servers was
late, two rollouts of one puzzle differ, a session stays open, a server was restarted, or `/metrics` of any server took
longer than 2 s.
"""

SECTIONS = {2: "Files", 3: "Processes, endpoints and models", 4: "HTTP and terminals"}


def write(path: Path, results: Sequence[Result]) -> None:
    """Write the page."""
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


def _cell(words: str) -> str:
    escaped = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in words)
    return escaped.replace("|", "\\|").replace("<", "&lt;")

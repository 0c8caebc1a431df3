"""Writes docs/evidence/robustness.md. The page contains counts and no times, so that it is the same on every host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.faults.chaos.fault import Result

HEADER = """\
# Robustness

How Rollyard behaves when files, processes, endpoints, models and callers misbehave. `make chaos` injects each fault
into real processes over real sockets, with a script for the model, and writes this page:

```bash
make chaos                                          # every fault with three seeds; half an hour on two cores
make chaos-quick                                    # one seed, fewer faults, and a soak test of 30 s; runs in CI
```

`python -m tests.faults.chaos --list` lists the faults; `--fault renamed --seed 7` runs those whose names contain a
string. A fault counts as held if

- the command ends with 0, and every (task, repeat) is in the output exactly once and equal to that of an uninterrupted
  run; or the exit status is not 0, one message names what was found, and the next command resumes or explains how;
- no failed attempt has a reward;
- no session stays open, no process stays behind, and no command ends with a traceback.

Each injection checks that it took effect; one that did not counts as a failure of the program.
"""

SIMULATION = """\
## Simulated

```bash
make sim             # 10,000 seeds on all cores, 0.2 CPU-s each; CI plays 300
make sim SEED=7      # one seed with its trace, the same on each run
```

Collectors, shards and merges, agents, model servers, environments and the head, the product's own code, run in one
event loop with a virtual clock. The seed draws which process runs next, and the faults:

- network: requests and responses are late (also when the caller has given up), lost, repeated or cut, links break;
- disk: writes are short or find no space, calls take a second in which others run, power fails, another program
  changes files;
- processes die, alone or all of a host, hang, and are restarted or replaced; jobs continue with other shards;
- operator: Ctrl-C, `--overwrite`, a command that is repeated with another option or input; a task that is rejected;
- policy: one or two engines, wrong, malformed and late responses, turns with several calls, invalid calls and none
  that is finished;
- servers and callers of another run have the addresses of dead ones.

A seed fails on an unhandled exception, also one that a server reports, an endless wait, a reward that no environment
gave for that row, a rollout that is there twice, a line of a file that is lost, also in a power failure, a row that
differs from what the model said and the environment did and told it, a failed attempt without a cause or with a wrong
number, a server that works for a caller that has left, a status that does not say what has happened until then, or a
session, request, environment or file that is left. Bytes on sockets, threads, `ng_run`'s own processes, network file
systems and training are not simulated.
"""

PLANTED = """\
## Planted bugs

```bash
make sim-bugs      # plants each of these bugs in a copy of the product, and simulates until a seed fails
```

A patch for each is in tests/sim/planted. `make test` checks that all of them still apply. A seed counts as the first
that finds a bug only if it holds without the patch. Three of the patches, marked "held back", were written when the
simulator was finished. It found one of them as it was, that of the orphaned sessions. For the other two, and for the
late registration and the empty answer, it was extended: requests arrive although their callers have given up, servers
take a while to start, those of one host die together, an output is merged as soon as it is whole, and an engine counts
the tokens of an empty answer.

<!-- planted bugs: begin -->
<!-- planted bugs: end -->
"""
_TABLE = re.compile("<!-- planted bugs: begin -->.*<!-- planted bugs: end -->", re.DOTALL)
"""What `make sim-bugs` writes."""

SOAK = """\
## Under load

```bash
make soak          # 4,096 episodes in flight for an hour, 200 ms per model call, 5 % of the responses faulty
```

Two replicas of each server, and two collectors that share one output. The endpoint fails in seven ways; SIGKILL ends a
server each minute and a collector every ten minutes. The program ends with 1 if a rollout is in the output twice, an
attempt failed for any other reason, two rollouts of one puzzle differ, anything is left at the end, the memory of a
process grew by more than a tenth in the last half, or more than 0.1 % of the requests for `/metrics` took longer than
2 s. `--parallel 10000 --kill-server-s 0 --kill-collector-s 0` are options of `python -m tests.faults.chaos.soak`.
"""

SUBJECTS = (
    *("invalid model output: the tool name", "invalid model output", "one endpoint of ten", "two endpoints of ten"),
    *("a line of the output", "an input line", "an engine that only", "an engine", "an endpoint that sends"),
    *("a foreign web page", "200 connections", "100 connections", "a request"),
)
"""Beginnings of the names of faults that share a row where their behaviour is the same."""
MAX_NAMES = 8
"""Names of a row; `--list` has all of them."""
SECTIONS = {2: "Files", 3: "Processes, endpoints and models", 4: "HTTP and terminals"}


def write(path: Path, results: Sequence[Result]) -> None:
    """Write the page, and keep the table of the planted bugs that it has."""
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    path.write_text(with_table(text(results), before), encoding="utf-8")


def with_table(page: str, before: str) -> str:
    table = _TABLE.search(before)
    return _TABLE.sub(lambda _: table[0], page) if table else page


def text(results: Sequence[Result]) -> str:
    by_fault: dict[str, list[Result]] = {}
    for result in results:
        by_fault.setdefault(result.fault.name, []).append(result)
    rounds = sorted({len(found) for found in by_fault.values()})
    seeds = sorted({result.seed for result in results})
    parts = [HEADER, f"{len(by_fault)} faults, {_range(rounds)} rounds of each (seeds {_range(seeds)}).\n"]
    for section, title in SECTIONS.items():
        chosen = [found for found in by_fault.values() if found[0].fault.section == section]
        if chosen:
            parts.append("\n".join([f"## {title}\n", "| fault | what happens |", "|---|---|", *_rows(chosen)]) + "\n")
    return "\n".join([*parts, SIMULATION, PLANTED, SOAK])


def _rows(faults: Sequence[Sequence[Result]]) -> list[str]:
    """One row for all faults with the same subject and the same behaviour."""
    rows: dict[tuple[str, str], list[str]] = {}
    for results in faults:
        fault = results[0].fault
        bad = [result for result in results if result.verdict != "held"]
        now = f"**{bad[0].verdict}** in {len(bad)} of {len(results)} rounds" if bad else fault.now
        subject = next((start for start in SUBJECTS if fault.name.startswith(start)), fault.name.partition(" ")[0])
        rows.setdefault((subject, now), []).append(fault.name)
    return [f"| {_cell(_together(names))} | {_cell(now)} |" for (_, now), names in rows.items()]


def _together(names: Sequence[str]) -> str:
    """Names with the words that all share written once: `a file: removed, renamed (while collecting)`."""
    words = [name.split(" ") for name in names]
    more = f"; and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    first, last = _shared(words), _shared([one[::-1] for one in words])
    if len(names) == 1 or any(len(one) <= first + last for one in words):
        return "; ".join(names[:MAX_NAMES]) + more
    start = f"{' '.join(words[0][:first]).rstrip(':')}: " if first else ""
    end = f" ({' '.join(words[0][-last:])})" if last else ""
    middles = [" ".join(one[first : len(one) - last]).rstrip(",") for one in words[:MAX_NAMES]]
    return start + "; ".join(middles) + more + end


def _shared(words: Sequence[Sequence[str]]) -> int:
    return next((n for n, column in enumerate(zip(*words, strict=False)) if len({*column}) > 1), min(map(len, words)))


def _range(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _cell(content: str) -> str:
    escaped = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in content)
    return escaped.replace("|", "\\|").replace("<", "&lt;")

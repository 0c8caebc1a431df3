"""The results as docs/compatibility.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.external.nemo_gym.compatibility.catalog import ROOT
from tests.external.nemo_gym.compatibility.results import Result

PAGE = ROOT / "docs" / "compatibility.md"
INTRODUCTION = """# NeMo Gym's environments under Rollyard

This page is made by `make compatibility`. It lists every environment in the wheel of nemo-gym 0.4.0: each config in
`resources_servers/` and `environments/` that names a resources server. Configs that start the same server with the same
settings, rows and agent share a row.

Each environment is played twice with the rows of its `example.jsonl`, at most five of them:

- **the reference**: NeMo Gym's server program and NeMo Gym's agent, without anything of Rollyard's;
- **Rollyard**: `ng_run` starts the same program from its folder in the installed wheel
  ([from-nemo-gym.md](from-nemo-gym.md)), and `ng_collect_rollouts` plays it through Rollyard's agent.

The model, and the judge of environments that ask one, is a scripted server: a function of the request, made so that it
answers some rows rightly and others wrongly (`tests/external/nemo_gym/compatibility/scripts/`). An environment is
*equal* if every row has exactly the same reward on both sides. Where all rewards of an environment are the same number,
that is weak evidence; the column *rewards* shows how many different ones there are.

Agents with a program or service of their own, such as `claude_code_agent`, are replaced by `simple_agent` on both
sides; the column *agent* shows the replaced one in parentheses. Servers run on a CPU, without downloads, with the
packages of `requirements/nemo-gym.lock`; the last column says what else an environment needs.
"""


def page(results: Sequence[Result]) -> str:
    ordered = sorted(results, key=lambda result: (not result.equal, not result.starts, result.name))
    return f"{INTRODUCTION}\n{summary(results)}\n\n{table(ordered)}\n\n{how_to()}"


def summary(results: Sequence[Result]) -> str:
    equal = [result for result in results if result.equal]
    varied = sum(result.distinct > 1 for result in equal)
    started = sum(result.starts for result in results)
    configs = sum(1 + len(result.also) for result in results)
    counts: dict[str, int] = {}
    for result in results:
        if not result.equal:
            group = re.split(r"[:,]", result.reason)[0].removeprefix("no row plays")
            counts[group or "no row plays"] = counts.get(group or "no row plays", 0) + 1
    others = ", ".join(f"{group} ({count})" for group, count in sorted(counts.items(), key=lambda one: -one[1]))
    return (
        f"**{len(equal)} of {len(results)} environments are equal**, {varied} of them with different rewards for "
        f"different rows; {started} start. The wheel has {configs} such configs. The others: {others}."
    )


def table(results: Sequence[Result]) -> str:
    lines = [
        "| environment | kind | agent | starts | rows | equal | rewards | why not |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_line, results)])


def _line(result: Result) -> str:
    also = f"<br>also {', '.join(f'`{name}`' for name in result.also)}" if result.also else ""
    agent = f"{result.agent} ({result.named_agent})" if result.named_agent else result.agent
    same = sum(a is not None and a == b for a, b in zip(result.theirs, result.ours, strict=False))
    cells = (
        f"`{result.name}`{also}",
        result.kind,
        agent,
        "yes" if result.starts else "no",
        str(len(result.theirs)) if result.starts else "",
        str(same) if result.ours else "",
        str(result.distinct) if result.ours else "",
        result.reason.replace("|", "\\|").replace("<", "&lt;"),
    )
    return f"| {' | '.join(cells)} |"


def how_to() -> str:
    return """## Repeat it

```bash
make compatibility
```

takes about half an hour on two cores, and needs Python 3.12 or newer beside Rollyard's. `make test-nemo-gym` plays a
part of the table again and compares. The rewards of each row are in
`tests/external/nemo_gym/compatibility/results.json`.
"""

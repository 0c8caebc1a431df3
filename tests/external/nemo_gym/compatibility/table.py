"""The results as docs/evidence/compatibility.md."""

from __future__ import annotations

from collections.abc import Sequence

from tests.external.nemo_gym.compatibility.catalog import ROOT
from tests.external.nemo_gym.compatibility.results import Result

PAGE = ROOT / "docs" / "evidence" / "compatibility.md"
INTRODUCTION = """# NeMo Gym's environments under Rollyard

`make compatibility` writes this page. It plays every environment in the wheel of nemo-gym 0.7.0, each config that names
a resources server, with the rows of its `example.jsonl` (at most five), twice: with NeMo Gym's server program and agent
alone, and with the same program started by `ng_run` ([from its folder](../nemo-gym.md)) and played by Rollyard's agent.
The model, and the judge of environments that ask one, is a scripted server that answers some rows rightly and others
wrongly. *Equal* means that every row has exactly the same reward on both sides.

Agents with a program of their own are replaced by `simple_agent` on both sides; a row whose prompt such an agent writes
gets a placeholder. Programs run on a CPU, in a box of bubblewrap, without downloads, with the packages of
`requirements/nemo-gym07.lock`. Sandboxes are folders in that box (NeMo Gym's provider `local`), without the image that
a task names, so that nothing is solved there, and at most two rows of such an environment are played. A constant 0 can
also mean that a service is missing on both sides.
"""


def page(results: Sequence[Result]) -> str:
    ordered = sorted(results, key=lambda result: result.name)
    return f"{INTRODUCTION}\n{summary(results)}\n\n{table(ordered)}\n\n{how_to()}"


def summary(results: Sequence[Result]) -> str:
    equal = [result for result in results if result.equal]
    varied = sum(result.distinct > 1 for result in equal)
    started = sum(result.starts for result in results)
    configs = sum(1 + len(result.also) for result in results)
    return (
        f"**{len(equal)} of {len(results)} environments are equal**, {varied} of them with different rewards for "
        f"different rows; {started} start. The wheel has {configs} such configs."
    )


def table(results: Sequence[Result]) -> str:
    marks = (
        "`+1` counts further configs that play the same, \\* marks equal rewards for all rows, which is weak evidence"
    )
    lines = [f"Equal; {marks}:", ""]
    for kind in sorted({result.kind for result in results if result.equal}):
        names = [_name(one) for one in results if one.equal and one.kind == kind]
        lines.append(f"- {kind} ({len(names)}): {', '.join(names)}")
    others = [result for result in results if not result.equal]
    lacking: dict[str, list[str]] = {}
    for one in others:
        lacking.setdefault(one.reason.replace("<", "&lt;"), []).append(_name(one))
    lines += ["", "The others, with what they lack:", ""]
    lines += [f"- {reason}: {', '.join(names)}" for reason, names in sorted(lacking.items())]
    return "\n".join(lines)


def _name(result: Result) -> str:
    also = f" (+{len(result.also)})" if result.also else ""
    return f"`{result.name}`{also}{chr(92) + '*' if result.equal and result.distinct < 2 else ''}"


def how_to() -> str:
    return """## Repeat it

```bash
make compatibility
```

needs Python 3.13 beside Rollyard's, and bubblewrap. It continues where it stopped: results and logs of each environment
are in `build/compatibility`. `python -m tests.external.nemo_gym.compatibility NAME...` plays some again, `--again
unequal` those that are not equal. The rewards of each row are in `tests/external/nemo_gym/compatibility/results.json`.
"""

"""A fault that was not injected, or an error in the program, never counts as held."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from tests.faults.chaos import page
from tests.faults.chaos.__main__ import play
from tests.faults.chaos.fault import Fault, Result
from tests.faults.chaos.fault_context import FaultContext
from tests.faults.chaos.faults import FAULTS
from tests.faults.chaos.invariants import LAST_WORD, Broken, NotInjected, incomplete, no_crash


@pytest.fixture
def context(tmp_path: Path) -> FaultContext:
    return FaultContext(tmp_path, short=True)


def fault(error: Exception | None) -> Fault:
    async def raise_error(context: FaultContext, rng: random.Random) -> None:
        if error is not None:
            raise error

    return Fault("a | fault\x1b", 2, "kept", raise_error)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (None, "held"),
        (Broken("it broke"), "broken"),
        (NotInjected("no"), "not injected"),
        (KeyError("x"), "not injected"),
    ],
    ids=["nothing", "Broken", "NotInjected", "an error of the program"],
)
async def test_only_a_fault_that_was_injected_and_passed_its_checks_counts_as_held(
    error: Exception | None, verdict: str, context: FaultContext
) -> None:
    assert (await play(fault(error), context, 0)).verdict == verdict


def rollout(task: int, repeat: int, **changed: object) -> dict[str, object]:
    calls = [{"type": "function_call"}] * 5
    last = {"type": "message", "content": [{"text": LAST_WORD}]}
    row = {"id": task, "_ng_task_index": task, "_ng_rollout_index": repeat, "reward": 1.0, "finish_reason": "answered"}
    return {**row, "response": {"output": [*calls, last]}, **changed}


WHOLE = [rollout(task, repeat) for task in range(3) for repeat in range(2)]
WRONG = {
    "one missing": WHOLE[1:],
    "one twice": [*WHOLE, WHOLE[0]],
    "one foreign": [*WHOLE, rollout(9, 0)],
    "one under another number": [*WHOLE[:-1], rollout(2, 1, id=0)],
    "a reward that is `true`": [*WHOLE[:-1], rollout(2, 1, reward=True)],
    "another reward": [*WHOLE[:-1], rollout(2, 1, reward=0.0)],
    "an episode cut short": [*WHOLE[:-1], rollout(2, 1, response={"output": []})],
}


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def test_the_output_of_an_uninterrupted_run_is_complete(tmp_path: Path) -> None:
    assert incomplete(write_rows(tmp_path / "x.jsonl", WHOLE), 3, 2) == ""


@pytest.mark.parametrize("rows", WRONG.values(), ids=WRONG.keys())
def test_an_output_that_differs_from_an_uninterrupted_run_is_not_complete(
    rows: list[dict[str, object]], tmp_path: Path
) -> None:
    assert incomplete(write_rows(tmp_path / "x.jsonl", rows), 3, 2)


@pytest.mark.parametrize(
    "crash", ["ng_run: a bug of ours: KeyError", "Traceback (most recent call last):", "internal error"]
)
def test_a_command_that_crashes_is_broken_regardless_of_its_other_output(crash: str) -> None:
    with pytest.raises(Broken):
        no_crash(f"collected: 5 of 5\n{crash}\n")


def test_the_table_has_a_row_for_each_fault_and_shows_failures() -> None:
    bad, good = fault(None), Fault("another", 2, "is", fault(None).play)
    text = page.text([Result(bad, 0, "held", "", 1), Result(bad, 1, "broken", "x", 1), Result(good, 0, "held", "", 1)])
    assert "2 faults, 1 to 2 rounds of each (seeds 0 to 1)" in text
    assert "| a \\| fault\\x1b | **broken** in 1 of 2 rounds |" in text
    assert "| another | is |" in text


def test_a_new_page_keeps_the_table_of_planted_bugs(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(page.PLANTED.replace("<!-- planted bugs: end -->", "| a\\1 |\n<!-- planted bugs: end -->"))
    page.write(path, [Result(fault(None), 0, "held", "", 1)])
    assert "| a\\1 |\n" in path.read_text()


def test_fault_names_are_unique_and_the_short_form_covers_every_section() -> None:
    names = [one.name for one in FAULTS]
    assert len(set(names)) == len(names)
    assert {one.section for one in FAULTS if not one.slow} == {2, 3, 4}

"""docs/viewer.md: its commands and its program, run one after another on recorded rollouts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

import rollyard
from rollyard.records.data_files import INSTALLED
from rollyard.records.rollout_keys import task_key
from tests.support.commands import Command
from tests.support.doc_pages import commands, page, sections
from tests.support.rollout_files import row, write
from tests.support.stacks import read_rows

HUNT = INSTALLED / "examples" / "hunt" / "recorded" / "late.jsonl"
TEXT = sections(page("viewer.md"))["Labels, verdicts and notes"]
SOKOBAN: dict[str, Any] = {
    "policy_model": {"responses_api_models": {"builtin_model": {}}},
    "sokoban": {"resources_servers": {"grl_sokoban": {}}},
    "player": {
        "agents": {"game_agent": {"resources_server": {"name": "sokoban"}, "model_server": {"name": "policy_model"}}}
    },
}
PUZZLES = [
    {"seed": seed, "dim_room": [6, 6], "num_boxes": 1, "responses_create_params": {"input": "Solve.", "temperature": 0}}
    for seed in range(3)
]


@pytest.fixture
def rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's results/rollouts.jsonl: recorded rollouts, of which two persons have judged some."""
    path = tmp_path / "results" / "rollouts.jsonl"
    path.parent.mkdir()
    shutil.copy(HUNT, path)
    monkeypatch.chdir(tmp_path)
    ann, bob = (rollyard.annotate(path, author=name) for name in ("ann", "bob"))
    for number, one in enumerate(rollyard.read_rollouts(path)):
        if number < 40:
            right = one["extracted_answer"].endswith(f" {one['expected_answer']}.")  # type: ignore[typeddict-item]
            ann.judge(one, "correct" if right else "wrong", "" if right else "lists numbers")
        if number in (1, 3, 5):
            bob.add_label(one, "loop")
    return path


def test_every_command_of_the_page_runs(rollouts: Path, ng: Command) -> None:
    lines = [words for words in commands(TEXT) if words[0] in ("ng_notes", "ng_reward_profile")]
    assert len(lines) == 4
    for words in lines:
        done = ng(*words)
        assert done.status == 0, done.err
    assert len((rollouts.parent / "loops.jsonl").read_bytes().splitlines()) == 3
    assert len((rollouts.parent / "judged.jsonl").read_bytes().splitlines()) == 40


def test_the_program_of_the_page_labels_rollouts(rollouts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = TEXT.partition("```python\n")[2].partition("```")[0]
    exec(compile(program, "docs/viewer.md", "exec"), {})
    assert "'override': 'wrong'" in capsys.readouterr().out


def test_the_summary_shows_that_the_verifier_rewards_what_a_person_calls_wrong(rollouts: Path, ng: Command) -> None:
    done = ng("ng_notes", str(rollouts))
    lines = [line.split() for line in done.out.splitlines()]
    wrong, solved = next((int(line[2]), int(line[3])) for line in lines if line[:2] == ["verdict:", "wrong"])
    assert wrong >= solved >= 10
    assert "loop" in done.out and "by bob" in done.out


def test_a_row_of_the_data_set_is_the_same_task_with_the_corrected_reward(rollouts: Path, ng: Command) -> None:
    write(Path("rows.jsonl"), [{"left": one["left"], "right": one["right"]} for one in read_rows(rollouts)])
    options = ["+output_jsonl_fpath=judged.jsonl", "+input_jsonl_fpath=rows.jsonl"]
    done = ng("ng_notes", str(rollouts), *options)
    assert done.status == 0, done.err
    written = [orjson.loads(line) for line in Path("judged.jsonl").read_bytes().splitlines()]
    assert len(written) == 40
    for one in written:
        notes = one["_ng_notes"]
        assert task_key(one) == notes["task_key"]
        assert one["reward"] == (1.0 if notes["override"] == "correct" else 0.0)
        assert one["response"]["output"] and one["agent_ref"]["name"] == "naive_products_agent"
    changed = [one for one in written if one["reward"] != one["_ng_notes"]["verifier_reward"]]
    assert changed and all(one["_ng_notes"]["reason"] == "lists numbers" for one in changed)


@pytest.mark.parametrize("options", [[], ["+input_jsonl_fpath=rows.jsonl"]], ids=["recorded", "original"])
async def test_a_data_set_of_labelled_rollouts_is_collected_again(here: Path, ng: Command, options: list[str]) -> None:
    first, again = here / "first.jsonl", here / "again.jsonl"
    async with rollyard.stack(SOKOBAN, colocate=True, folder=here) as stack:
        await rollyard.collect(stack, write(here / "rows.jsonl", PUZZLES), first)
        notes = rollyard.annotate(first)
        for one in rollyard.read_rollouts(first, where="task > 0"):
            notes.add_label(one, "again")
        done = ng("ng_notes", "first.jsonl", "+output_jsonl_fpath=data.jsonl", *options)
        assert done.status == 0, done.err
        summary = await rollyard.collect(stack, "data.jsonl", again)
    assert (summary.state, summary.measured) == ("complete", 2)
    played = [rollyard.read_rollouts(path, where="seed > 0") for path in (first, again)]
    prompts = [[one["responses_create_params"]["input"] for one in rows] for rows in played]
    assert prompts[0] == prompts[1]
    keys = [{one["_ng_task_key"] for one in rows} for rows in played]
    assert (keys[0] == keys[1]) == bool(options)


def test_a_verdict_without_a_known_reward_is_refused_with_what_to_pass(tmp_path: Path, ng: Command) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 10.9), row(1, 0, -1.0)])
    notes = rollyard.annotate(path, author="ann")
    for one in rollyard.read_rollouts(path):
        notes.judge(one, "wrong")
    out = f"+output_jsonl_fpath={tmp_path / 'data.jsonl'}"
    refused = ng("ng_notes", str(path), out)
    assert refused.status == 2 and "--wrong-reward" in refused.err
    done = ng("ng_notes", str(path), out, "+wrong_reward=-1")
    assert done.status == 0, done.err
    written = [orjson.loads(line)["reward"] for line in (tmp_path / "data.jsonl").read_bytes().splitlines()]
    assert written == [-1.0, -1.0]

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jq
import orjson
import pytest

from rollyard.records.types import Json
from tests.support.commands import Command
from tests.support.rollout_files import grid, row, write, write_manifest
from tests.support.stacks import PUZZLES, collect, colocated, load_config, read_rows
from tests.unit.services.datasets.test_packed_files import ROWS, write_packed
from tests.walkthroughs.test_three_terminals import STATISTICS, TOOL_CALLS

TASKS, REPEATS = 8, 4


@pytest.fixture(scope="module")
async def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sokoban")
    output = folder / "rollouts.jsonl"
    async with colocated(load_config(), folder) as stack:
        identity = {"rows": TASKS, "num_repeats": REPEATS, "input_sha256": "x"}
        state, _ = await collect(stack, output, rows=PUZZLES, repeats=REPEATS, limit=TASKS, identity=identity)
    assert state == "complete"
    return output


def numbers(folder: Path) -> Json:
    report: Json = orjson.loads((folder / "profile.json").read_bytes())
    return report


def by_jq(program: str, rows: list[Json]) -> Any:
    reported: Any = jq.compile(program).input_text(orjson.dumps(rows).decode()).first()
    return reported


def test_the_jq_programs_of_the_specification_give_the_same_numbers(rollouts: Path, run_profile: Command) -> None:
    done = run_profile(f"+jsonl_fpath=[{rollouts}]")
    assert done.status == 0, done.err
    profile = numbers(rollouts.parent / "rollouts_profile")["runs"][0]
    rows = read_rows(rollouts)
    rewards = by_jq(STATISTICS, rows)
    reported = profile["rewards"]
    assert (reported["min"], reported["max"], reported["median"]) == (rewards["min"], rewards["max"], rewards["median"])
    assert profile["coverage"]["measured"] == rewards["count"] == TASKS * REPEATS
    # jq rounds after every addition, ng_reward_profile once: the means differ in the last digits of a double.
    assert reported["mean"]["mean"] == pytest.approx(rewards["avg"], rel=1e-14)
    calls = by_jq(TOOL_CALLS, rows)
    assert [profile["tool_calls"][key] for key in ("mean", "min", "max")] == [
        calls[key] for key in ("avg", "min", "max")
    ]
    successes = by_jq("map(select(.success == true)) | length", rows)
    assert profile["solved"]["rollouts"] == successes
    assert f"success rate            {successes / len(rows):.2%} ({successes} / {len(rows)})" in done.out


@pytest.fixture
def run_profile(here: Path, ng: Command) -> Command:
    return functools.partial(ng, "ng_reward_profile")


def test_the_same_rollouts_give_a_byte_identical_report(rollouts: Path, run_profile: Command) -> None:
    for folder in ("first", "second"):
        run_profile(f"+jsonl_fpath={rollouts}", f"+output_dir={folder}")
    for name in ("profile.md", "profile.json", "profile.html"):
        assert Path("first", name).read_bytes() == Path("second", name).read_bytes()


def test_two_runs_are_reported_with_their_paired_differences(tmp_path: Path, run_profile: Command) -> None:
    for folder, counts in (("base", [0, 1, 2, 3]), ("trained", [1, 2, 3, 4])):
        path = write(tmp_path / folder / "rollouts.jsonl", grid(counts, 4))
        write_manifest(path, 4, 4)
    files = "+jsonl_fpath=[base/rollouts.jsonl,trained/rollouts.jsonl]"
    done = run_profile(files)
    assert done.status == 0, done.err
    assert "trained/rollouts minus base/rollouts" in done.out and "+25.00 points" in done.out
    written = tmp_path / "base" / "rollouts_profile"
    assert "| 16 of 16 measured | 16 of 16 measured |" in (written / "profile.md").read_text()
    assert numbers(written)["differences"][0]["better"] == 4


def test_nemo_gyms_command_line_works(tmp_path: Path, run_profile: Command) -> None:
    write(tmp_path / "tasks.jsonl", [{"question": task} for task in range(3)])
    write(tmp_path / "rollouts.jsonl", [row(task, repeat, float(task)) for task in range(2) for repeat in range(2)])
    files = {"input": "tasks", "rollouts": "rollouts", "output": "profiled"}
    done = run_profile(*(f"+{key}_jsonl_fpath={name}.jsonl" for key, name in files.items()), "+pass_threshold=1.0")
    assert done.status == 0, done.err
    assert "4 of 6 measured" in done.out
    profiled = read_rows(tmp_path / "profiled.jsonl")
    found = [(one["question"], one["pass_rate_passed"], one["avg_reward"]) for one in profiled]
    assert found == [(0, 0, 0.0), (1, 2, 1.0)]


@pytest.mark.parametrize("form", ["gz", "zst", "parquet", "arrow"])
def test_tasks_of_a_compressed_dataset_are_counted_and_joined(tmp_path: Path, run_profile: Command, form: str) -> None:
    write_packed(tmp_path / f"tasks.{form}", form)
    write(tmp_path / "rollouts.jsonl", [row(task, 0, float(task)) for task in range(2)])
    done = run_profile("+jsonl_fpath=rollouts.jsonl", f"+input_jsonl_fpath=tasks.{form}", "+output_jsonl_fpath=o.jsonl")
    assert done.status == 0, done.err
    assert numbers(tmp_path / "rollouts_profile")["runs"][0]["coverage"]["tasks_expected"] == len(ROWS)
    assert [one["prompt_id"] for one in read_rows(tmp_path / "o.jsonl")] == [one["prompt_id"] for one in ROWS[:2]]


@pytest.mark.parametrize(
    "where", ["where=reward < 0.5 and tool_calls >= 1", '+where="reward < 0.5"', "+where= reward == 0"]
)
def test_an_expression_selects_the_rollouts_of_the_report(tmp_path: Path, run_profile: Command, where: str) -> None:
    write(tmp_path / "rollouts.jsonl", grid([1, 2], 3))
    done = run_profile("+jsonl_fpath=rollouts.jsonl", where)
    assert done.status == 0, done.err
    assert "rollouts: 3 measured" in done.out


def test_a_selection_of_rollouts_does_not_replace_the_full_report(rollouts: Path, run_profile: Command) -> None:
    run_profile(str(rollouts), "--output-dir", "reports")
    run_profile(str(rollouts), "--output-dir", "reports", "--where", "reward < 0.5")
    assert {path.name for path in Path("reports").glob("*.md")} == {"profile.md", "profile_where_reward_lt_0_5.md"}

"""ng_prepare_data with the arguments of a user."""

from __future__ import annotations

import gzip
from pathlib import Path

import orjson
import pytest
import yaml

from rollyard.services.cli import prepare_data
from rollyard.services.cli.collect_rollouts import CollectOptions
from rollyard.services.errors import OperatorError
from rollyard.services.metrics.loader.load_run import load
from rollyard.services.types import Json
from tests.support.commands import command, config, in_this_process, ng_run
from tests.support.stacks import AGENT, EXAMPLES, SOKOBAN, read_rows
from tests.unit.services.datasets.files import row, rows, write_rows


def test_a_mixture_file_is_written_as_rows_that_can_be_collected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_rows(tmp_path / "one.jsonl", rows("a", 6))
    two = write_rows(tmp_path / "two.jsonl", rows("b", 3))
    mix = tmp_path / "mix.yaml"
    datasets = [{"name": "a", "path": str(one), "agent_name": "x"}, {"name": "b", "path": str(two)}]
    mix.write_text(yaml.safe_dump({"data": {"dataset": "mixed", "datasets": datasets}}))
    out = tmp_path / "new/train.jsonl"
    line = [f"+data={mix}", "+agent_name=y", f"+output_jsonl_fpath={out}"]
    assert prepare_data.run(line) == 0
    prepared = read_rows(out)
    assert sorted(one["prompt_id"] for one in prepared) == [*(f"a{n}" for n in range(6)), *(f"b{n}" for n in range(3))]
    assert {one["agent_ref"]["name"] for one in prepared if one["dataset_name"] == "a"} == {"x"}
    assert "9 tasks of 2 datasets" in capsys.readouterr().out


def test_invalid_rows_are_reported_by_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [row("fine"), b"{broken"])
    out = tmp_path / "out.jsonl"
    assert prepare_data.run([f"+input_jsonl_fpath={path}", f"+output_jsonl_fpath={out}"]) == 1
    assert "line 2: is not JSON" in capsys.readouterr().out
    assert not out.exists()


def test_plain_files_keep_their_order(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows("r", 20))
    out = tmp_path / "out.jsonl"
    assert prepare_data.run([f"+input_jsonl_fpath=[{path}]", f"+output_jsonl_fpath={out}", "+agent_name=x"]) == 0
    assert [one["prompt_id"] for one in read_rows(out)] == [f"r{number}" for number in range(20)]


def test_an_empty_file_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare_data.run([f"+input_jsonl_fpath={write_rows(tmp_path / 'rows.jsonl', [b''])}"]) == 1
    assert "rows        none" in capsys.readouterr().out


def test_with_json_stdout_is_only_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows("r", 3))
    line = [f"+input_jsonl_fpath={path}", f"+output_jsonl_fpath={tmp_path / 'out.jsonl'}", "+agent_name=x"]
    assert prepare_data.run([*line, "+json=true"]) == 0
    printed = capsys.readouterr()
    assert orjson.loads(printed.out)[0]["rows"] == 3
    assert "written   3 tasks of 1 dataset" in printed.err


@pytest.mark.parametrize("output", ["rows.jsonl", "test.jsonl", "rollouts.jsonl"])
def test_inputs_and_rollouts_are_never_overwritten(tmp_path: Path, output: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows("r", 3))
    write_rows(tmp_path / "test.jsonl", rows("t", 3))
    for name in ("rollouts.jsonl", "rollouts_manifest.json"):
        (tmp_path / name).touch()
    line = [f"+input_jsonl_fpath={path}", f"+against={tmp_path / 'test.jsonl'}", "+agent_name=x"]
    with pytest.raises(OperatorError, match="would be overwritten"):
        prepare_data.run([*line, f"+output_jsonl_fpath={tmp_path / output}"])
    with pytest.raises(OperatorError, match="would be overwritten"):
        prepare_data.run([line[0], f"+rollouts_jsonl_fpath={tmp_path / 'test.jsonl'}", f"+order_fpath={path}"])


def test_duplicate_ids_in_a_written_mixture_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows("r", 3))
    both = f"+data={{datasets: [{{name: a, path: {path}}}, {{name: b, path: {path}, count: 2}}]}}"
    assert prepare_data.run([both, f"+output_jsonl_fpath={tmp_path / 'out.jsonl'}", "+agent_name=x"]) == 0
    assert "2 ids occur more than once" in capsys.readouterr().out


def test_a_curriculum_of_datasets_with_common_ids_is_rejected(tmp_path: Path) -> None:
    one, two = (write_rows(tmp_path / f"{name}.jsonl", [row(name, id=1)]) for name in "ab")
    line = [f"+rollouts_jsonl_fpath={tmp_path / 'r.jsonl'}", f"+order_fpath={tmp_path / 'order.txt'}"]
    with pytest.raises(OperatorError, match="build one curriculum per file"):
        prepare_data.run([f"+input_jsonl_fpath=[{one},{two}]", *line])


@pytest.mark.parametrize(
    "arguments",
    [
        ["+input_jsonl_fpath=a.jsonl", "+data=b.yaml"],
        ["+input_jsonl_fpath=a.jsonl", "+order_fpath=o.txt"],
        [
            "+input_jsonl_fpath=a.jsonl",
            "+order_fpath=o.txt",
            "+rollouts_jsonl_fpath=r.jsonl",
            "+output_jsonl_fpath=b.jsonl",
        ],
    ],
    ids=len,
)
def test_conflicting_options_are_rejected(arguments: list[str]) -> None:
    with pytest.raises(OperatorError, match=r"exactly one of|a curriculum"):
        prepare_data.run(arguments)


def test_a_missing_input_is_a_usage_error() -> None:
    with pytest.raises(OperatorError, match=r"\+input_jsonl_fpath"):
        prepare_data.run([])


@pytest.mark.parametrize("given", [{}, {"input_jsonl_fpath": "a.jsonl", "data": "b.yaml"}])
def test_a_collection_needs_exactly_one_of_a_file_and_a_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: dict[str, str]
) -> None:
    assert {"input_jsonl_fpath", "data"} <= set(CollectOptions.model_fields)
    monkeypatch.chdir(tmp_path)
    options = [f"+{key}={value}" for key, value in given.items()]
    refused = in_this_process("ng_collect_rollouts", "+output_jsonl_fpath=out.jsonl", *options, capsys=capsys)
    assert (refused.status, "exactly one of" in refused.err) == (2, True)


async def test_a_mixture_is_collected_resumed_and_ordered_by_its_own_rollouts(tmp_path: Path) -> None:
    data = f"+data={{datasets: [{{name: sokoban, path: {EXAMPLES}, where: {{num_boxes: 1}}}}]}}"
    async with ng_run(config(SOKOBAN), "+colocate=true", cwd=tmp_path):
        line = [
            "ng_collect_rollouts",
            data,
            f"+agent_name={AGENT}",
            "+num_repeats=4",
            "+output_jsonl_fpath=out/r.jsonl",
        ]
        first = await command(*line, cwd=tmp_path)
        again = await command(*line, cwd=tmp_path)
    assert (first.status, again.status) == (0, 0), first.err
    assert "resuming" in again.err
    found = read_rows(tmp_path / "out/r.jsonl")
    assert {one["dataset_name"] for one in found} == {"sokoban"}
    assert all(one["prompt_id"] == str(one["level_id"]) for one in found)

    order = ["+rollouts_jsonl_fpath=out/r.jsonl", "+order_fpath=out/order.txt", "+pass_at=4"]
    prepared = await command("ng_prepare_data", data, *order, cwd=tmp_path)
    assert prepared.status == 0, prepared.err
    run = load(tmp_path / "out/r.jsonl")
    assert run.by_task is not None and run.by_task.solve_rate is not None
    solved = dict(zip(run.by_task.task.tolist(), run.by_task.solve_rate.tolist(), strict=True))
    names = {one["prompt_id"]: one["_ng_task_index"] for one in found}
    rates = [solved[names[name]] for name in (tmp_path / "out/order.txt").read_text().split()]
    assert len(rates) == len(solved)
    assert rates == sorted(rates)


async def test_rollouts_contain_the_rows_of_a_compressed_file_unchanged(tmp_path: Path) -> None:
    odd: Json = {
        "most": 2**64 - 1,
        "least": -(2**63),
        "real": [0.1, 5e-324, 1.7976931348623157e308, 0.30000000000000004],
        "text": '\u0000 \u2028 \x85 √ 😀 \\u0041 "',
        "": {"a:b": [None, True, {}, []]},
    }
    played = next(one for one in read_rows(EXAMPLES) if one["num_boxes"] == 1)
    content = b"".join(orjson.dumps({**played, "level_id": f"odd {number}", "odd": odd}) + b"\n" for number in range(2))
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(content))
    async with ng_run(config(SOKOBAN), "+colocate=true", cwd=tmp_path):
        line = ["ng_collect_rollouts", "+input_jsonl_fpath=rows.jsonl.gz", f"+agent_name={AGENT}", "+num_repeats=2"]
        done = await command(*line, "+output_jsonl_fpath=out.jsonl", cwd=tmp_path)
    assert done.status == 0, done.err
    assert [one["odd"] for one in read_rows(tmp_path / "out.jsonl")] == [odd] * 4

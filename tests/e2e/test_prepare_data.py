from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
import yaml

from rollyard.analysis.metrics.load import load
from rollyard.cli import prepare_data
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from tests.support.commands import Finished, in_this_process, running_stack
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
    assert "9 tasks" in capsys.readouterr().out


def test_plain_files_keep_their_order(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows("r", 20))
    out = tmp_path / "out.jsonl"
    assert prepare_data.run([f"+input_jsonl_fpath=[{path}]", f"+output_jsonl_fpath={out}", "+agent_name=x"]) == 0
    assert [one["prompt_id"] for one in read_rows(out)] == [f"r{number}" for number in range(20)]


def test_with_json_stdout_is_only_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows("r", 3))
    line = [f"+input_jsonl_fpath={path}", f"+output_jsonl_fpath={tmp_path / 'out.jsonl'}", "+agent_name=x"]
    assert prepare_data.run([*line, "+json=true"]) == 0
    printed = capsys.readouterr()
    assert orjson.loads(printed.out)[0]["rows"] == 3
    assert "3 tasks" in printed.err


@pytest.mark.parametrize("output", ["rows.jsonl", "test.jsonl", "rollouts.jsonl"])
def test_inputs_and_rollouts_are_never_overwritten(tmp_path: Path, output: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows("r", 3))
    write_rows(tmp_path / "test.jsonl", rows("t", 3))
    for name in ("rollouts.jsonl", "rollouts_manifest.json"):
        (tmp_path / name).touch()
    line = [f"+input_jsonl_fpath={path}", f"+against={tmp_path / 'test.jsonl'}", "+agent_name=x"]
    with pytest.raises(OperatorError, match=re.escape(output)):
        prepare_data.run([*line, f"+output_jsonl_fpath={tmp_path / output}"])
    with pytest.raises(OperatorError, match=re.escape(path.name)):
        prepare_data.run([line[0], f"+rollouts_jsonl_fpath={tmp_path / 'test.jsonl'}", f"+order_fpath={path}"])


def test_a_curriculum_of_datasets_with_common_ids_is_rejected(tmp_path: Path) -> None:
    one, two = (write_rows(tmp_path / f"{name}.jsonl", [row(name, id=1)]) for name in "ab")
    line = [f"+rollouts_jsonl_fpath={tmp_path / 'r.jsonl'}", f"+order_fpath={tmp_path / 'order.txt'}"]
    with pytest.raises(OperatorError, match="curriculum"):
        prepare_data.run([f"+input_jsonl_fpath=[{one},{two}]", *line])


@pytest.fixture(scope="module")
def stack_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder: Path = tmp_path_factory.mktemp("run")
    with running_stack(configs=SOKOBAN, folder=folder):
        yield folder


@pytest.fixture
def run(stack_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Path]:
    monkeypatch.chdir(stack_folder)

    def run_command(*words: str, found: str = "") -> Path:
        done: Finished = in_this_process(*words, capsys=capsys)
        assert (done.status, found in done.err) == (0, True), done.err
        return stack_folder

    return run_command


def test_a_mixture_is_collected_resumed_and_ordered_by_its_own_rollouts(run: Callable[..., Path]) -> None:
    data = f"+data={{datasets: [{{name: sokoban, path: {EXAMPLES}, where: {{num_boxes: 1}}}}]}}"
    line = ("ng_collect_rollouts", data, f"+agent_name={AGENT}", "+num_repeats=4", "+output_jsonl_fpath=out/r.jsonl")
    run(*line)
    folder = run(*line, found="resuming")
    found = read_rows(folder / "out/r.jsonl")
    assert {one["dataset_name"] for one in found} == {"sokoban"}
    assert all(one["prompt_id"] == str(one["level_id"]) for one in found)
    run("ng_prepare_data", data, "+rollouts_jsonl_fpath=out/r.jsonl", "+order_fpath=out/order.txt", "+pass_at=4")
    profile = load(folder / "out/r.jsonl")
    assert profile.by_task is not None and profile.by_task.solve_rate is not None
    solved = dict(zip(profile.by_task.task.tolist(), profile.by_task.solve_rate.tolist(), strict=True))
    names = {one["prompt_id"]: one["_ng_task_index"] for one in found}
    rates = [solved[names[name]] for name in (folder / "out/order.txt").read_text().split()]
    assert len(rates) == len(solved)
    assert rates == sorted(rates)


def test_rollouts_contain_the_rows_of_a_compressed_file_unchanged(run: Callable[..., Path], stack_folder: Path) -> None:
    odd: Json = {
        "most": 2**64 - 1,
        "least": -(2**63),
        "real": [0.1, 5e-324, 1.7976931348623157e308, 0.30000000000000004],
        "text": '\u0000 \u2028 \x85 √ 😀 \\u0041 "',
        "": {"a:b": [None, True, {}, []]},
    }
    played = next(one for one in read_rows(EXAMPLES) if one["num_boxes"] == 1)
    content = b"".join(orjson.dumps({**played, "level_id": f"odd {number}", "odd": odd}) + b"\n" for number in range(2))
    (stack_folder / "rows.jsonl.gz").write_bytes(gzip.compress(content))
    line = ("ng_collect_rollouts", "+input_jsonl_fpath=rows.jsonl.gz", f"+agent_name={AGENT}", "+num_repeats=2")
    run(*line, "+output_jsonl_fpath=out.jsonl")
    assert [one["odd"] for one in read_rows(stack_folder / "out.jsonl")] == [odd] * 4

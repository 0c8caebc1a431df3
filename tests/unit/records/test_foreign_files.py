"""Files of other programs, which commands open as rollout files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.cli import export
from rollyard.records import foreign_files
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.foreign_files import SOURCE, rollout_file
from rollyard.records.inspect_log import reward_fields
from rollyard.records.optional import is_installed
from rollyard.records.rewards import mask_of
from rollyard.records.rollout_file import Rollouts
from rollyard.records.types import Json
from tests.support.rollout_files import grid, write
from tests.support.rollout_kinds import FAILURE, KINDS, PARTIAL


def trajectory(task: str = "Do it.", **more: Any) -> Json:
    steps = [{"step_id": 1, "source": "user", "message": task}, {"step_id": 2, "source": "agent", "message": "done"}]
    agent = {"name": "terminus-2", "version": "2.0"}
    return {"schema_version": "ATIF-v1.7", "agent": agent, "steps": steps, **more}


def save(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    return path


def rows(path: Path) -> list[Json]:
    return [dict(row) for row in Rollouts(path)]


def keys(path: Path) -> list[tuple[int, int]]:
    return [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows(path)]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A folder that ng_export wrote, with a rollout of every kind and two failed attempts."""
    found = [{**row, "_ng_task_index": task, "_ng_rollout_index": 0} for task, row in enumerate(KINDS.values())]
    path = write(tmp_path / "run.jsonl", found)
    write(tmp_path / "run_failures.jsonl", [FAILURE, {**FAILURE, "_ng_attempt_index": 3, "partial": PARTIAL}])
    export.run([str(path)])
    return tmp_path / "run_atif"


def test_an_exported_folder_is_read_as_the_rollouts_that_were_exported(exported: Path) -> None:
    opened = rollout_file(exported)
    without = [{key: value for key, value in row.items() if key != SOURCE} for row in rows(opened)]
    assert without == rows(exported.with_name("run.jsonl"))
    failed = rows(opened.with_name(f"{opened.stem}_failures.jsonl"))
    assert [{key: value for key, value in row.items() if key != SOURCE} for row in failed] == rows(
        exported.with_name("run_failures.jsonl")
    )


def test_an_exported_folder_has_the_layout_of_nemo_gym(exported: Path) -> None:
    entries = rows(exported / "manifest.jsonl")
    assert entries[0].keys() == {"trajectory_path", "_ng_task_index", "_ng_rollout_index", "expected_sha256"}
    assert [entry["trajectory_path"] for entry in entries] == [f"{task}-0.json" for task in range(len(entries))]
    assert sorted(path.name for path in (exported / "failures").iterdir()) == ["3-1-2.json", "3-1-3.json"]


def test_a_folder_that_is_exported_again_keeps_what_it_says_of_its_run(exported: Path) -> None:
    export.run([str(exported), "--output-dir", str(exported.with_name("again"))])
    for file in exported.glob("*.json"):
        assert file.read_bytes() == (exported.with_name("again") / file.name).read_bytes()


def test_a_row_that_no_trajectory_can_be_made_of_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [{**KINDS["text"], "_ng_atif": [{"op": "remove", "path": "/agent"}]}])
    with pytest.raises(RunError, match=r"run\.jsonl: task 3, repeat 1 cannot be exported: agent: field required"):
        export.run([str(path)])
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_rollouts_is_opened_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "rollouts.jsonl", grid([1], 2))
    assert rollout_file(path) == path
    assert list(tmp_path.iterdir()) == [path]


def test_json_lines_of_trajectories_are_repeats_of_tasks_with_the_same_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "all.jsonl", [trajectory("a"), trajectory("b"), trajectory("a")])
    opened = rollout_file(path)
    assert opened == tmp_path / "all.jsonl.rollouts.jsonl"
    assert keys(opened) == [(0, 0), (1, 0), (0, 1)]
    assert [row[SOURCE]["file"] for row in rows(opened)] == ["all.jsonl:1", "all.jsonl:2", "all.jsonl:3"]


def test_the_keys_that_nemo_gyms_export_writes_are_kept(tmp_path: Path) -> None:
    source = {"task_index": 7, "rollout_index": 2}
    opened = rollout_file(save(tmp_path / "7-2.json", trajectory(extra={"nemo_gym": {"source": source}})))
    assert keys(opened) == [(7, 2)]


def test_a_job_of_harbor_has_the_rewards_and_the_failures_of_its_trials(tmp_path: Path) -> None:
    slow = {"exception_type": "AgentTimeoutError", "exception_message": "slow"}
    results: dict[str, Json] = {
        "a__1": {"task_name": "a", "verifier_result": {"rewards": {"reward": 1.0}}},
        "a__2": {"task_name": "a", "verifier_result": {"rewards": {"reward": 0.5, "style": 0}}},
        "b__1": {"task_name": "b", "exception_info": slow, "reward_valid": False},
        "b__2": {"task_name": "b", "verifier_result": {"rewards": {"reward": 1.0}}, "reward_valid": False},
    }
    for name, result in results.items():
        save(tmp_path / "job" / name / "agent" / "trajectory.json", trajectory())
        save(tmp_path / "job" / name / "result.json", {"trial_name": name, **result})
    save(tmp_path / "job" / "result.json", {"stats": {}})
    opened = rollout_file(tmp_path / "job")
    assert keys(opened) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    first, second, third, fourth = rows(opened)
    assert (first["reward"], first["trial_name"]) == (1.0, "a__1")
    assert second["reward_components"] == {"reward": 0.5, "style": 0}
    assert (third.get("reward"), third["failure_kind"], third["exception"]) == (None, "AgentTimeoutError", "slow")
    assert mask_of(fourth) == "invalid_reward"


def test_a_trial_of_several_steps_has_the_reward_of_each(tmp_path: Path) -> None:
    rewards = {"x": 1, "y": 0}
    steps = [{"step_name": name, "verifier_result": {"rewards": {"reward": each}}} for name, each in rewards.items()]
    for step in rewards:
        save(tmp_path / "trial" / "steps" / step / "agent" / "trajectory.json", trajectory())
    save(tmp_path / "trial" / "result.json", {"task_name": "a", "trial_name": "a__1", "step_results": steps})
    found = rows(rollout_file(tmp_path / "trial"))
    assert [(row["task_name"], row["reward"]) for row in found] == [("a/x", 1), ("a/y", 0)]


def test_images_are_only_read_from_beside_the_document(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"secret")
    save(tmp_path / "t" / "images" / "a.png", 1)
    parts = [
        {"type": "image", "source": {"media_type": "image/png", "path": path}}
        for path in ("images/a.png", "../secret.png", str(secret), "images/none.png")
    ]
    document = trajectory(parts)  # type: ignore[arg-type]
    (row,) = rows(rollout_file(save(tmp_path / "t" / "trajectory.json", document)))
    urls = [part["image_url"] for part in row["responses_create_params"]["input"][0]["content"]]
    assert urls == ["data:image/png;base64,MQ==", "../secret.png", str(secret), "images/none.png"]


def test_an_image_beyond_those_that_a_document_may_have_in_all_stays_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_files, "_MAX_BYTES_OF_IMAGES", 2)
    source = {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}
    for name in "xy":
        save(tmp_path / "t" / f"{name}.json", trajectory([source] * 3))  # type: ignore[arg-type]
        (tmp_path / "t" / "a.png").write_bytes(b"1")
    for row in rows(rollout_file(tmp_path / "t")):
        urls = [part["image_url"] for part in row["responses_create_params"]["input"][0]["content"]]
        assert urls == ["data:image/png;base64,MQ==", "data:image/png;base64,MQ==", "a.png"]


def test_sources_beside_each_other_have_different_rollout_files(tmp_path: Path) -> None:
    sources = [save(tmp_path / "x.json", trajectory()), write(tmp_path / "x.jsonl", [trajectory()])]
    sources.append(save(tmp_path / "x" / "a.json", trajectory()).parent)
    made = [rollout_file(source).name for source in sources]
    assert made == ["x.json.rollouts.jsonl", "x.jsonl.rollouts.jsonl", "x.rollouts.jsonl"]


def test_the_made_file_stays_if_nothing_changed_and_is_replaced_otherwise(tmp_path: Path) -> None:
    path = save(tmp_path / "t.json", trajectory())
    before = rollout_file(path).stat().st_ino
    assert rollout_file(path).stat().st_ino == before
    save(path, trajectory("Do something else."))
    (row,) = rows(rollout_file(path))
    assert row["responses_create_params"]["input"][0]["content"] == "Do something else."


def test_a_file_of_the_user_is_not_overwritten(tmp_path: Path) -> None:
    path = save(tmp_path / "t.json", trajectory())
    kept = write(tmp_path / "t.json.rollouts.jsonl", grid([1], 1))
    with pytest.raises(OperatorError, match=r"t\.json\.rollouts\.jsonl, which exists"):
        rollout_file(path)
    assert rows(kept) == grid([1], 1)


def test_notes_beside_the_made_file_survive_another_opening(tmp_path: Path) -> None:
    opened = rollout_file(save(tmp_path / "t.json", trajectory()))
    notes = write(opened.with_name(f"{opened.stem}_notes.jsonl"), [{"label": "x"}])
    assert rollout_file(tmp_path / "t.json") == opened
    assert notes.exists()


def test_a_file_beside_which_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / f"{'t' * 231}.json", trajectory())  # a temporary file's name is too long
    with pytest.raises(OperatorError, match="cannot be written beside it"):
        rollout_file(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"schema_version": "ATIF-v1.7",', "is not JSON"),
        (b"", "is not JSON"),
        (b"[\n1]", "found a list, expected an object whose schema_version begins with ATIF-v1"),
        (b"[1]", "found a list, expected an object"),
        (b'{\n"steps": []}', "found keys 'steps', expected an object"),
        (b'{"steps": []}', "found keys 'steps', expected an object"),
        (b'{"schema_version": "ATIF-v9"}', "agent: field required"),
        (orjson.dumps(trajectory(schema_version="ATIF-v2.0")), "expected ATIF-v1.0 to ATIF-v1.8"),
        (orjson.dumps(trajectory(steps=[{"step_id": 1, "source": "user"}])), "steps.0.message: field required"),
        (orjson.dumps(trajectory(extra={"rollyard": {"feilds": {}}})), "extra.rollyard: feilds"),
        (orjson.dumps(trajectory(extra={"rollyard": {"patch": [{"op": "move"}]}})), "extra.rollyard.patch"),
    ],
)
def test_a_malformed_trajectory_is_refused_with_its_file_and_field(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(RunError) as raised:
        rollout_file(path)
    assert str(path) in str(raised.value)
    assert expected in str(raised.value)
    assert list(tmp_path.iterdir()) == [path]


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "all.jsonl", [trajectory(), {"schema_version": "ATIF-v1.7"}])
    with pytest.raises(RunError, match=r"all\.jsonl: line 2: agent: field required"):
        rollout_file(path)


def test_trajectories_with_and_without_keys_are_not_mixed(tmp_path: Path) -> None:
    source = {"task_index": 7, "rollout_index": 2}
    save(tmp_path / "f" / "a.json", trajectory(extra={"nemo_gym": {"source": source}}))
    save(tmp_path / "f" / "b.json", trajectory())
    with pytest.raises(OperatorError, match=r"b\.json has no index of its task"):
        rollout_file(tmp_path / "f")


def test_a_manifest_that_names_a_missing_file_is_refused(exported: Path) -> None:
    (exported / "3-0.json").unlink()
    with pytest.raises(RunError, match=r"3-0\.json cannot be read"):
        rollout_file(exported)


@pytest.mark.parametrize("name", ["../secret.json", "/etc/hostname", "a\0b"])
def test_a_manifest_that_names_a_file_outside_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    save(tmp_path / "secret.json", trajectory())
    (tmp_path / "t").mkdir()
    manifest = write(tmp_path / "t" / "manifest.jsonl", [{"trajectory_path": name}])
    with pytest.raises(RunError) as raised:
        rollout_file(tmp_path / "t")
    assert f"{manifest} names {name!r}" in str(raised.value)


def test_a_manifest_of_absolute_paths_is_read_in_a_folder_given_relatively(here: Path) -> None:
    file = save(here / "t" / "a.json", trajectory())
    write(here / "t" / "manifest.jsonl", [{"trajectory_path": str(file)}])
    (row,) = rows(rollout_file(Path("t")))
    assert row[SOURCE]["file"] == "a.json"


def test_an_attempt_that_was_written_often_is_exported_as_often(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", grid([1], 1))
    write(tmp_path / "run_failures.jsonl", [FAILURE] * 60)
    export.run([str(path)])
    names = {file.name for file in (tmp_path / "run_atif" / "failures").iterdir()}
    assert names == {"3-1-2.json", *(f"3-1-2-again-{number}.json" for number in range(1, 60))}


@pytest.mark.skipif(is_installed("inspect_ai"), reason="inspect_ai is installed")
def test_a_log_of_inspect_needs_its_extra(tmp_path: Path) -> None:
    (tmp_path / "log.eval").write_bytes(b"PK\x03\x04")
    with pytest.raises(OperatorError, match=r"inspect_ai.*rollyard\[inspect\]"):
        rollout_file(tmp_path / "log.eval")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("C", {"reward": 1.0, "success": True}),
        ("P", {"reward": 0.5, "success": False}),
        ("N", {"reward": 0.0, "success": False}),
        ("Yes", {"reward": 1.0, "success": True}),
        (True, {"reward": 1.0, "success": True}),
        ("0.5", {"reward": 0.5}),
        (2, {"reward": 2.0}),
        ([1, 0], {"reward": 0.5}),
        ({"a": "C", "b": 0}, {"reward": 0.5}),
        ({"a": "C", "why": "a text"}, {}),
        ({"a": "C", "b": None}, {}),
        (10**400, {}),
        ("nearly right", {}),
        ("nan", {}),
        ({"a": float("nan"), "b": 1}, {}),
        ([], {}),
    ],
)
def test_a_score_of_inspect_is_a_reward_only_if_it_is_a_number_or_a_grade(value: Any, expected: Json) -> None:
    assert reward_fields(value) == expected

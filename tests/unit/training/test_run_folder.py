"""The run folder: lock, settings, record and git state."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from rollyard.records.errors import OperatorError, RunError
from rollyard.training.run_folder import TrainingFolder, check_rows, completed_step, updates_of, version_names
from rollyard.training.train_config import TrainConfig


def opened(root: Path, **settings: Any) -> AbstractContextManager[TrainingFolder]:
    config = TrainConfig(model="m", output_dir=root / "run", **settings)
    return TrainingFolder.opened(config, command=["ng_train", "x.yaml"], project=root, print_line=lambda text: None)


def begin(root: Path, **settings: Any) -> TrainingFolder:
    with opened(root, **settings) as folder:
        return folder


def test_the_config_has_every_setting_with_its_default(tmp_path: Path) -> None:
    folder = begin(tmp_path, group_size=4)
    config = yaml.safe_load(folder.paths.config.read_text())
    assert (config["group_size"], config["optimizer"]["max_grad_norm"]) == (4, 0.5)
    assert TrainConfig.model_validate(config) == folder.config


def test_the_record_has_one_id_and_the_command_and_versions_of_each_start(tmp_path: Path) -> None:
    first, second = begin(tmp_path), begin(tmp_path)
    assert first.run_id == second.run_id and (first.starts, second.starts) == (1, 2)
    record = orjson.loads(second.paths.run_record.read_bytes())
    assert [start["command"] for start in record["starts"]] == [["ng_train", "x.yaml"]] * 2
    assert record["name"] == "run" and record["starts"][0]["versions"]["rollyard"]


def test_only_one_process_trains_in_a_folder(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(RunError, match=rf"{tmp_path}/run\b"):
        begin(tmp_path)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    def start_and_die() -> None:
        with opened(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=start_and_die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert begin(tmp_path).starts == 2


def test_other_settings_are_refused_by_name_with_both_values_and_nothing_changes(tmp_path: Path) -> None:
    folder = begin(tmp_path, loss={"algorithm": "gspo"}, seed=1)
    before = {path: path.read_bytes() for path in folder.paths.root.rglob("*") if path.is_file()}
    with pytest.raises(OperatorError) as error:
        begin(tmp_path, loss={"algorithm": "grpo"}, seed=2)
    assert "loss.algorithm was gspo, now grpo; seed was 1, now 2." in str(error.value)
    assert {path: path.read_bytes() for path in folder.paths.root.rglob("*") if path.is_file()} == before


def test_settings_without_influence_on_the_curve_may_change(tmp_path: Path) -> None:
    model = "+policy_model_name=m"
    begin(tmp_path, overrides=["+policy_base_url=http://h:8000/v1", model])
    changed: dict[str, Any] = {"head": "127.0.0.1:1234", "loggers": ["wandb"], "checkpoint_interval": 1}
    changed |= {"weights": {"timeout_s": 5}, "evaluation": {"interval": 1}, "optimizer": {"micro_token_budget": 2048}}
    changed |= {"max_steps": 100, "overrides": ["+policy_base_url=http://h:8001/v1", model]}
    folder = begin(tmp_path, **changed)
    assert TrainConfig.model_validate(yaml.safe_load(folder.paths.config.read_text())) == folder.config
    with pytest.raises(OperatorError, match="overrides was"):
        begin(tmp_path, **{**changed, "overrides": [model, "+a.b=1"]})


def test_the_number_of_steps_may_not_change_if_the_learning_rate_depends_on_it(tmp_path: Path) -> None:
    begin(tmp_path, max_steps=5, optimizer={"lr_scheduler": "cosine"})
    with pytest.raises(OperatorError, match="max_steps was 5, now 6"):
        begin(tmp_path, max_steps=6, optimizer={"lr_scheduler": "cosine"})


def test_a_setting_that_is_new_in_this_version_has_its_default_in_older_runs(tmp_path: Path) -> None:
    file = begin(tmp_path).paths.config
    config = yaml.safe_load(file.read_text())
    del config["resample"]
    file.write_text(yaml.safe_dump(config))
    begin(tmp_path)


def test_a_config_that_cannot_be_read_is_an_error_with_its_path(tmp_path: Path) -> None:
    begin(tmp_path).paths.config.write_text("model: [")
    with pytest.raises(OperatorError, match=r"config\.yaml"):
        begin(tmp_path)


def test_a_run_is_complete_until_it_gets_more_steps_or_loses_its_last_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path, max_steps=3) as folder:
        assert completed_step(folder.config) is None
        (checkpoint := folder.paths.checkpoints / "step_000003").mkdir(parents=True)
        folder.record_end("complete", 3)
    assert completed_step(folder.config) == 3
    assert completed_step(folder.config.model_copy(update={"max_steps": 4})) is None
    checkpoint.rmdir()
    assert completed_step(folder.config) is None


@pytest.mark.parametrize(
    ("rows", "evaluation", "changed"), [("b", "c", "its dataset had"), ("a", "d", "its evaluation dataset had")]
)
def test_a_dataset_with_other_rows_is_refused(rows: str, evaluation: str, changed: str, tmp_path: Path) -> None:
    for start in (1, 2):
        with opened(tmp_path) as folder:
            folder.check_data({"input_sha256": "a"}, {"input_sha256": "c"})
            assert folder.starts == start
    with opened(tmp_path) as folder, pytest.raises(OperatorError, match=changed):
        folder.check_data({"input_sha256": rows}, {"input_sha256": evaluation})
    with pytest.raises(OperatorError, match=changed):
        check_rows(folder.paths, {"input_sha256": rows}, {"input_sha256": evaluation})


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


def test_what_git_has_not_committed_is_in_the_folder(tmp_path: Path) -> None:
    git(tmp_path, "init", "-b", "trunk")
    (tmp_path / "tracked.py").write_text("a = 1\n")
    (tmp_path / ".gitignore").write_text("/run\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    (tmp_path / "tracked.py").write_text("a = 2\n")
    (tmp_path / "new.py").write_text("secret = 1\n")
    folder = begin(tmp_path)
    patches = {path.name: path.read_text() for path in folder.paths.patches.iterdir()}
    assert "+a = 2" in patches["git_diff.patch"] and patches["git_diff_cached.patch"] == ""
    assert patches["git_untracked.txt"] == "new.py\n" and " M tracked.py" in patches["git_status.txt"]
    [start] = orjson.loads(folder.paths.run_record.read_bytes())["starts"]
    assert start["git"]["branch"] == "trunk" and len(start["git"]["commit"]) == 40
    begin(tmp_path)
    assert (folder.paths.patches / "start_2" / "git_status.txt").exists()


def test_a_folder_outside_a_repository_has_no_patches(tmp_path: Path) -> None:
    assert not begin(tmp_path).paths.patches.exists()


def test_the_version_of_a_later_start_or_of_repaired_weights_counts_the_same_updates() -> None:
    for version in ("step_000012", "step_000012-r1", "step_000012.1", "step_000012-a1b2-r3.2"):
        assert updates_of(version) == 12
    for version in ("0", "sft", "step_2", "step_000002x"):
        with pytest.raises(RunError, match=f"version '{version}'"):
            updates_of(version)


def test_a_second_start_gives_no_version_the_name_of_an_earlier_one(tmp_path: Path) -> None:
    first = version_names(tmp_path / "weights")(3)
    (tmp_path / "weights" / first).mkdir(parents=True)
    second = version_names(tmp_path / "weights")(3)
    assert second != first and updates_of(second) == 3

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


def opened(root: Path, lines: list[str] | None = None, **settings: Any) -> AbstractContextManager[TrainingFolder]:
    config = TrainConfig(model="m", output_dir=root / "run", **settings)
    lines = [] if lines is None else lines
    return TrainingFolder.opened(config, command=["ng_train", "x.yaml"], project=root, print_line=lines.append)


def test_the_config_has_every_setting_with_its_default(tmp_path: Path) -> None:
    with opened(tmp_path, group_size=4) as folder:
        config = yaml.safe_load(folder.paths.config.read_text())
    assert (config["group_size"], config["optimizer"]["max_grad_norm"]) == (4, 0.5)
    assert TrainConfig.model_validate(config) == folder.config


def test_the_record_has_one_id_and_the_command_and_versions_of_each_start(tmp_path: Path) -> None:
    ids = set()
    for number in (1, 2):
        with opened(tmp_path) as folder:
            assert folder.starts == number
            ids.add(folder.run_id)
    assert len(ids) == 1
    record = orjson.loads(folder.paths.run_record.read_bytes())
    assert [start["command"] for start in record["starts"]] == [["ng_train", "x.yaml"]] * 2
    assert record["name"] == "run" and record["starts"][0]["versions"]["rollyard"]


def test_only_one_process_trains_in_a_folder(tmp_path: Path) -> None:
    with (
        opened(tmp_path),
        pytest.raises(RunError, match=rf"{tmp_path}/run\b"),
        opened(tmp_path),
    ):
        pass
    with opened(tmp_path):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    def start_and_die() -> None:
        with opened(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=start_and_die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with opened(tmp_path) as folder:
        assert folder.starts == 2


def test_other_settings_are_refused_by_name_with_both_values(tmp_path: Path) -> None:
    with opened(tmp_path, loss={"algorithm": "gspo"}, seed=1):
        pass
    with pytest.raises(OperatorError) as error, opened(tmp_path, loss={"algorithm": "grpo"}, seed=2):
        pass
    assert "loss.algorithm was gspo, now grpo; seed was 1, now 2." in str(error.value)


def test_a_refused_start_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, seed=1) as folder:
        pass
    before = {path: path.read_bytes() for path in folder.paths.root.rglob("*") if path.is_file()}
    with pytest.raises(OperatorError), opened(tmp_path, seed=2):
        pass
    assert {path: path.read_bytes() for path in folder.paths.root.rglob("*") if path.is_file()} == before


def test_settings_without_influence_on_the_curve_may_change(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    changed: dict[str, Any] = {
        "head": "127.0.0.1:1234",
        "loggers": ["wandb"],
        "checkpoint_interval": 1,
        "max_steps": 100,
    }
    changed |= {"weights": {"timeout_s": 5}, "evaluation": {"interval": 1}, "optimizer": {"micro_token_budget": 2048}}
    with opened(tmp_path, **changed) as folder:
        assert TrainConfig.model_validate(yaml.safe_load(folder.paths.config.read_text())) == folder.config


def test_an_endpoint_may_have_another_address_when_the_run_resumes(tmp_path: Path) -> None:
    first, second = ([f"+policy_base_url=http://h:{port}/v1", "+policy_model_name=m"] for port in (8000, 8001))
    with opened(tmp_path, overrides=first):
        pass
    with opened(tmp_path, overrides=second):
        pass
    with pytest.raises(OperatorError, match="overrides was"), opened(tmp_path, overrides=[*second, "+a.b=1"]):
        pass


def test_the_number_of_steps_may_not_change_if_the_learning_rate_depends_on_it(tmp_path: Path) -> None:
    cosine = {"lr_scheduler": "cosine"}
    with opened(tmp_path, max_steps=5, optimizer=cosine):
        pass
    with pytest.raises(OperatorError, match="max_steps was 5, now 6"), opened(tmp_path, max_steps=6, optimizer=cosine):
        pass


def test_a_setting_that_is_new_in_this_version_has_its_default_in_older_runs(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        pass
    config = yaml.safe_load(folder.paths.config.read_text())
    del config["resample"]
    folder.paths.config.write_text(yaml.safe_dump(config))
    with opened(tmp_path):
        pass


def test_a_config_that_cannot_be_read_is_an_error_with_its_path(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        pass
    folder.paths.config.write_text("model: [")
    with pytest.raises(OperatorError, match=r"config\.yaml"), opened(tmp_path):
        pass


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
    with opened(tmp_path) as folder:
        folder.check_data({"input_sha256": "a"}, {"input_sha256": "c"})
    with opened(tmp_path) as folder:
        folder.check_data({"input_sha256": "a"}, {"input_sha256": "c"})
        with pytest.raises(OperatorError, match=changed):
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
    with opened(tmp_path) as folder:
        patches = {path.name: path.read_text() for path in folder.paths.patches.iterdir()}
    assert "+a = 2" in patches["git_diff.patch"] and patches["git_diff_cached.patch"] == ""
    assert patches["git_untracked.txt"] == "new.py\n" and " M tracked.py" in patches["git_status.txt"]
    [start] = orjson.loads(folder.paths.run_record.read_bytes())["starts"]
    assert start["git"]["branch"] == "trunk" and len(start["git"]["commit"]) == 40


def test_each_later_start_has_patches_of_its_own(tmp_path: Path) -> None:
    git(tmp_path, "init")
    for _ in range(2):
        with opened(tmp_path) as folder:
            pass
    assert (folder.paths.patches / "start_2" / "git_status.txt").exists()


def test_a_folder_outside_a_repository_has_no_patches(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        assert not folder.paths.patches.exists()


@pytest.mark.parametrize("version", ["step_000012", "step_000012-r1", "step_000012.1", "step_000012-a1b2-r3.2"])
def test_the_version_of_a_later_start_or_of_repaired_weights_counts_the_same_updates(version: str) -> None:
    assert updates_of(version) == 12


@pytest.mark.parametrize("version", ["0", "sft", "step_2", "step_000002x"])
def test_a_version_of_something_else_is_an_error(version: str) -> None:
    with pytest.raises(RunError, match=f"version '{version}'"):
        updates_of(version)


def test_a_second_start_gives_no_version_the_name_of_an_earlier_one(tmp_path: Path) -> None:
    first = version_names(tmp_path / "weights")(3)
    (tmp_path / "weights" / first).mkdir(parents=True)
    second = version_names(tmp_path / "weights")(3)
    assert second != first and updates_of(second) == 3

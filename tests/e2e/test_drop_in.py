"""docs/drop-in.md: its tables name every command of the original instructions, and its commands run."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollyard.cli.submit import run
from rollyard.launchers.sagemaker.container.uploader import name_in_s3
from rollyard.records.data_files import INSTALLED
from tests.support.commands import Finished, command_environ
from tests.support.doc_pages import command_lines, commands, page
from tests.support.fake_stores import store
from tests.support.stacks import SHARED, read_rows
from tests.support.waiting import deadline_s
from tests.unit.records.test_columns import save_to_disk
from tests.unit.training.test_rlvr import CONFIG as RLVR_CONFIG

Program = Callable[..., Finished]
INSTRUCTIONS = sorted((SHARED / "seeds").glob("*.md"))
ROW = re.compile(r"^\| `(.+?)` \| (.+) \|$", re.MULTILINE)
ROWS: dict[str, str] = dict(ROW.findall(page("drop-in.md")))
SUBMIT = [words for words in commands(page("drop-in.md")) if "rlvr_experiments" in words[1]]


def lines(text: str) -> list[str]:
    """Command lines of the bash blocks, also of indented ones, on one line each, without comments."""
    dedented = re.sub(
        r"^( +)```bash\n.*?^\1```", lambda found: textwrap.dedent(found[0]), text, flags=re.DOTALL | re.MULTILINE
    )
    return [" ".join(re.sub(r"(?<!\S)#.*", "", line).split()) for line in command_lines(dedented)]


def without_environment(line: str) -> str:
    """The line without `NAME=value` and `uv run` in front of the program."""
    return re.sub(r"^(?:(?:[A-Z_]+=\S* )|(?:uv run ))+", "", line)


def row_of(line: str) -> str:
    """The row that names the line: the one with the longest beginning of it."""
    found = [beginning for beginning in ROWS if without_environment(line).startswith(beginning)]
    assert found, f"docs/drop-in.md does not name: {line}"
    return max(found, key=len)


@pytest.mark.parametrize("path", INSTRUCTIONS, ids=lambda path: path.stem)
def test_every_command_of_the_instructions_is_named_and_those_as_written_are_in_the_documentation(path: Path) -> None:
    pages = [page.read_text() for page in (INSTALLED / "docs").glob("*.md")]
    documented = {without_environment(line) for text in pages for line in lines(text)}
    given = lines(path.read_text(errors="replace"))
    assert given
    for line in given:
        if ROWS[row_of(line)].startswith("as written"):
            known = without_environment(line) in documented
            assert known, f"{line}: no page of docs/ has this line, so that no test runs it"


@pytest.mark.skipif(not INSTRUCTIONS, reason="the instructions are not available")
def test_no_row_is_left_over() -> None:
    named = {row_of(line) for path in INSTRUCTIONS for line in lines(path.read_text(errors="replace"))}
    assert named == {*ROWS}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(shutil.copytree(INSTALLED / "examples" / "drop_in", tmp_path / "project"))
    (folder / "configs").mkdir()
    for name in ("qwen3-1.7B-mixed", "my-config", "my-eval"):
        (folder / "configs" / f"{name}.yaml").write_text("model: {path: Qwen/Qwen3-1.7B-Base, source: hub}\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    def run_program(path: str, *arguments: str) -> Finished:
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        with pytest.raises(SystemExit) as exited:
            runpy.run_path(path, run_name="__main__")
        printed = capsys.readouterr()
        return Finished(int(exited.value.code or 0), printed.out, printed.err)

    return run_program


@pytest.mark.parametrize("words", SUBMIT, ids=" ".join)
def test_every_submit_line_is_accepted_and_runs_the_original_program(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    evaluation = ["eval"] if words[1].endswith("submit_eval.py") else []
    assert run([*evaluation, *words[2:], "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert ("entrypoints/eval_benchmarks.py" if evaluation else "entrypoints/train_grpo.py") in out
    assert ("CreateTrainingJob" in out) == ("--local" not in words)
    assert not (project / "docs").exists()


def test_the_scripts_of_sagemaker_run_the_commands(project: Path, program: Program) -> None:
    evaluation = program("src/rlvr_experiments/submit_eval.py", "configs/my-eval.yaml", "--dry-run")
    assert evaluation.status == 0, evaluation.err
    assert "eval-my-eval-" in evaluation.out and "ml.g6e.48xlarge" in evaluation.out
    job = program("src/rlvr_experiments/sagemaker_launcher.py", "--config")
    assert job.status == 1 and "--name" in job.out  # as SageMaker's log shows it


def test_the_training_program_converts_the_config_for_ng_train(project: Path) -> None:
    prepared = project / "resources_servers/gsm8k/data/train.jsonl"
    prepared.parent.mkdir(parents=True)
    prepared.touch()
    found = train(project, RLVR_CONFIG, {})
    assert "no_such_key" in found.err and "configs/grpo.yaml: data_iter.skip_chat_template" in found.out
    converted = yaml.safe_load((project / "results" / f"{RUN}.train.yaml").read_text())
    assert (converted["model"], converted["environments"]) == ("Qwen/Qwen3-1.7B-Base", ["gsm8k"])


RUN = RLVR_CONFIG["run"]["name"]
SAVED = [{"question": f"What is {number} + 1?", "answer": f"So #### {number + 1}"} for number in range(3)]


def train(project: Path, config: dict[str, Any], objects: dict[str, bytes]) -> Finished:
    """Convert a config with these objects in S3. The last argument is refused by ng_train, so that nothing starts."""
    (project / "configs" / "grpo.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "entrypoints/train_grpo.py", "configs/grpo.yaml", "no_such_key=1"]
    with store(objects) as address:
        settings = {
            "AWS_ENDPOINT_URL_S3": address,
            "ROLLYARD_SAGEMAKER_BUCKET": "bucket",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_DEFAULT_REGION": "us-west-2",
            "HF_HUB_OFFLINE": "1",
            "ROLLYARD_SAGEMAKER_ROOT": "/opt/ml",  # as in the container of a local run
            "AWS_MAX_ATTEMPTS": "1",
        }
        env = {**command_environ(), **settings}
        done = subprocess.run(
            command, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=deadline_s()
        )
    assert done.returncode == 2, done.stderr
    return Finished(done.returncode, done.stdout, done.stderr)


def saved(project: Path, prefix: str) -> dict[str, bytes]:
    folder = save_to_disk(project.parent / "saved", SAVED[:2], SAVED[2:])
    return {f"{prefix}{file.name}": file.read_bytes() for file in folder.iterdir()}


def test_the_training_program_reads_the_data_set_that_save_to_disk_wrote_to_s3(project: Path) -> None:
    objects = saved(project, "bucket/rlvr-experiments/datasets/gsm8k_train/")
    assert "no_such_key" in train(project, RLVR_CONFIG, objects).err
    data = yaml.safe_load((project / f"results/{RUN}.train.yaml").read_text())["data"]
    rows = read_rows(project / data["datasets"][0]["path"])
    assert [(row["id"], row["expected_answer"]) for row in rows] == [(f"gsm8k_{n}", str(n + 1)) for n in range(3)]
    assert "no_such_key" in train(project, RLVR_CONFIG, {}).err  # continues with the same rows


def test_the_path_of_a_data_set_may_be_a_folder_in_s3_and_the_run_has_its_name(project: Path) -> None:
    data = {"dataset": "gsm8k", "path": "s3://bucket/mine/"}
    config = RLVR_CONFIG | {"data": data, "run": {"name": "mixed_lr1e5"}}
    assert "no_such_key" in train(project, config, saved(project, "bucket/mine/")).err
    converted = yaml.safe_load((project / "results/mixed_lr1e5.train.yaml").read_text())
    assert converted["output_dir"].endswith("results/mixed_lr1e5")
    assert len(read_rows(project / converted["data"]["datasets"][0]["path"])) == 3


def test_a_data_set_that_is_nowhere_is_named_with_the_places_that_were_tried(project: Path) -> None:
    message = train(project, RLVR_CONFIG, {}).err
    assert "s3://bucket/rlvr-experiments/datasets/gsm8k_train/" in message and "openai/gsm8k" in message


def test_the_last_checkpoint_is_also_the_final_one(project: Path) -> None:
    save_final = runpy.run_path(str(project / "entrypoints/train_grpo.py"))["save_final"]
    checkpoints = project / "checkpoints"
    save_final(checkpoints)  # after a dry run, there is none
    for step in ("step_000004", "step_000008"):
        (checkpoints / step).mkdir(parents=True)
        (checkpoints / step / "config.json").write_text(step)
        (checkpoints / "latest.json").write_text(json.dumps({"last_checkpoint": step}))
        save_final(checkpoints)
        assert (checkpoints / "final" / "config.json").read_text() == step
    assert name_in_s3("final", "mixed") == "mixed_final"


def test_the_training_program_names_an_unset_variable_of_its_config(project: Path, program: Program) -> None:
    (project / "configs" / "grpo.yaml").write_text(yaml.safe_dump(RLVR_CONFIG | {"trace_path": "${oc.env:NO_SUCH}"}))
    found = program("entrypoints/train_grpo.py", "configs/grpo.yaml")
    assert found.status == 2
    assert "trace_path" in found.err and "'NO_SUCH'" in found.err

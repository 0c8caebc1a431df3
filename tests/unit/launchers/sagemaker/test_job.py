"""One host of a job, run as a process in a folder that stands for /opt/ml, without AWS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from rollyard.launchers.sagemaker.container.__main__ import main
from rollyard.launchers.sagemaker.container.programs import Program
from rollyard.launchers.sagemaker.container.ray_cluster import HeadLink, connect, read_status
from rollyard.launchers.sagemaker.job_parameters import read_environment
from rollyard.records.errors import OperatorError, RunError
from tests.support.commands import command_environ
from tests.support.waiting import deadline_s, eventually

Run = Callable[..., tuple[int, str]]
ENTRY = [sys.executable, "-m", "rollyard.launchers.sagemaker.container"]
TRAIN = """
import os, sys, time, pathlib
run = pathlib.Path(os.environ["RLVR_RUN_DIR"])
print("train", sys.argv[1:], os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
for step in (1, 2):
    (run / "checkpoints" / f"step_{step}").mkdir(parents=True)
if "forever" in sys.argv:
    time.sleep(1000)
sys.exit(3 if "fail" in sys.argv else 0)
"""
EVALUATE = """
import os, sys, time, pathlib
checkpoints = pathlib.Path(sys.argv[2])
print("evaluate", pathlib.Path(sys.argv[1]).read_text().strip(), os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
if "once" not in sys.argv:
    time.sleep(1000)
print("rest", sorted(path.name for path in checkpoints.iterdir()), flush=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    code = tmp_path / "ml" / "code"
    code.mkdir(parents=True)
    files = {"train.py": TRAIN, "evaluate.py": EVALUATE, "train.yaml": "training: {}\n", "eval.yaml": "tasks: 7\n"}
    for name, text in files.items():
        (code / name).write_text(text)
    return code.parent


def prepare(root: Path, parameters: Mapping[str, object]) -> dict[str, str]:
    """Write the hyperparameters, and return the environment variables of the job."""
    (root / "input/config").mkdir(parents=True)
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in parameters.items()}
    (root / "input/config/hyperparameters.json").write_text(json.dumps(values))
    return {"ROLLYARD_SAGEMAKER_ROOT": str(root), "TRAINING_JOB_NAME": "j-20260116-011803"}


def start(root: Path, **parameters: object) -> subprocess.Popen[str]:
    environ = command_environ(prepare(root, parameters))
    return subprocess.Popen(ENTRY, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def run(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the job in this process, and returns its exit status and output."""
    handler = signal.getsignal(signal.SIGTERM)

    def run(**parameters: object) -> tuple[int, str]:
        for name, value in prepare(root, parameters).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["container"])
        return main(), capsys.readouterr().out

    yield run
    signal.signal(signal.SIGTERM, handler)


def test_training_and_evaluation_share_the_gpus_and_the_rest_is_evaluated_at_the_end(root: Path) -> None:
    job = start(
        root,
        config="train.yaml",
        command=["python", "train.py", "{config}", "a b", "$(touch x)"],
        eval_config="eval.yaml",
        eval_command=["python", "evaluate.py", "{config}", "{checkpoints}"],
        final_eval_command=["python", "evaluate.py", "{config}", "{checkpoints}", "once"],
        train_gpus="0,1",
        eval_gpus="7",
    )
    out = job.communicate(timeout=deadline_s())[0]
    assert job.returncode == 0, out
    config, run = root / "work/configs/train.yaml", root / "work/run/train_20260116-011803"
    assert f"[train] train ['{config}', 'a b', '$(touch x)'] 0,1" in out
    # ng_eval needs an output folder; what is below output/ is uploaded.
    assert f'[eval] evaluate output_dir: "{run}/output"' in out and "[eval] tasks: 7 7" in out
    assert "[eval] rest ['step_1', 'step_2']" in out
    assert (run / "logs/eval.log").is_file()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("run: {name: mixed_lr1e5}\n", "mixed_lr1e5"),
        ("run: {name: ../a b}\n", "_a_b"),
        ("run: {name: null, seed: 1}\n", "train_20260116-011803"),
        ("run: mixed\n", "train_20260116-011803"),
    ],
)
def test_the_folder_of_a_run_has_the_name_in_its_config(root: Path, run: Run, text: str, name: str) -> None:
    (root / "code/train.yaml").write_text(text)
    status, out = run(config="train.yaml", command=["python", "train.py"])
    assert status == 0, out
    assert (root / "work/run" / name / "checkpoints/step_1").is_dir()


@pytest.mark.parametrize(
    ("parameters", "status", "reason"),
    [
        ({"config": "train.yaml", "command": ["python", "train.py", "fail"]}, 3, " 3: train ['fail'] None"),
        ({"command": ["no-such-program"]}, 1, "'no-such-program'"),
        ({"config": "absent.yaml", "command": ["python"]}, 1, "absent.yaml"),
        ({"config": "train.yaml", "command": "not JSON"}, 1, "hyperparameter command is 'not JSON'"),
    ],
)
def test_the_exit_status_and_the_reason_of_a_failure_are_passed_on(
    root: Path, run: Run, parameters: dict[str, object], status: int, reason: str
) -> None:
    assert run(**parameters)[0] == status
    assert reason in (root / "output/failure").read_text()


def test_a_stopped_job_ends_its_program(root: Path) -> None:
    job = start(root, config="train.yaml", command=["python", "train.py", "forever"])
    log = root / "work/run/train_20260116-011803/logs/program.log"
    eventually("the program", lambda: log.is_file() and "forever" in log.read_text())
    job.send_signal(signal.SIGTERM)
    out = job.communicate(timeout=deadline_s())[0]
    assert job.returncode == 143, out
    assert not (root / "output/failure").exists()


@pytest.mark.parametrize("status", [0, 3, None])
def test_a_worker_learns_the_heads_status_and_notices_its_death(status: int | None) -> None:
    head = HeadLink(0)
    with connect("127.0.0.1", head.port, 5, lambda: False) as worker:
        eventually("the connection", lambda: head.workers)
        assert read_status(worker, 0.01) is None
        if status is None:
            head.close()
            with pytest.raises(RunError, match="without a status"):
                read_status(worker, 5)
        else:
            head.end(status)
            assert read_status(worker, 5) == status
    with pytest.raises(RunError, match="did not answer"):
        connect("127.0.0.1", head.port, 0.1, lambda: False)


def test_the_environment_comes_from_variables_or_from_sagemakers_files(tmp_path: Path) -> None:
    environ = {"ROLLYARD_SAGEMAKER_ROOT": str(tmp_path), "SM_NUM_GPUS": "4", "CUDA_VISIBLE_DEVICES": "0,1,2"}
    variables = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
    environment = read_environment({**environ, **variables, "SM_TRAINING_ENV": '{"job_name": "j"}'})
    assert (environment.job, environment.head, environment.is_head, environment.num_gpus) == ("j", "algo-1", False, 4)
    alone = read_environment(environ)
    assert (alone.hosts, alone.is_head, alone.work) == (("algo-1",), True, tmp_path / "work")
    (tmp_path / "input/config").mkdir(parents=True)
    (tmp_path / "input/config/resourceconfig.json").write_text('{"hosts": ["a", "b"], "current_host": "b"}')
    assert read_environment(environ).current_host == "b"
    assert read_environment({**environ, "SM_NUM_GPUS": ""}).num_gpus == 3  # counted
    wrong_hosts = [("SM_HOSTS", hosts, "hosts") for hosts in ('"algo-1"', '{"a": 1}', "[1]", '[""]')]
    for name, value, named in [("SM_CURRENT_HOST", "c", "'c'"), ("SM_HOSTS", "x", "SM_HOSTS"), *wrong_hosts]:
        with pytest.raises(OperatorError, match=named):
            read_environment({**environ, name: value})


def test_a_program_finds_sagemakers_variables_and_its_checkpoints_below_the_output_are_those_of_the_run(
    root: Path, run: Run
) -> None:
    """SageMaker's toolkit, which sets the variables in its own images, is not used."""
    (root / "code/train.yaml").write_text("output_dir: results/x\n")
    output = "pathlib.Path(sys.argv[1]).read_text().split()[1].strip('\"')"
    variables = "{k: v for k, v in os.environ.items() if k.startswith('SM_')}"
    script = f"import json, os, pathlib, sys; print(json.dumps([{output}, {variables}]))"
    (root / "code/train.py").write_text(script)
    _, printed = run(config="train.yaml", command=["python", "train.py", "{config}"])
    (line,) = [line for line in printed.splitlines() if line.startswith("[program] [")]
    folder, found = json.loads(line.removeprefix("[program] "))
    assert json.loads(found["SM_HOSTS"]) == ["algo-1"] and found["SM_CURRENT_HOST"] == "algo-1"
    assert json.loads(found["SM_TRAINING_ENV"])["job_name"] == "j-20260116-011803"
    assert found["SM_MODEL_DIR"] == str(root / "model") and int(found["SM_NUM_GPUS"]) > 0
    assert (Path(folder) / "checkpoints").resolve() == (Path(folder).parent / "checkpoints").resolve()


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("ng_train: rows.jsonl does not exist\nTry 'ng_train --help'.\n", "ng_train: rows.jsonl does not exist"),
        ("Traceback (most recent call last):\n  x\nValueError: the reason\na later note\n", "ValueError: the reason"),
        ("[rank0]: torch.cuda.OutOfMemoryError: no memory\nERROR: rank 0 ended\n\n", "ERROR: rank 0 ended"),
        ("step 1\nstep 2: 3 errors so far\n", "step 2: 3 errors so far"),
        ("", ""),
    ],
)
def test_the_reason_of_a_failed_program_is_its_last_error(printed: str, shown: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"print({printed!r}, end='')"]
    log, lines = tmp_path / "log", list[str]()
    program = Program("p", command, environment=os.environ, folder=tmp_path, log=log, print_line=lines.append)
    program.process.wait()
    program.close()
    assert program.last_line() == shown

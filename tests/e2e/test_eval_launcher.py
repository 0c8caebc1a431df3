"""ng_eval_launcher as a user calls it. Programs named sbatch, squeue and scancel record what they are asked."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from rollyard.cli.eval_launcher import run
from rollyard.launchers.evaluation.nemo_rl import load_tree
from rollyard.launchers.slurm.job import JobSpec
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from tests.support.doc_pages import commands, page
from tests.support.waiting import deadline_s

DROP_IN = INSTALLED / "examples" / "drop_in"
TINY = "generation.model_name=tiny"
SWEEP = "generation.temperature: [0.6, 0.8, 1.0]\n"
"""Three jobs, where the number is not what is tested."""
TORTURE = [
    *("two words", 'it\'s "quoted"', "$(touch x)", "`touch x`; touch x", "${HOME} $HOME", "line 1\nline 2\n"),
    *("ünï 漢字 🎉", "a, b=c: [d]", "--flag", "\\", "*", "007", ""),
]


_PROGRAM = """#!{python} -SE
import json, os, sys
from pathlib import Path
root = Path({root!r})
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
with (root / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps([name, *args]) + "\\n")
jobs = root / "jobs"
option = lambda key: next((one.partition("=")[2] for one in args if one.startswith("--" + key + "=")), "")
if name == "sbatch":
    number = str(100 + len(list(jobs.iterdir())))
    job = {{"comment": option("comment"), "state": "PENDING", "name": option("job-name")}}
    (jobs / number).write_text(json.dumps(job))
    if (root / "killed").exists():
        os.kill(os.getppid(), 9)
    print(number + ";cluster")
elif name == "squeue":
    wanted = args[args.index("--jobs") + 1].split(",") if "--jobs" in args else None
    for job in sorted(jobs.iterdir()):
        found = json.loads(job.read_text())
        if found["state"] == "PURGED" or (wanted and job.name not in wanted):
            continue
        if option("Format"):
            print(found["state"], 0, "2026-11-23T00:00:00")
        else:
            print(job.name, found["state"], found["comment"], sep="|")
elif name == "scancel":
    for number in args:
        if (jobs / number).exists():
            (jobs / number).write_text(json.dumps({{**json.loads((jobs / number).read_text()), "state": "CANCELLED"}}))
else:
    sys.exit("Slurm accounting storage is disabled")
"""


@dataclass(frozen=True)
class FakeSlurm:
    root: Path

    @classmethod
    def create(cls, root: Path) -> FakeSlurm:
        (root / "jobs").mkdir(parents=True)
        (root / "bin").mkdir()
        for name in ("sbatch", "squeue", "sacct", "scancel"):
            path = root / "bin" / name
            path.write_text(_PROGRAM.format(python=sys.executable, root=str(root)))
            path.chmod(0o755)
        return cls(root)

    def environ(self, log: Path) -> dict[str, str]:
        """Variables of a user whose SLURM this is."""
        kept = {key: value for key, value in os.environ.items() if key not in ("LOG", "ACCOUNT", "CON")}
        return {**kept, "LOG": str(log), "PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def calls(self, name: str) -> list[list[str]]:
        path = self.root / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call[1:] for call in map(json.loads, lines) if call[0] == name]

    def names(self) -> list[str]:
        return [json.loads(path.read_text())["name"] for path in sorted((self.root / "jobs").iterdir())]

    def set_state(self, job_id: str, state: str) -> None:
        """`PURGED`: SLURM no longer knows the job."""
        path = self.root / "jobs" / job_id
        path.write_text(json.dumps({**json.loads(path.read_text()), "state": state}))

    def kill_the_caller_of_sbatch(self, *, on: bool = True) -> None:
        if on:
            (self.root / "killed").touch()
        else:
            (self.root / "killed").unlink()


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm.create(tmp_path / "slurm")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with the paths of the original project, and with spaces and quotes in its name."""
    folder = tmp_path / "my 'project' $(touch x)"
    shutil.copytree(DROP_IN / "xp", folder / "xp")
    (folder / "examples" / "configs").mkdir(parents=True)
    shutil.copy(INSTALLED / "configs" / "nemo_rl_eval.yaml", folder / "examples" / "configs" / "eval.yaml")
    monkeypatch.chdir(folder)
    return folder


def launch_folder(log: Path) -> Path:
    (found,) = log.glob("nemo-rl/*/*/launch.json")
    return found.parent


def specs(log: Path) -> list[JobSpec]:
    launch = json.loads((launch_folder(log) / "launch.json").read_text())
    return [JobSpec.model_validate(job["spec"]) for job in launch["jobs"]]


def test_the_example_sweep_submits_24_jobs_with_all_combinations(
    slurm: FakeSlurm, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    assert run(["--sweep", "xp/eval_sweep_example.yaml", TINY], slurm.environ(log)) == 0
    assert len(slurm.calls("sbatch")) == len(set(slurm.names())) == 24
    configs = [yaml.safe_load(Path(spec.command[1]).read_text()) for spec in specs(log)]
    swept = ("generation.temperature", "generation.top_p", "eval.num_tests_per_prompt", "data.dataset_name")
    combinations = [tuple(OmegaConf.select(OmegaConf.create(one), key) for key in swept) for one in configs]
    datasets = ("HuggingFaceH4/MATH-500", "openai/gsm8k")
    assert combinations == [*itertools.product((0.6, 0.8, 1.0), (0.9, 0.95), (8, 16), datasets)]
    out = capsys.readouterr().out
    assert out.count("Submitted batch job 1") == 24
    assert "Submitted batch job Submitted" not in out  # B9


def test_no_value_passes_through_a_shell(slurm: FakeSlurm, folder: Path, tmp_path: Path) -> None:
    """B5, B6: values of sweep, command line and paths arrive as given."""
    log = tmp_path / "log $(touch x) 'a' \"b\""
    sweep = {"+generation.swept": [TORTURE, None, {"a": [True, [1]]}]}
    (folder / "sweep file.yaml").write_text(yaml.safe_dump(sweep, allow_unicode=True))
    given = [f"+tokenizer.v{number}={value}" for number, value in enumerate(TORTURE)]
    assert run(["--sweep", "sweep file.yaml", TINY, *given], slurm.environ(log)) == 0
    seen: list[Any] = []
    for spec in specs(log):
        tree = OmegaConf.to_container(load_tree(Path(spec.command[1])), resolve=True)
        assert isinstance(tree, dict)
        seen.append(tree["generation"]["swept"])
        assert [tree["tokenizer"][f"v{number}"] for number in range(len(TORTURE))] == TORTURE
        assert tree["output_dir"].startswith(str(log))
        assert spec.working_directory == folder
    assert seen == sweep["+generation.swept"]
    for call in slurm.calls("sbatch"):
        assert all(str(log) in word for word in call if "touch" in word)  # the log folder's own name
    assert not list(tmp_path.rglob("x"))


def test_a_dry_run_prints_the_files_and_writes_none(
    slurm: FakeSlurm, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B17: the inner command was not shown, and status 0 was returned for missing files."""
    before = sorted(tmp_path.rglob("*"))
    log = tmp_path / "log"
    assert run(["--dry", "--sweep", "xp/eval_sweep_example.yaml", TINY], slurm.environ(log)) == 0
    out = capsys.readouterr().out
    assert out.count("--- Command that") == 24
    assert out.count("/eval.yaml ---") == 24
    line = next(line for line in out.splitlines() if line.startswith("sbatch"))
    assert "--gres=gpu:8" in shlex.split(line)
    for missing in ("--sweep", "--config"):
        with pytest.raises(OperatorError):
            run(["--dry", missing, "absent.yaml", TINY], slurm.environ(log))
    assert sorted(tmp_path.rglob("*")) == before


async def test_a_launcher_that_is_killed_between_sbatch_and_the_manifest_submits_no_job_twice(
    slurm: FakeSlurm, folder: Path, tmp_path: Path
) -> None:
    (folder / "sweep.yaml").write_text(SWEEP)
    environ = slurm.environ(tmp_path / "log")
    slurm.kill_the_caller_of_sbatch()
    program = [sys.executable, "-m", "rollyard.cli.eval_launcher", "--sweep", "sweep.yaml", TINY]
    process = await asyncio.create_subprocess_exec(*program, env=environ, stdout=asyncio.subprocess.DEVNULL)
    assert await asyncio.wait_for(process.wait(), deadline_s()) == -9
    slurm.kill_the_caller_of_sbatch(on=False)
    assert run(["resume"], environ) == 0
    assert len(slurm.names()) == len(set(slurm.names())) == 3


def test_status_cancel_and_collect_find_the_newest_launch(
    slurm: FakeSlurm, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = slurm.environ(tmp_path / "log")
    assert run(["--jobs", "2", TINY], environ) == 0
    slurm.set_state("100", "RUNNING")
    capsys.readouterr()
    assert run(["status"], environ) == 0
    out = capsys.readouterr().out
    assert "RUNNING 1, PENDING 1" in out and "100, 101" in out
    assert run(["status", "--json"], environ) == 0
    assert json.loads(capsys.readouterr().out)["combinations"][0]["jobs"][1]["state"] == "PENDING"
    assert run(["cancel"], environ) == 0
    assert run(["status", str(launch_folder(tmp_path / "log"))], environ) == 0
    assert "CANCELLED 2" in capsys.readouterr().out
    assert run(["collect"], environ) == 1
    out = capsys.readouterr().out
    assert "1 of 1 combinations" in out
    assert (launch_folder(tmp_path / "log") / "results.csv").exists()


async def test_the_original_path_runs_the_same_command(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "xp/eval_launcher.py", "--dry", "generation.model_name=meta-llama/Llama-3.2-1B-Instruct"),
        cwd=DROP_IN,
        env={"LOG": str(tmp_path / "log")},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), deadline_s())
    assert process.returncode == 0
    assert "Model: meta-llama/Llama-3.2-1B-Instruct" in out.decode()
    assert not (tmp_path / "log").exists()


DOCUMENTED = [words for words in commands(page("slurm.md")) if words[1:2] == ["xp/eval_launcher.py"]]


@pytest.mark.parametrize("words", DOCUMENTED, ids=" ".join)
def test_every_documented_command_line_submits_what_it_says(
    slurm: FakeSlurm, folder: Path, tmp_path: Path, words: list[str]
) -> None:
    arguments = words[2:]
    for flag in ("--dcp-ckpt-path", "--dcp-config", "--hf-ckpt-path"):
        if flag in arguments:
            place = arguments.index(flag) + 1
            arguments[place] = str(tmp_path / arguments[place].lstrip("/"))
    if "--dcp-ckpt-path" in arguments:
        write_checkpoint(arguments)
    for name in ("eval_sweep.yaml", "xp/eval_sweep_example.yaml"):
        Path(name).write_text(SWEEP)
    shutil.copy("examples/configs/eval.yaml", "examples/configs/eval_custom.yaml")
    assert run(arguments, slurm.environ(tmp_path / "log")) == 0
    assert (tmp_path / "log").exists() != ("--dry" in arguments)
    jobs = (3 if "--sweep" in arguments else 1) + ("--dcp-ckpt-path" in arguments)
    assert len(slurm.calls("sbatch")) == (0 if "--dry" in arguments else jobs)


def write_checkpoint(arguments: list[str]) -> None:
    weights, config = (Path(arguments[arguments.index(flag) + 1]) for flag in ("--dcp-ckpt-path", "--dcp-config"))
    weights.mkdir(parents=True)
    (weights / ".metadata").write_bytes(b"metadata")
    (weights / "__0_0.distcp").write_bytes(b"weights")
    config.write_text("policy: {model_name: tiny}\n")

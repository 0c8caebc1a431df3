"""SweepSite: a user's folder with a checkpoint, data and configs, from which the real `ng_eval_launcher` submits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rollyard.launchers.slurm.launch import LaunchFolder, SlurmLaunch
from rollyard.records.data_files import INSTALLED
from tests.external.slurm.cluster import Cluster
from tests.support.commands import BIN, Finished, command_environ
from tests.support.evaluations import command_line
from tests.support.processes import processes_with
from tests.support.stacks import keys_of, read_rows
from tests.support.waiting import deadline_s, eventually

VLLM = INSTALLED / "tests/support/answering_vllm.py"
RUNNER = "rollyard.launchers.slurm.job_runner"
CONFIG = """\
defaults: {default}
generation: {{temperature: 0.6}}
data: {{local_root: {root}/data, dataset_name: openai/gsm8k, limit: 5}}
vllm: {{command: [{python}, {vllm}, {root}/vllm.json]}}
colocate: true
pause_s: 1
num_samples_in_parallel: 4
"""
SWEEP = """\
config_path: examples/configs/eval.yaml
generation.temperature: [0.6, 1.0]
eval.num_tests_per_prompt: [8, 16]
data.dataset_name: ["HuggingFaceH4/MATH-500", "openai/gsm8k"]
"""
COMBINATIONS = 8


class SweepSite:
    def __init__(self, root: Path, cluster: Cluster) -> None:
        self.root = root
        self.cluster = cluster
        self.log = root / "log"
        self.checkpoint = (*("--dcp-ckpt-path", "step_7/policy/weights/"), *("--dcp-config", "step_7/config.yaml"))
        (root / "examples/configs").mkdir(parents=True)
        text = CONFIG.format(
            default=INSTALLED / "configs/nemo_rl_eval.yaml", root=root, python=sys.executable, vllm=VLLM
        )
        (root / "examples/configs/eval.yaml").write_text(text)
        (root / "eval_sweep.yaml").write_text(SWEEP)
        self._write_data()
        self.set_latency(0.01)

    def set_latency(self, seconds: float) -> None:
        """Change how long running engines take for a response."""
        path = self.root / "vllm.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"answers": self.answers, "latency_s": seconds, "required": REQUIRED}))
        part.rename(path)

    def launch(self, *arguments: str) -> Finished:
        """`ng_eval_launcher ARGUMENTS` in the user's folder."""
        done = subprocess.run(
            [str(BIN / "ng_eval_launcher"), *arguments],
            cwd=self.root,
            env={**command_environ(self.cluster.environment), "LOG": str(self.log)},
            capture_output=True,
            text=True,
            timeout=deadline_s(),
            stdin=subprocess.DEVNULL,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def launched(self, jobname: str) -> SlurmLaunch:
        """The newest launch with this job name."""
        (path, *_) = sorted(self.log.glob(f"nemo-rl/{jobname}/*/launch.json"), reverse=True)
        return LaunchFolder(path.parent).read()

    def status(self, launch: SlurmLaunch) -> Any:
        found = self.launch("status", "--json", str(launch.folder))
        assert found.status == 0, found.err
        return json.loads(found.out)

    def queued(self, launch: SlurmLaunch) -> list[str]:
        """Name and state of its jobs that are waiting or running."""
        lines = self.cluster.client("squeue", "-h", "-o", "%j %T").splitlines()
        ended = ("COMPLETING", "COMPLETED", "CANCELLED", "FAILED")
        return [line for line in lines if launch.launch_id in line and not line.endswith(ended)]

    def runners(self, launch: SlurmLaunch) -> dict[str, int]:
        """The process of each evaluation's job that is running, by the names of combination and job: `eval/job-1`."""
        found = {}
        for pid in processes_with("LOG", str(self.log)):
            words = (
                Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0") if RUNNER in command_line(pid) else []
            )
            for word in words:
                if word.startswith(f"{launch.folder}/") and "/job-" in word:
                    found[word.removeprefix(f"{launch.folder}/")] = pid
        return found

    def kill(self, pid: int, *, by_slurm: bool = False) -> None:
        """Kill a job with `kill -9` of its process, or with SLURM's command."""
        with contextlib.suppress(OSError):
            job_id = dict(
                entry.split("=", 1) for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in entry
            )["SLURM_JOB_ID"]
            if by_slurm:
                self.cluster.client("scancel", "--full", "--signal=KILL", job_id)
            else:
                os.kill(pid, signal.SIGKILL)

    def rollouts(self, launch: SlurmLaunch) -> dict[str, Counter[tuple[int, int]]]:
        """How often each (task, repeat) is in the output of each combination."""
        return {one.name: Counter(keys_of(read_rows(one.run / "rollouts.jsonl"))) for one in launch.combinations}

    def until_over(self, launch: SlurmLaunch) -> None:
        eventually(f"an empty queue: {self.queued(launch)}", lambda: not self.queued(launch))

    def _write_data(self) -> None:
        """Write local clones of the two datasets from the repository's example rows."""
        gsm8k, math = (
            read_rows(INSTALLED / f"resources_servers/{name}/data/example.jsonl") for name in ("gsm8k", "math")
        )
        questions = [{"question": row["question"], "answer": f"#### {row['expected_answer']}"} for row in gsm8k]
        self._clone("openai/gsm8k/main", questions)
        kept = ("problem", "subject", "level")
        problems = [{**{key: row[key] for key in kept}, "answer": row["expected_answer"]} for row in math]
        self._clone("HuggingFaceH4/MATH-500", problems)
        self.answers = {row.get("question") or row["problem"]: row["expected_answer"] for row in (*gsm8k, *math)}

    def _clone(self, name: str, rows: list[dict[str, Any]]) -> None:
        folder = self.root / "data" / name
        folder.mkdir(parents=True)
        (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


REQUIRED = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]

"""Replaces lm_eval: records its arguments and writes results; marker files in the model's folder make it fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TASKS = ("gsm8k", "gsm8k_cot", "ifeval", "hendrycks_math", "mbpp", "humaneval")


def main() -> int:
    if sys.argv[1] == "validate":
        missing = [task for task in sys.argv[3].split(",") if task not in TASKS]
        print(f"Tasks not found: {', '.join(missing)}" if missing else "All tasks found and valid")
        return 1 if missing else 0
    if sys.argv[1] == "ls":
        print("\n".join(f"| {task} | the/path.yaml |" for task in TASKS))
        return 0
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    arguments = dict(pair.split("=", 1) for pair in options["--model_args"].split(","))
    folder = Path(arguments["pretrained"])
    output = Path(options["--output_path"])
    output.mkdir(parents=True, exist_ok=True)
    with (output.parents[2] / "calls.jsonl").open("a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\n")
    number = len((output.parents[2] / "calls.jsonl").read_text().splitlines())
    print("loading", folder.name)
    if (folder / "slow").is_file():
        engine = subprocess.Popen(["sleep", "600"])
        print("engine", engine.pid)
        engine.wait()
    broken = folder / "broken"
    if broken.is_file():
        print(broken.read_text() or "CUDA out of memory", file=sys.stderr)
        broken.rename(folder / "fixed")
        return 1
    if (folder / "silent").is_file():
        return 0
    results = {options["--tasks"]: {"exact_match,none": 0.5}}
    (output / f"results_{number:04}.json").write_text(json.dumps({"results": results, "n-samples": {}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

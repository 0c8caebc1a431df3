"""Stands for lm_eval: writes what was asked of it, and a results file, or fails as the model's folder says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main() -> int:
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    arguments = dict(pair.split("=", 1) for pair in given["--model_args"].split(","))
    folder = Path(arguments["pretrained"])
    output = Path(given["--output_path"])
    output.mkdir(parents=True, exist_ok=True)
    with (output.parents[2] / "asked.jsonl").open("a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\n")
    print("loading", folder.name, flush=True)
    if (folder / "slow").is_file():
        engine = subprocess.Popen(["sleep", "600"])
        print("engine", engine.pid, flush=True)
        engine.wait()
    broken = folder / "broken"
    if broken.is_file():
        broken.rename(folder / "mended")
        print("CUDA out of memory", file=sys.stderr, flush=True)
        return 1
    results = {given["--tasks"]: {"exact_match,none": 0.5}}
    (output / "results_1.json").write_text(json.dumps({"results": results, "n-samples": {}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

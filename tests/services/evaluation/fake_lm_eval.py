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
    number = len((output.parents[2] / "asked.jsonl").read_text().splitlines())
    print("loading", folder.name)
    if (folder / "slow").is_file():
        engine = subprocess.Popen(["sleep", "600"])
        print("engine", engine.pid)
        engine.wait()
    broken = folder / "broken"
    if broken.is_file():
        print(broken.read_text() or "CUDA out of memory", file=sys.stderr)
        broken.rename(folder / "mended")
        return 1
    if (folder / "silent").is_file():
        return 0
    results = {given["--tasks"]: {"exact_match,none": 0.5}}
    (output / f"results_{number:04}.json").write_text(json.dumps({"results": results, "n-samples": {}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.external.nemo_gym.compatibility [NAME...]`: plays environments and writes the table."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.external.nemo_gym.compatibility import results, table
from tests.external.nemo_gym.compatibility.catalog import ROOT, Environment, environments
from tests.external.nemo_gym.compatibility.comparison import compare
from tests.external.nemo_gym.compatibility.results import Result
from tests.external.nemo_gym.compatibility.warm_python import WarmPython

RUNS = ROOT / "build" / "compatibility"
"""A folder for each environment, with its logs and its result, from which the next run continues."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="compatibility", description=__doc__)
    parser.add_argument("names", nargs="*", help="environments to play again; without any, those without a result")
    parser.add_argument("--again", choices=("all", "unequal"), help="play these again, too")
    parser.add_argument("--jobs", type=int, default=2, help="environments that are played at the same time")
    options = parser.parse_args()
    known = environments()
    if unknown := set(options.names) - {environment.name for environment in known}:
        parser.error(f"no environment {', '.join(sorted(unknown))}; docs/evidence/compatibility.md lists them")
    RUNS.mkdir(parents=True, exist_ok=True)
    played = stored(known)
    chosen = [
        one
        for one in known
        if one.name in options.names
        or options.again == "all"
        or (options.again == "unequal" and not (one.name in played and played[one.name].equal))
        or (not options.names and one.name not in played)
    ]
    play(chosen, RUNS, options.jobs)
    listed = list(stored(known).values())
    results.write(listed)
    table.PAGE.write_text(table.page(listed))
    print(table.summary(listed))


def stored(known: Iterable[Environment], folder: Path = RUNS) -> dict[str, Result]:
    """The results of earlier runs, by name."""
    paths = [folder_of(environment, folder) / "result.json" for environment in known]
    return {name: one for path in paths for name, one in results.read(path).items()}


def play(chosen: list[Environment], folder: Path, jobs: int) -> list[Result]:
    """Play the environments, `jobs` at a time; store and print each result."""
    if not chosen:
        return []

    def one(environment: Environment) -> Result:
        own = folder_of(environment, folder)
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        started = time.monotonic()
        result = compare(environment, warm.python, own)
        results.write([result], own / "result.json")
        said = "equal" if result.equal else result.reason
        print(f"{time.monotonic() - started:4.0f} s  {result.name:<50} {said}  {list(result.theirs)}", flush=True)
        return result

    with tempfile.TemporaryDirectory(prefix="compatibility-") as temporary:
        warm = WarmPython(Path(temporary), folder)
        try:
            with ThreadPoolExecutor(jobs) as threads:
                return [*threads.map(one, chosen)]
        finally:
            warm.close()


def folder_of(environment: Environment, folder: Path) -> Path:
    return folder / environment.name.replace("/", ".")


if __name__ == "__main__":
    main()
